package heijunka

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/store"
	"takt/store/limiter"
)

// Pool is a number of places in which the requests of some domains run: a limiter whose size
// changes with the load. A place is only counted; the process is the request's own. The numbers
// belong to the handle, so that no place or waiter is lost when an actor ends.
type Pool struct {
	name   string
	seed   maphash.Seed // of routing
	cfg    PoolConfig
	places *limiter.Limiter
	// waited observes the waits for a place.
	waited prometheus.Observer

	outside func() int // requests that wait without a place; may be nil

	list    []*Pool                 // where its domain's requests may go
	group   atomic.Pointer[[]*Pool] // the preferred part of the list; replaced whole
	spilled atomic.Int64            // requests that went elsewhere

	mu     sync.Mutex // guards what follows; the limiter's lock is taken after it
	low    int        // bounds of base
	high   int
	base   int                // places by scaling
	surge  int                // places on top of base, for a while
	size   int                // all places: base, surge and lent overflow; see counted
	peaks  [lingers]int       // most places that were taken in each of the last seconds
	scaled time.Time          // the last change of base by scaling
	window window             // latencies and errors of the last minute
	total  store.HeijunkaPool // counters since the start of takt
}

const (
	// scaleGap is the minimum time between two changes of a pool's size, so that the
	// effect of one is seen before the next.
	scaleGap = time.Second
	// lingers is for how many seconds overflow stays after it was last needed.
	lingers = 5
	// transferWait is how long a transfer waits for its place, and anonymousPart the part of the
	// places of transfers that is for those who show no key.
	transferWait  = 20 * time.Second
	anonymousPart = 4
)

func newPool(cfg PoolConfig, wait time.Duration, g *gate) *Pool {
	p := &Pool{
		name: cfg.Name, seed: maphash.MakeSeed(), cfg: cfg,
		low: cfg.Min, high: cfg.Max, base: cfg.Initial, size: cfg.Initial,
	}
	l := limiter.Limit{Rule: cfg.Name, Most: cfg.Initial + cfg.Overflow, Wait: wait, Queue: cfg.Queue, Refuse: g.crowded}
	if cfg.Shared {
		l.Rule, l.Fair, l.AnonymousPart, l.Wait, l.Refuse = RuleTransfers, true, anonymousPart, transferWait, nil
		l.Refusal = store.Error{Message: "Too many transfers at once, try again later", RetryAfter: 5 * time.Second}
	}
	p.places = limiter.New(l)
	return p
}

// ended counts a request that had a place for latency.
func (p *Pool) ended(latency, limit time.Duration, err error) {
	failed, crashed := outcome(err)
	p.mu.Lock()
	defer p.mu.Unlock()
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
}

func (p *Pool) target() int { return p.base + p.surge }

// counted adapts size to what was taken since the last call, and returns the numbers of the
// limiter. All that depends on size calls it first. The caller holds mu.
func (p *Pool) counted() limiter.Counts {
	c := p.places.Settle()
	p.size = max(p.size, c.Peak)
	p.peaks[0] = max(p.peaks[0], c.Peak)
	return c
}

// resized adapts size to a change of the target. It grows at once. It shrinks at once
// by at most spare places; the others stay for a while, as overflow does.
func (p *Pool) resized(spare int) {
	p.counted()
	p.size = max(p.size-spare, p.target())
	p.places.Resize(p.target() + p.cfg.Overflow)
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
	c := p.counted()
	p.size = min(p.size, max(p.target(), c.Held, slices.Max(p.peaks[:])))
	copy(p.peaks[1:], p.peaks[:])
	p.peaks[0] = c.Held
}

// status returns the current state of the pool.
func (p *Pool) status() store.HeijunkaPool {
	load := p.use()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, c := p.total, p.counted()
	all := max(p.size, c.Held)
	s.Name, s.Utilisation, s.Workers, s.Busy, s.Available = p.name, load.Utilisation, all, c.Held, all-c.Held
	s.QueueLength, s.QueuePeak, s.Refused, s.Expired = c.Waiting, c.QueuePeak, c.Refused-c.Expired, c.Expired
	s.Target, s.Surge, s.Min, s.Max, s.Overflow = p.target(), p.surge, p.low, p.high, p.cfg.Overflow
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

// demand returns how many requests have a place, how many have one or wait, and how many places
// there are, of which there is one at least. The caller holds mu.
func (p *Pool) demand() (held, requests, places int) {
	c := p.counted()
	requests = c.Held + c.Waiting
	if p.outside != nil {
		requests += p.outside()
	}
	return c.Held, requests, max(p.size, c.Held)
}

// requests returns how many requests run or wait, and how many places there are.
func (p *Pool) requests() (n, places int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, n, places = p.demand()
	return n, places
}

// use returns what routing and balance need. Demand is the number of requests that run
// or wait, per place.
func (p *Pool) use() store.HeijunkaPoolUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	held, requests, places := p.demand()
	perPlace := 1 / float64(places)
	return store.HeijunkaPoolUse{
		Name: p.name, Utilisation: float64(held) * perPlace, Demand: float64(requests) * perPlace,
		Workers: p.base, Min: p.low, Max: p.high,
	}
}

// spill is the utilisation above which a request goes to the least loaded pool of the
// list instead of the preferred one, because scaling is too slow for it.
const spill = 0.85

// route chooses the pool of one of p's requests. It is the pool of the affinity group
// that key hashes to, unless that is above spill and another one of the list has less
// demand.
func (p *Pool) route(key string) *Pool {
	group := *p.group.Load()
	to := group[0]
	if len(group) > 1 {
		to = rendezvous(group, key)
	}
	if len(p.list) == 1 {
		return to
	}
	s := to.use()
	if s.Utilisation <= spill {
		return to
	}
	least, demand := to, s.Demand
	for _, other := range p.list {
		if s := other.use(); s.Demand < demand {
			least, demand = other, s.Demand
		}
	}
	if least != to {
		p.spilled.Add(1)
	}
	return least
}

// rendezvous returns the pool with the highest weight for the key. A pool that is added
// or removed moves no keys between the others.
func rendezvous(pools []*Pool, key string) *Pool {
	return slices.MaxFunc(pools, func(a, b *Pool) int {
		return cmp.Compare(maphash.String(a.seed, key), maphash.String(b.seed, key))
	})
}

// prefer sets the affinity group; an empty one means the whole list.
func (p *Pool) prefer(names []string) {
	group := byName(p.list, names)
	if len(group) == 0 {
		group = p.list
	}
	p.group.Store(&group)
}

// preferred names the affinity group.
func (p *Pool) preferred() []string {
	var names []string
	for _, other := range *p.group.Load() {
		names = append(names, other.name)
	}
	return names
}

// checkAffinity returns why a group is invalid.
func (p *Pool) checkAffinity(names []string) error {
	for _, name := range names {
		if len(byName(p.list, []string{name})) == 0 {
			return fmt.Errorf("pool %q is not in its list", name)
		}
	}
	return nil
}

// byName finds pools; unknown names are left out.
func byName(pools []*Pool, names []string) []*Pool {
	return slices.DeleteFunc(slices.Clone(pools), func(p *Pool) bool { return !slices.Contains(names, p.name) })
}
