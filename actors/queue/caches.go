package queue

import "time"

const (
	// warmFor is how long a worker is preferred for its cache.
	warmFor = 24 * time.Hour
	// maxWarm is how many workers are remembered; one more replaces an arbitrary one.
	maxWarm = 20_000
	// maxAsked is how many warm workers are checked for one build.
	maxAsked = 64
)

// caches remembers the cache label of the last build that each worker finished. It is only
// a hint: no build waits for a worker because of it.
type caches struct {
	workers map[string]warm                // by worker id
	labels  map[string]map[string]struct{} // worker ids by label
}

type warm struct {
	label string
	at    time.Time
}

func newCaches() caches {
	return caches{workers: map[string]warm{}, labels: map[string]map[string]struct{}{}}
}

// finished records that worker has a warm cache for label.
func (c *caches) finished(worker, label string, now time.Time) {
	c.forget(worker)
	if len(c.workers) >= maxWarm {
		for someone := range c.workers {
			c.forget(someone)
			break
		}
	}
	c.workers[worker] = warm{label: label, at: now}
	if c.labels[label] == nil {
		c.labels[label] = map[string]struct{}{}
	}
	c.labels[label][worker] = struct{}{}
}

func (c *caches) forget(worker string) {
	known, ok := c.workers[worker]
	if !ok {
		return
	}
	delete(c.workers, worker)
	delete(c.labels[known.label], worker)
	if len(c.labels[known.label]) == 0 {
		delete(c.labels, known.label)
	}
}

// has reports whether worker has a warm cache for label. It removes an entry that is too
// old.
func (c *caches) has(worker, label string, now time.Time) bool {
	known, ok := c.workers[worker]
	if ok && now.Sub(known.at) > warmFor {
		c.forget(worker)
		return false
	}
	return ok && known.label == label
}

// warm returns the oldest parked poll of a worker that has a warm cache for label, can take
// a build of c and is not the worker not; nil if there is none.
func (m *memory) warm(c *class, label, not string, now time.Time) (found *poll) {
	asked := 0
	for worker := range m.caches.labels[label] {
		if asked++; asked > maxAsked {
			break
		}
		s := m.byID[worker]
		if worker == not || s == nil || s.next == nil || s.next.state != parked || !s.next.takes.takes(c) {
			continue
		}
		if m.caches.has(worker, label, now) && (found == nil || s.next.no < found.no) {
			found = s.next
		}
	}
	return found
}
