package postgres

import (
	"slices"
	"sync"
	"time"

	"takt/store"
)

// lane is one of the three scans of the queue: builds for workers of one platform
// and for those that take all.
type lane uint8

const (
	laneAll lane = iota
	laneIOS
	laneAndroid
	lanes
)

// laneOf returns which scan serves a worker that takes platforms.
func laneOf(platforms []store.Platform) lane {
	var ios, android bool
	for _, p := range platforms {
		ios, android = ios || p == store.IOS, android || p == store.Android
	}
	switch {
	case ios == android: // both or, as in an empty list, no restriction
		return laneAll
	case ios:
		return laneIOS
	}
	return laneAndroid
}

// marks are places of the queue, one per lane.
type marks [lanes]int64

// lowMarks remembers where the queue's head is. Builds that were claimed leave
// dead entries in the queue's index until the next vacuum, which an old snapshot
// may keep away for hours; a scan that starts at the head steps over all of them,
// one that starts at the mark over none.
//
// A mark is a hint. What lies below it is claimed last. So builds that come back,
// or that overtake, lower the marks of their own controller; those of others are
// found by a look below the marks, with every count of the queue (2 s) unless
// looks are dear: then they rest in between, and claims don't go below the marks
// at all. Safe for concurrent use; the zero value starts at the start.
type lowMarks struct {
	mu    sync.Mutex
	at    marks
	age   int           // grows when marks are lowered: what scans saw before is void
	cost  time.Duration // of the last look
	due   time.Time     // the next look rests until then
	clock func() time.Time
}

const (
	// dearLook is what a look may cost that claims can afford to repeat.
	dearLook = 10 * time.Millisecond
	// lookRest is how many times as long as it took a look rests.
	lookRest = 5
)

// scan is one use of the marks.
type scan struct {
	from  marks
	below bool // whether to go on below the marks
	age   int
	begun time.Time
}

// begin returns where to scan from.
func (l *lowMarks) begin() scan {
	l.mu.Lock()
	defer l.mu.Unlock()
	return scan{from: l.at, below: l.cost < dearLook, age: l.age}
}

// end raises the marks to the first places that s claimed; 0 means none.
func (l *lowMarks) end(s scan, first marks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.age != l.age {
		return
	}
	for i, place := range first {
		l.at[i] = max(l.at[i], place) // what lay below was met by the way
	}
}

// undo takes s back: what it had locked is in the queue again.
func (l *lowMarks) undo(s scan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.at {
		l.at[i] = min(l.at[i], s.from[i])
	}
	l.age++
}

// beginLook returns the highest of the marks, below which to look, and reports
// false while looks rest.
func (l *lowMarks) beginLook() (look scan, below int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	return scan{age: l.age, begun: now}, slices.Max(l.at[:]), !now.Before(l.due)
}

// endLook takes note of the lowest pending places of the platforms below the
// place given; 0 means none. What was never claimed from may be marked as well:
// nothing waits there.
func (l *lowMarks) endLook(look scan, below int64, lowest marks, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.cost = now.Sub(look.begun)
	l.due = now.Add(lookRest * l.cost)
	if err != nil {
		l.cost = max(l.cost, dearLook)
		return
	}
	for _, i := range []lane{laneIOS, laneAndroid} {
		if lowest[i] == 0 {
			lowest[i] = below
		}
	}
	lowest[laneAll] = min(lowest[laneIOS], lowest[laneAndroid])
	void := false
	for i, place := range lowest {
		if place < l.at[i] {
			l.at[i], void = place, true
		} else if look.age == l.age {
			l.at[i] = place
		}
	}
	if void {
		l.age++
	}
}

// lower makes place visible to the next scan.
func (l *lowMarks) lower(place int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.at {
		if place < l.at[i] {
			l.at[i] = place
			l.age++
		}
	}
}

// reset makes the next scan start at the start.
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
