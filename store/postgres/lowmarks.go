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

// from returns where to scan for several classes.
func (m marks) from(classes []int32) int64 {
	lowest := int64(math.MaxInt64)
	for _, c := range classes {
		lowest = min(lowest, m[c])
	}
	return lowest
}

// lowMarks remembers where the pending builds of each class begin. Claimed builds leave
// dead entries in the queue's index until the next vacuum, which an old snapshot may delay
// for hours. A claim that scans from the start of the index steps over all of them; one
// that scans from the mark steps over none.
//
// A mark is a hint. A build that comes before others, because it is its submitter's turn or
// its priority is high or rises, lowers the marks of its own controller at once and those of
// others by a notification. One that is requeued lowers those of its own only. What others
// have not heard of they find when they have claimed too few, and by a look below the marks
// at every count of the queue (2 s). After a slow look the next one is delayed, and claims
// stay above the marks until a look is fast again. Safe for concurrent use; the zero value
// begins at the start.
type lowMarks struct {
	mu    sync.Mutex
	at    marks
	age   int           // how often marks were lowered, above which passes under way don't raise them
	lows  [256]int64    // the last positions to which they were lowered
	cost  time.Duration // of the last look
	due   time.Time     // when the next look may be taken
	clock func() time.Time
}

const (
	// slowLook is the duration of a look from which on claims stay above the marks.
	slowLook = 10 * time.Millisecond
	// lookPause is the pause after a look, as a multiple of its duration.
	lookPause = 5
)

// pass is one use of the marks.
type pass struct {
	marks // where to scan from
	slow  bool
	age   int
	begun time.Time
}

// whole reports whether nothing is to be looked for below the marks of classes.
func (p pass) whole(classes []int32) bool { return p.slow || p.from(classes) == 0 }

// begin returns where to scan from: the start if the whole queue is to be scanned, unless
// that is slow.
func (l *lowMarks) begin(whole bool) pass {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := pass{age: l.age, slow: l.cost >= slowLook}
	if !whole || p.slow {
		p.marks = maps.Clone(l.at)
	}
	return p
}

// end raises the marks to the first positions that p claimed.
func (l *lowMarks) end(p pass, claims []*claim) {
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
		if position = min(position, low); !anew[class] { // otherwise there may be more from here on
			position = max(l.at[class], position)
		}
		l.at[class] = position
	}
}

// undo cancels p, because the builds it had locked are in the queue again.
func (l *lowMarks) undo(p pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.at {
		l.at[k] = min(l.at[k], p.marks[k])
	}
	l.lowered(0)
}

// lowered records that marks were lowered, to position at most.
func (l *lowMarks) lowered(position int64) {
	l.lows[l.age%len(l.lows)] = position
	l.age++
}

// low returns the lowest position to which marks were lowered since p began.
func (l *lowMarks) low(p pass) int64 {
	if l.age-p.age > len(l.lows) {
		return 0
	}
	lowest := int64(math.MaxInt64)
	for i := p.age; i < l.age; i++ {
		lowest = min(lowest, l.lows[i%len(l.lows)])
	}
	return lowest
}

// beginLook returns the highest mark, below which to look. due is false if it is too
// early for a look.
func (l *lowMarks) beginLook() (look pass, below int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, mark := range l.at {
		below = max(below, mark)
	}
	return pass{age: l.age, begun: now}, below, !now.Before(l.due)
}

// endLook records the lowest pending position of each class below the position given.
// Marks also rise if nothing was claimed, because nothing is pending below the result.
func (l *lowMarks) endLook(look pass, below int64, lowest marks, err error) {
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

// lower makes the next scan include position.
func (l *lowMarks) lower(position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.at {
		l.at[k] = min(l.at[k], position)
	}
	l.lowered(position)
}

// reset makes the next scan begin at the start.
func (l *lowMarks) reset() {
	l.lower(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Time{}
}

func (l *lowMarks) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}
