package build

import (
	"sync/atomic"

	"takt/store"
)

// hints are what this controller believes to be pending per lane. They may be
// wrong at any moment: a wake-up that finds nothing and the regular count put
// them right. Only the actor writes them; shown is what others may read.
type hints struct {
	pending [laneCount]int
	// news counts the builds that became pending as far as this node heard. Its
	// growth since a moment is what a look at that moment can't have seen.
	news [laneCount]uint64
	// echoes is how many of this node's own submissions have yet to come back as
	// notifications, so that they are not counted twice.
	echoes [laneCount]int
	// doubt marks lanes whose count has to be taken again soon.
	doubt [laneCount]bool
	shown *depth
}

// depth is the part of hints that any goroutine may read.
type depth [laneCount]atomic.Int64

// of returns how many builds are believed to be pending in the lanes of set.
func (d *depth) of(set platforms) int {
	sum := 0
	for lane := range d {
		if set.has(lane) {
			sum += int(d[lane].Load())
		}
	}
	return sum
}

func (h *hints) set(lane, n int) {
	h.pending[lane] = max(n, 0)
	h.shown[lane].Store(int64(h.pending[lane]))
}

// enqueued takes note of n builds that this node made pending.
func (h *hints) enqueued(lane, n int) {
	h.echoes[lane] += n
	h.appeared(lane, n)
}

// notified takes note of a notification, unless it is the echo of our own.
func (h *hints) notified(lane int) {
	if h.echoes[lane] > 0 {
		h.echoes[lane]--
		return
	}
	h.appeared(lane, 1)
}

func (h *hints) appeared(lane, n int) {
	h.news[lane] += uint64(n)
	h.set(lane, h.pending[lane]+n)
}

// claimed takes note of a build that was handed out. One that nobody knew of
// means that there may be more.
func (h *hints) claimed(lane int) {
	if h.pending[lane] == 0 {
		h.doubt[lane] = true
		return
	}
	h.set(lane, h.pending[lane]-1)
}

// dry takes note that a free worker found nothing in lane, by a look that began
// when news stood at seen. That is in doubt if the hints said otherwise, or if
// another batch was under way: it may have held locks on builds that it did not
// take.
func (h *hints) dry(lane int, seen uint64, crowded bool) {
	left := int(h.news[lane] - seen)
	h.doubt[lane] = crowded || h.pending[lane] > left
	h.set(lane, left)
}

// counted takes over a count of the database that began when news stood at seen
// and went no further than limit.
func (h *hints) counted(count map[store.Platform]int, seen [laneCount]uint64, limit int) {
	h.echoes, h.doubt = [laneCount]int{}, [laneCount]bool{}
	for lane, p := range lanePlatforms() {
		n := count[p]
		if n >= limit {
			n = max(n, h.pending[lane])
		}
		h.set(lane, n+int(h.news[lane]-seen[lane]))
	}
}

// lanePlatforms lists the platforms by lane.
func lanePlatforms() [laneCount]store.Platform {
	return [laneCount]store.Platform{laneIOS: store.IOS, laneAndroid: store.Android}
}
