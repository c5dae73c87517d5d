package postgres

import (
	"slices"
	"sync"
	"time"

	"takt/store"
)

// scan is one of the three scans of the queue: for workers of iOS, of Android, and of
// all platforms.
type scan uint8

const (
	allPlatforms scan = iota
	onlyIOS
	onlyAndroid
	scans
)

// scanOf returns which scan serves a worker that takes platforms.
func scanOf(platforms []store.Platform) scan {
	ios, android := slices.Contains(platforms, store.IOS), slices.Contains(platforms, store.Android)
	switch {
	case ios == android: // both or, as in an empty list, no restriction
		return allPlatforms
	case ios:
		return onlyIOS
	}
	return onlyAndroid
}

// marks are positions in the queue, one per scan.
type marks [scans]int64

// lowMarks remembers where the pending builds begin. Claimed builds leave dead entries
// in the queue's index until the next vacuum, which an old snapshot may delay for
// hours. A scan from the start of the index steps over all of them; a scan from the
// mark steps over none.
//
// A mark is a hint: builds below it are claimed last. So builds that are requeued, or
// whose priority rises, lower the marks of their own controller. Other controllers find
// them by a look below the marks, at every count of the queue (2 s). After a slow look
// the next one is delayed, and claims don't go below the marks until a look is fast
// again. Safe for concurrent use; the zero value begins at the start.
type lowMarks struct {
	mu    sync.Mutex
	at    marks
	age   int           // grows when marks are lowered, which voids what earlier passes saw
	cost  time.Duration // of the last look
	due   time.Time     // when the next look may be taken
	clock func() time.Time
}

const (
	// slowLook is the duration of a look from which on claims don't go below the marks.
	slowLook = 10 * time.Millisecond
	// lookPause is the pause after a look, as a multiple of its duration.
	lookPause = 5
)

// pass is one use of the marks.
type pass struct {
	from  marks
	below bool // whether to go on below the marks
	age   int
	begun time.Time
}

// begin returns where to scan from.
func (l *lowMarks) begin() pass {
	l.mu.Lock()
	defer l.mu.Unlock()
	return pass{from: l.at, below: l.cost < slowLook, age: l.age}
}

// end raises the marks to the first positions that p claimed; 0 means none.
func (l *lowMarks) end(p pass, first marks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.age != l.age {
		return
	}
	for i, position := range first {
		l.at[i] = max(l.at[i], position) // the scan has seen everything below
	}
}

// undo cancels p, because the builds it had locked are in the queue again.
func (l *lowMarks) undo(p pass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.at {
		l.at[i] = min(l.at[i], p.from[i])
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

// endLook records the lowest pending position of each platform below the position
// given; 0 means none. Marks also rise if nothing was claimed, because nothing is
// pending below the result.
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
	for _, i := range []scan{onlyIOS, onlyAndroid} {
		if lowest[i] == 0 {
			lowest[i] = below
		}
	}
	lowest[allPlatforms] = min(lowest[onlyIOS], lowest[onlyAndroid])
	void := false
	for i, position := range lowest {
		if position < l.at[i] {
			l.at[i], void = position, true
		} else if look.age == l.age {
			l.at[i] = position
		}
	}
	if void {
		l.age++
	}
}

// lower makes the next scan include position.
func (l *lowMarks) lower(position int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.at {
		if position < l.at[i] {
			l.at[i] = position
			l.age++
		}
	}
}

// reset makes the next scan begin at the start.
func (l *lowMarks) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.due = marks{}, time.Time{}
	l.age++
}

func (l *lowMarks) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}
