package queue

import "time"

const (
	// warmFor is how long a worker is preferred for its cache.
	warmFor = 24 * time.Hour
	// maxWarm is how many workers are remembered; one more replaces any of them.
	maxWarm = 20_000
	// maxAsked is how many warm workers are looked at for one build.
	maxAsked = 64
)

// caches remembers which worker has last finished a build of which cache label,
// and the labels of builds that nobody was woken for yet. All of it is a hint: a
// build waits for no worker because of it.
type caches struct {
	workers map[string]warm
	labels  map[string]map[string]struct{} // workers by label
	fresh   [platforms][]string            // labels of new builds, in order
}

type warm struct {
	label string
	at    time.Time
}

func newCaches() caches {
	return caches{workers: map[string]warm{}, labels: map[string]map[string]struct{}{}}
}

// finished takes note that worker has a warm cache.
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

// has reports whether worker is warm for label, and forgets what is too old.
func (c *caches) has(worker, label string, now time.Time) bool {
	known, ok := c.workers[worker]
	if ok && now.Sub(known.at) > warmFor {
		c.forget(worker)
		return false
	}
	return ok && known.label == label
}

// next returns the label of the next new build of platform, "" for none.
func (c *caches) next(platform int) (label string) {
	if fresh := c.fresh[platform]; len(fresh) > 0 {
		label, c.fresh[platform] = fresh[0], fresh[1:]
	}
	return label
}

// settle forgets the labels of builds that nobody was there to be woken for: they
// go to whoever comes next.
func (c *caches) settle() { c.fresh = [platforms][]string{} }

// choose returns the parked poll to wake for a build of platform: of the workers
// that are warm for its label the one that has been parked longest, else the one
// that has been parked longest of all; nil if there is none.
func (m *memory) choose(platform int, now time.Time) *poll {
	longest, label := m.longest(platform), m.caches.next(platform)
	if longest == nil || label == "" {
		return longest
	}
	var found *poll
	asked := 0
	for worker := range m.caches.labels[label] {
		if asked++; asked > maxAsked {
			break
		}
		s := m.byID[worker]
		if s == nil || s.next == nil || s.next.state != parked || !s.Free() || !s.next.takes.has(platform) {
			continue
		}
		if m.caches.has(worker, label, now) && (found == nil || s.next.no < found.no) {
			found = s.next
		}
	}
	if found != nil {
		return found
	}
	return longest
}
