package queue

import (
	"sync/atomic"
	"time"

	"takt/store"
)

// pending is what this controller believes to be pending per platform. It may be
// wrong at any moment: a wake-up that finds nothing and the regular count put it
// right. Only the actor writes it; shown is what others may read.
type pending struct {
	n [platforms]int
	// counted is when the last count was taken; zero if there is none.
	counted time.Time
	// news counts the builds that became pending as far as this node heard. Its
	// growth since a moment is what a look at that moment can't have seen.
	news [platforms]uint64
	// echoes is how many of this node's own submissions have yet to come back as
	// notifications, so that they are not counted twice.
	echoes [platforms]int
	// doubt marks platforms whose count has to be taken again soon.
	doubt [platforms]bool
	shown *[platforms]atomic.Int64
}

// maxAge is how old a count may be that polls are judged by.
const maxAge = 5 * time.Second

// unknown reports whether nothing pending need not mean that nothing is.
func (h *pending) unknown(now time.Time) bool { return now.Sub(h.counted) > maxAge }

// of returns how many builds are believed to be pending for set.
func (h *pending) of(set platformSet) (n int) {
	for p := range platforms {
		if set.has(p) {
			n += h.n[p]
		}
	}
	return n
}

func (h *pending) set(p, n int) {
	h.n[p] = max(n, 0)
	h.shown[p].Store(int64(h.n[p]))
}

// enqueued takes note of builds that this node made pending.
func (h *pending) enqueued(set platformSet, n int) {
	for p := range platforms {
		if set.has(p) {
			h.echoes[p] += n
			h.appeared(p, n)
		}
	}
}

// notified takes note of a notification, unless it is the echo of our own.
func (h *pending) notified(set platformSet) {
	for p := range platforms {
		switch {
		case !set.has(p):
		case h.echoes[p] > 0:
			h.echoes[p]--
		default:
			h.appeared(p, 1)
		}
	}
}

func (h *pending) appeared(p, n int) {
	h.news[p] += uint64(n)
	h.set(p, h.n[p]+n)
}

// claimed takes note of a build that was handed out. One that nobody knew of means
// that there may be more.
func (h *pending) claimed(set platformSet) {
	for p := range platforms {
		switch {
		case !set.has(p):
		case h.n[p] == 0:
			h.doubt[p] = true
		default:
			h.set(p, h.n[p]-1)
		}
	}
}

// dry takes note that a free worker found nothing of platform p, by a look that
// began when news stood at seen. That is in doubt if more was believed to be there,
// or if another batch was under way: it may have held locks on builds that it did
// not take.
func (h *pending) dry(p int, seen uint64, crowded bool) {
	left := int(h.news[p] - seen)
	h.doubt[p] = crowded || h.n[p] > left
	h.set(p, left)
}

// recount takes over a count of the database that began when news stood at seen
// and went no further than limit.
func (h *pending) recount(count map[store.Platform]int, seen [platforms]uint64, limit int, now time.Time) {
	h.counted, h.echoes, h.doubt = now, [platforms]int{}, [platforms]bool{}
	for p, name := range platformNames {
		n := count[name]
		if n >= limit {
			n = max(n, h.n[p])
		}
		h.set(p, n+int(h.news[p]-seen[p]))
	}
}
