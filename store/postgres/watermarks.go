package postgres

import (
	"cmp"
	"maps"
	"math"
	"sync"
	"time"
)

// marks are positions in the queue by class; a class without one has 0.
type marks map[int32]int64

// from returns the position from which to scan for builds of several classes.
func (m marks) from(classes []int32) int64 {
	lowest := int64(math.MaxInt64)
	for _, c := range classes {
		lowest = min(lowest, m[c])
	}
	return lowest
}

// watermarks remembers the position at which the pending builds of each class begin. Assigned
// builds leave dead entries in the queue's index until the next vacuum, which an old snapshot
// may delay for hours. A scan from the start of the index reads all of them; a scan from the
// mark reads none.
//
// A mark is a hint. A build that gets a position below it, because it is its submitter's turn
// or because of its priority, lowers the marks of its own controller immediately and those of
// others by a notification. A requeued build lowers only those of its own controller. Other
// controllers find it when they have claimed too few builds, or when they check below the
// marks at a count of the queue (about every 2 s); such a check is called a look. After a
// slow look the next one is delayed, and claims don't scan below the marks until a look is
// fast again. Safe for concurrent use; with the zero value, scans begin at the start.
type watermarks struct {
	mu    sync.Mutex // guards what follows
	at    marks
	age   int              // how often marks were lowered; see low
	lows  [256]int64       // the last positions to which they were lowered, a ring indexed by age
	cost  time.Duration    // how long the last look took
	due   time.Time        // when the next look may begin
	clock func() time.Time // nil: time.Now
}

const (
	// slowLook is the duration from which on a look is slow.
	slowLook = 10 * time.Millisecond
	// lookPause is the pause after a look, as a multiple of its duration.
	lookPause = 5
)

// pass is one scan of the queue, or one look.
type pass struct {
	marks           // where the scan begins
	slow  bool      // looks are slow, so it does not scan below the marks
	age   int       // watermarks.age when it began
	begun time.Time // only of a look
}

// whole reports whether the scan of these classes has nothing to look for below the marks.
func (p pass) whole(classes []int32) bool { return p.slow || p.from(classes) == 0 }

// begin begins a scan from the marks, or from the start if whole is true and looks are not
// slow.
func (l *watermarks) begin(whole bool) pass {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := pass{age: l.age, slow: l.cost >= slowLook}
	if !whole || p.slow {
		p.marks = maps.Clone(l.at)
	}
	return p
}

// end raises the marks to the first positions that the scan p has locked, but not above a
// position to which they were lowered meanwhile.
func (l *watermarks) end(p pass, claims []*claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	low := l.low(p)
	if low == 0 {
		return
	}
	first, anew := marks{}, map[int32]bool{}
	for _, c := range claims {
		for _, class := range c.ids {
			if was := first[class]; c.first > 0 && (was == 0 || c.first < was) {
				first[class] = c.first
			}
			anew[class] = anew[class] || p.from(c.ids) == 0
		}
	}
	if l.at == nil {
		l.at = marks{}
	}
	for class, position := range first {
		if position = min(position, low); !anew[class] { // a scan from the start may even lower the mark
			position = max(l.at[class], position)
		}
		l.at[class] = position
	}
}

// undo lowers the marks to where p began, because the builds that it locked are still in the
// queue.
func (l *watermarks) undo(p pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.at {
		l.at[k] = min(l.at[k], p.marks[k])
	}
	l.lowered(0)
}

// lowered records that marks were lowered, to position at most.
func (l *watermarks) lowered(position int64) {
	l.lows[l.age%len(l.lows)] = position
	l.age++
}

// low returns the lowest position to which marks were lowered since p began: 0 if that was
// more often than lows remembers, the highest possible position if it was never.
func (l *watermarks) low(p pass) int64 {
	if l.age-p.age > len(l.lows) {
		return 0
	}
	lowest := int64(math.MaxInt64)
	for i := p.age; i < l.age; i++ {
		lowest = min(lowest, l.lows[i%len(l.lows)])
	}
	return lowest
}

// beginLook returns the highest mark, below which to look. due is false if the pause after
// the previous look has not ended.
func (l *watermarks) beginLook() (look pass, below int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, mark := range l.at {
		below = max(below, mark)
	}
	return pass{age: l.age, begun: now}, below, !now.Before(l.due)
}

// endLook records the lowest pending position of each class below the position below, or
// that the look failed. Besides lowering marks it raises those below which nothing is
// pending.
func (l *watermarks) endLook(look pass, below int64, lowest marks, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.cost = now.Sub(look.begun)
	l.due = now.Add(lookPause * l.cost)
	if err != nil {
		l.cost = max(l.cost, slowLook)
		return
	}
	low := l.low(look)
	for k, mark := range l.at {
		position := cmp.Or(lowest[k], below)
		if position < mark {
			l.lowered(position)
		} else {
			position = max(mark, min(position, low))
		}
		l.at[k] = position
	}
}

// lower lowers all marks to position, so that the next scan includes it.
func (l *watermarks) lower(position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.at {
		l.at[k] = min(l.at[k], position)
	}
	l.lowered(position)
}

// reset makes the next scan begin at the start, and a look due.
func (l *watermarks) reset() {
	l.lower(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Time{}
}

func (l *watermarks) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}
