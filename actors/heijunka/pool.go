package heijunka

import (
	"container/list"
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/store"
)

// Pool is a number of places in which the requests of some domains run. A place is
// only counted; the process is the request's own. The numbers belong to the handle, so
// that no place or waiter is lost when an actor ends.
type Pool struct {
	name string
	seed maphash.Seed // of routing
	cfg  PoolConfig
	wait time.Duration // the longest wait for a place
	gate *gate
	// waited observes the waits for a place.
	waited prometheus.Observer

	outside func() int // requests that wait without a place; may be nil

	list    []*Pool                 // where its domain's requests may go
	group   atomic.Pointer[[]*Pool] // the preferred part of the list; replaced whole
	spilled atomic.Int64            // requests that went elsewhere

	mu      sync.Mutex // guards what follows
	low     int        // bounds of base
	high    int
	base    int                // places by scaling
	surge   int                // places on top of base, for a while
	size    int                // all places: base, surge and lent overflow
	busy    int                // places that are taken; more than size after a step down
	waiters *list.List         // of chan struct{}, first come first; closed when a place is handed over
	peaks   [lingers]int       // most places that were taken in each of the last seconds
	scaled  time.Time          // the last change of base by scaling
	window  window             // latencies and errors of the last minute
	total   store.HeijunkaPool // counters since the start of takt
}

const (
	// scaleGap is the minimum time between two changes of a pool's size, so that the
	// effect of one is seen before the next.
	scaleGap = time.Second
	// lingers is for how many seconds overflow stays after it was last needed.
	lingers = 5
)

func newPool(cfg PoolConfig, wait time.Duration, g *gate) *Pool {
	return &Pool{
		name: cfg.Name, seed: maphash.MakeSeed(), cfg: cfg, wait: wait, gate: g,
		low: cfg.Min, high: cfg.Max, base: cfg.Initial, size: cfg.Initial, waiters: list.New(),
	}
}

// take takes a place, waiting its turn for one. Errors: store.Overloaded
// by RuleQueue or RuleWait; ctx's cause.
func (p *Pool) take(ctx context.Context) error {
	p.mu.Lock()
	if p.grant() {
		p.mu.Unlock()
		return nil
	}
	if n := p.waiters.Len(); n >= p.cfg.Queue {
		p.total.Refused++
		p.mu.Unlock()
		return p.overload(RuleQueue, n, p.cfg.Queue)
	}
	ready := make(chan struct{})
	turn := p.waiters.PushBack(ready)
	p.total.QueuePeak = max(p.total.QueuePeak, p.waiters.Len())
	p.mu.Unlock()

	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	return p.leave(ctx, turn, ready)
}

// leave removes a waiter that has given up. If a place was handed to it meanwhile, it
// keeps the place, or gives it back if its client is gone.
func (p *Pool) leave(ctx context.Context, turn *list.Element, ready chan struct{}) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	granted := false
	select {
	case <-ready:
		granted = true
	default:
		p.waiters.Remove(turn)
	}
	switch gone := ctx.Err() != nil; {
	case gone && granted:
		p.busy--
		p.serve()
	case granted:
		return nil
	case !gone:
		p.total.Expired++
		return p.overload(RuleWait, p.busy+p.waiters.Len()+1, p.places())
	}
	return context.Cause(ctx)
}

// overload is the refusal of a request that has a token and gets no place.
func (p *Pool) overload(rule string, load, limit int) error {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.gate.overload(rule, load, limit)
}

// grant takes a place if there is one. It lends overflow if all places are taken.
func (p *Pool) grant() bool {
	if p.busy >= p.size {
		p.size = max(p.size, min(p.busy+1, p.target()+p.cfg.Overflow))
	}
	if p.busy >= p.size {
		return false
	}
	p.busy++
	p.peaks[0] = max(p.peaks[0], p.busy)
	return true
}

// serve hands free places to waiters in order of arrival. All code that frees places
// has to call it, so that no later request gets one before them.
func (p *Pool) serve() {
	for p.waiters.Len() > 0 && p.grant() {
		ready, _ := p.waiters.Remove(p.waiters.Front()).(chan struct{})
		close(ready)
	}
}

// giveBack frees a place that was taken for latency.
func (p *Pool) giveBack(latency, limit time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed, crashed := outcome(err)
	p.total.Processed++
	if failed {
		p.total.Failed++
	}
	if crashed {
		p.total.Crashed++
	}
	if limit > 0 && latency > limit {
		p.total.Overran++
	}
	p.window.add(time.Now(), latency, failed)
	p.busy--
	p.serve()
}

func (p *Pool) target() int { return p.base + p.surge }

// places returns how many requests can run, or how many do if that is more.
func (p *Pool) places() int { return max(p.size, p.busy) }

// resized adapts size to a change of the target. It grows at once. It shrinks at once
// by at most spare places; the others stay for a while, as overflow does.
func (p *Pool) resized(spare int) {
	p.size = max(p.size-spare, p.target())
	p.serve()
}

// scale changes base by n, all of it or nothing. Errors: Conflict (outside of its
// bounds, or scaled a moment ago).
func (p *Pool) scale(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	to, now := p.base+n, time.Now()
	switch {
	case n == 0:
		return nil
	case to < p.low || to > p.high:
		return store.NewError(store.Conflict, fmt.Sprintf("The pool may have %d to %d places, not %d", p.low, p.high, to))
	case now.Sub(p.scaled) < scaleGap:
		e := store.NewError(store.Conflict, "The pool was scaled just now, try again")
		e.RetryAfter = scaleGap
		return e
	}
	p.base, p.scaled = to, now
	p.total.Scalings++
	p.resized(max(-n, 0))
	return nil
}

// autoscale adds a place if more than four fifths are busy, and removes one if
// less than half are. It returns by how much the size was changed.
func (p *Pool) autoscale() int {
	step := 0
	switch u := p.use().Utilisation; {
	case u > 0.8:
		step = 1
	case u < 0.5:
		step = -1
	}
	if p.scale(step) != nil {
		return 0 // at its bounds
	}
	return step
}

// bound sets new bounds and moves the pool into them.
func (p *Pool) bound(low, high int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.low, p.high = low, high
	p.base = min(max(p.base, low), high)
	p.resized(0)
}

// setSurge sets how many places there are on top of base.
func (p *Pool) setSurge(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	spare := p.surge - n
	p.surge = n
	p.resized(max(spare, 0))
}

// linger takes back the overflow that was not needed in the last seconds. It is called
// every second.
func (p *Pool) linger() {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.busy
	for _, n := range p.peaks {
		most = max(most, n)
	}
	p.size = min(p.size, max(p.target(), most))
	copy(p.peaks[1:], p.peaks[:])
	p.peaks[0] = p.busy
}

// status returns the current state of the pool.
func (p *Pool) status() store.HeijunkaPool {
	load := p.use()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.total
	s.Name, s.Utilisation, s.Workers, s.Busy, s.Available = p.name, load.Utilisation, p.places(), p.busy, p.places()-p.busy
	s.QueueLength, s.Target, s.Surge, s.Min, s.Max, s.Overflow = p.waiters.Len(), p.target(), p.surge, p.low, p.high, p.cfg.Overflow
	s.LastScalingAt = store.NewMillis(p.scaled)
	latency, errors := p.window.read(time.Now())
	s.AverageLatencyMS, s.ErrorRate = float64(latency)/float64(time.Millisecond), errors
	switch {
	case s.Utilisation > 0.95:
		s.Health = store.PoolCritical
	case s.Utilisation > 0.8 || s.ErrorRate > 0.05:
		s.Health = store.PoolDegraded
	default:
		s.Health = store.PoolHealthy
	}
	return s
}

// requests returns how many requests run or wait.
func (p *Pool) requests() int {
	n := p.busy + p.waiters.Len()
	if p.outside != nil {
		n += p.outside()
	}
	return n
}

// use returns what routing and balance need. Demand is the number of requests that run
// or wait, per place.
func (p *Pool) use() store.HeijunkaPoolUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	perPlace := 1 / float64(p.places()) // of which there is one at least
	return store.HeijunkaPoolUse{
		Name: p.name, Utilisation: float64(p.busy) * perPlace, Demand: float64(p.requests()) * perPlace,
		Workers: p.base, Min: p.low, Max: p.high,
	}
}
