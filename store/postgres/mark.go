package postgres

import (
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
// dead entries in the queue's index until the next vacuum; a scan that starts at
// the head steps over all of them, one that starts at the mark over none.
//
// A mark is a hint. What lies below it is claimed last, and only a scan from the
// start sees it in its turn. So builds that come back, or that overtake, lower the
// marks of their own controller; those of other controllers are found by a scan
// from the start, which happens every fullScan (less often while it is slow).
// Safe for concurrent use; the zero value starts at the start.
type lowMarks struct {
	mu    sync.Mutex
	at    marks
	age   int       // grows when marks are lowered: what scans saw before is void
	due   time.Time // of the next scan from the start
	clock func() time.Time
}

const (
	fullScan     = time.Second
	fullScanRest = 20 // a scan from the start may take this part of the time
)

// scan is one use of the marks.
type scan struct {
	from  marks
	age   int
	full  bool
	begun time.Time
}

// begin returns where to scan from.
func (l *lowMarks) begin() scan {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := scan{from: l.at, age: l.age, begun: l.now()}
	if !s.begun.Before(l.due) {
		s.full, s.from = true, marks{}
		l.due = s.begun.Add(fullScan) // others need not, meanwhile
	}
	return s
}

// end raises the marks to the first places that s claimed; 0 means none.
func (l *lowMarks) end(s scan, first marks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.full {
		now := l.now()
		l.due = now.Add(max(fullScan, fullScanRest*now.Sub(s.begun)))
	}
	if s.age != l.age {
		return
	}
	for i, place := range first {
		// A full scan knows the head; others may have met what lay below the mark.
		if place > l.at[i] || s.full && place > 0 {
			l.at[i] = place
		}
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
