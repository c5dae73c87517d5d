package heijunka

import (
	"sync"
	"time"
)

// surge is the extra capacity that there is for a while. It belongs to the
// handle, so that it ends on time whoever restarts.
type surge struct {
	mu      sync.Mutex // guards what follows
	enabled bool
	on      bool
	began   time.Time
	until   time.Time
	rest    time.Time // no other before
	events  int64
	added   int64
	cost    float64
	last    trigger
}

// trigger is why a surge began.
type trigger struct {
	Demand, Baseline float64
	Manual           bool
}

func newSurge(cfg BurstConfig) *surge { return &surge{enabled: !cfg.Disabled} }

// begin starts a surge of workers per pool, or prolongs one that a human wants.
// It reports whether it did.
func (s *surge) begin(now time.Time, why trigger, workers, pools int, d time.Duration, cost float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !why.Manual && (!s.enabled || s.on || now.Before(s.rest)) {
		return false
	}
	if s.on {
		s.until = now.Add(d)
		return true
	}
	s.on, s.began, s.until, s.last = true, now, now.Add(d), why
	s.events++
	s.added += int64(workers * pools)
	s.cost += float64(workers*pools) * cost
	return true
}

// end ends the surge and reports whether there was one. Without force it ends
// only when its time is over.
func (s *surge) end(now time.Time, cooldown time.Duration, force bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on || !force && now.Before(s.until) {
		return false
	}
	s.on, s.rest = false, now.Add(cooldown)
	return true
}

// left is how long the surge lasts; false if there is none.
func (s *surge) left(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.until.Sub(now), 0), s.on
}

func (s *surge) enable(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enabled = on
}

// samples decides what a burst is. It is one incarnation's.
type samples struct {
	ring []float64
	next int
	size int
	last float64
}

// warmUp is how many samples make a baseline.
const warmUp = 5

// near is the share of what can be observed at all that counts as a burst
// whatever the baseline: with many workers ten times the baseline may be more
// than the gate lets in.
const near = 0.9

func newSamples(cfg BurstConfig) samples { return samples{ring: make([]float64, cfg.Baseline)} }

// baseline is the mean of the last samples.
func (s *samples) baseline() float64 {
	if s.size == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range s.ring[:s.size] {
		sum += v
	}
	return sum / float64(s.size)
}

// add takes a sample and reports whether it is a burst: requests that work or
// wait, workers, and the most requests that there can be.
func (s *samples) add(requests, workers, most int, cfg BurstConfig) (burst bool, why trigger) {
	perWorker := 1 / float64(max(workers, 1))
	demand, baseline := float64(requests)*perWorker, s.baseline()
	threshold := min(cfg.Factor*baseline, near*float64(most)*perWorker)
	burst = s.size >= min(warmUp, len(s.ring)) && requests >= cfg.Floor && demand > threshold
	s.last = demand
	s.ring[s.next] = demand
	s.next = (s.next + 1) % len(s.ring)
	s.size = min(s.size+1, len(s.ring))
	return burst, trigger{Demand: demand, Baseline: baseline}
}
