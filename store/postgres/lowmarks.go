package postgres

import (
	"slices"
	"sync"
	"time"
)

// marks are positions in the queue, one per kind of workers; 0 stands for none.
type marks = perKind[int64]

// lowMarks remembers where the pending builds begin for each kind of
// workers. Claimed builds leave
// dead entries in the queue's index until the next vacuum, which an old snapshot may delay
// for hours. A claim that scans from the start of the index steps over all of them; one
// that scans from the mark steps over none.
//
// A mark is a hint. Builds that are requeued, or whose priority rises, lower the marks of
// their own controller. Other controllers find them when they have claimed too few, and by
// a look below the marks at every count of the queue (2 s). After a slow look the next one
// is delayed, and claims stay above the marks until a look is fast again. Safe for
// concurrent use; the zero value begins at the start.
type lowMarks struct {
	mu    sync.Mutex
	at    marks
	age   int           // grows when marks are lowered, which voids what earlier passes saw
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
	from marks // where to scan from
	// whole is true for a kind if nothing is to be looked for below.
	whole perKind[bool]
	age   int
	begun time.Time
}

// begin returns where to scan from: the start if the whole queue is to be scanned, unless
// that is slow.
func (l *lowMarks) begin(whole bool) (p pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow := l.cost >= slowLook
	p.age = l.age
	for k := range l.at {
		if !whole || slow {
			p.from[k] = l.at[k]
		}
		p.whole[k] = slow || p.from[k] == 0
	}
	return p
}

// end raises the marks to the first positions that p claimed.
func (l *lowMarks) end(p pass, first marks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, position := range first {
		switch {
		case p.age != l.age || position == 0:
		case p.from[k] == 0: // there may be more from here on
			l.at[k] = position
		default:
			l.at[k] = max(l.at[k], position)
		}
	}
}

// undo cancels p, because the builds it had locked are in the queue again.
func (l *lowMarks) undo(p pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.at {
		l.at[k] = min(l.at[k], p.from[k])
	}
	l.age++
}

// beginLook returns the highest mark, below which to look. due is false if it is too
// early for a look, or if there is nothing below.
func (l *lowMarks) beginLook() (look pass, below int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	below = slices.Max(l.at[:])
	return pass{age: l.age, begun: now}, below, below > 0 && !now.Before(l.due)
}

// endLook records the lowest pending position of each platform below the position given.
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
	for _, k := range []kind{takesIOS, takesAndroid} {
		if lowest[k] == 0 {
			lowest[k] = below
		}
	}
	lowest[takesAll] = min(lowest[takesIOS], lowest[takesAndroid])
	current := look.age == l.age
	for k, position := range lowest {
		if position < l.at[k] {
			l.age++
		} else if !current {
			continue
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
	l.age++
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
