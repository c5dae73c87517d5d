package build

import "time"

const (
	// warmFor is how long a worker is preferred for its cache.
	warmFor = 24 * time.Hour
	// maxWarm is how many workers are remembered; one more replaces any of them.
	maxWarm = 20_000
	// maxAsked is how many warm workers are looked at for one build.
	maxAsked = 64
)

// warmth remembers which worker has last finished a build of which cache label,
// and the labels of builds that nobody was woken for yet. All of it is a hint: a
// build waits for no worker because of it.
type warmth struct {
	workers map[string]warm
	caches  map[string]map[string]struct{} // workers by label
	fresh   [laneCount][]string            // labels of new builds, in order
}

type warm struct {
	cache string
	at    time.Time
}

func newWarmth() warmth {
	return warmth{workers: map[string]warm{}, caches: map[string]map[string]struct{}{}}
}

// finished takes note that worker has a warm cache.
func (w *warmth) finished(worker, cache string, now time.Time) {
	w.forget(worker)
	if len(w.workers) >= maxWarm {
		for someone := range w.workers {
			w.forget(someone)
			break
		}
	}
	w.workers[worker] = warm{cache: cache, at: now}
	if w.caches[cache] == nil {
		w.caches[cache] = map[string]struct{}{}
	}
	w.caches[cache][worker] = struct{}{}
}

func (w *warmth) forget(worker string) {
	known, ok := w.workers[worker]
	if !ok {
		return
	}
	delete(w.workers, worker)
	delete(w.caches[known.cache], worker)
	if len(w.caches[known.cache]) == 0 {
		delete(w.caches, known.cache)
	}
}

// has reports whether worker is warm for cache, and forgets what is too old.
func (w *warmth) has(worker, cache string, now time.Time) bool {
	known, ok := w.workers[worker]
	if ok && now.Sub(known.at) > warmFor {
		w.forget(worker)
		return false
	}
	return ok && known.cache == cache
}

// appeared takes note of the label of a build that became pending.
func (w *warmth) appeared(lane int, cache string) { w.fresh[lane] = append(w.fresh[lane], cache) }

// next returns the label of the next new build of lane, "" for none.
func (w *warmth) next(lane int) (cache string) {
	if len(w.fresh[lane]) > 0 {
		cache, w.fresh[lane] = w.fresh[lane][0], w.fresh[lane][1:]
	}
	return cache
}

// settle forgets the labels of builds that nobody was there to be woken for: they
// go to whoever comes next.
func (w *warmth) settle() { w.fresh = [laneCount][]string{} }

// choose returns the parked poll to wake for a build of lane: of the workers that
// are warm for its label the one that has been parked longest, else the one that
// has been parked longest of all; nil if there is none.
func (b *board) choose(lane int, now time.Time) *poll {
	longest, cache := b.room.longest(lane), b.warmth.next(lane)
	if longest == nil || cache == "" || b.warmth.has(longest.worker, cache, now) {
		return longest
	}
	var found *poll
	asked := 0
	for worker := range b.warmth.caches[cache] {
		if asked++; asked > maxAsked {
			break
		}
		p := b.line.parked(worker)
		if p == nil || !p.free || !p.takes.has(lane) || found != nil && found.no < p.no {
			continue
		}
		if b.warmth.has(worker, cache, now) {
			found = p
		}
	}
	if found != nil {
		return found
	}
	return longest
}
