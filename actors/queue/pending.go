package queue

import (
	"sync/atomic"
	"time"

	"takt/store"
)

// pending is how many builds this controller believes to be pending per platform. It
// may be wrong at any moment; wake-ups that find nothing and the regular count correct
// it. Only the actor writes it. Other goroutines read shown.
type pending struct {
	n [platforms]int
	// counted is when the last count was taken; zero if there is none.
	counted time.Time
	// news counts the builds that became pending as far as this controller knows. Builds
	// counted after a read of the database began may be missing from its result.
	news [platforms]uint64
	// echoes is how many notifications of this controller's own submissions are still to
	// come. They are ignored so that no build is counted twice.
	echoes [platforms]int
	// doubt marks platforms that must be counted again soon.
	doubt [platforms]bool
	shown *[platforms]atomic.Int64
	// found is the last count itself. Unlike shown, which may be too high on purpose, it
	// is right for its moment.
	found *atomic.Pointer[store.QueueCount]
	// changes is QueueCount.Changes.
	changes *atomic.Uint64
}

// maxAge is the greatest age of a count that may decide a poll.
const maxAge = 5 * time.Second

// unknown reports whether the count is too old to prove that nothing is pending.
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

// enqueued records builds that this controller made pending.
func (h *pending) enqueued(set platformSet, n int) {
	for p := range platforms {
		if set.has(p) {
			h.echoes[p] += n
			h.appeared(p, n)
		}
	}
}

// notified records a notification, unless it is the echo of this controller's own.
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
	h.changes.Add(1)
	h.set(p, h.n[p]+n)
}

// claimed records a build that was handed out. If it was unknown, there may be more, so
// the count is in doubt.
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

// dry records that a free worker found no build of platform p, in a read that began
// when news was seen. The count is in doubt if builds were believed to be pending, or
// if another batch was running, because that batch may have locked builds that it did
// not take.
func (h *pending) dry(p int, seen uint64, crowded bool) {
	left := int(h.news[p] - seen)
	h.doubt[p] = crowded || h.n[p] > left
	h.set(p, left)
}

// recount stores a count of the database that began when news was seen and that stopped
// at limit.
func (h *pending) recount(count map[store.Platform]int, seen [platforms]uint64, limit int, now time.Time) {
	h.counted, h.echoes, h.doubt = now, [platforms]int{}, [platforms]bool{}
	found := &store.QueueCount{At: now, Pending: map[store.Platform]int{}}
	for p, name := range platformNames {
		n := count[name]
		if n >= limit {
			n = max(n, h.n[p])
		}
		found.Pending[name] = n
		h.set(p, n+int(h.news[p]-seen[p]))
	}
	h.found.Store(found)
}
