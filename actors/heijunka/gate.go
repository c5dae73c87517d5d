package heijunka

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"takt/store"
	"takt/store/limiter"
)

// The rules by which requests are refused.
const (
	RuleRegular = "regular" // regular domains can't use the reserve
	RuleHard    = "hard"
	RuleQueue   = "queue" // too many already wait for a place
	RuleWait    = "wait"  // no place became free in time
	// RuleTransfers is that of the places of transfers: none is free, and too many wait or none
	// became free in time.
	RuleTransfers = "transfers"
)

// gate counts the admitted requests and keeps a table of their tokens. It belongs to
// the handle, so that it outlives every actor.
type gate struct {
	mu       sync.Mutex // guards what follows
	limits   store.HeijunkaLimits
	load     int   // tokens in the table
	table    token // the ends of a ring of tokens, in order of admission
	accepted int64
	rejected [2]int64 // by RuleRegular, by RuleHard
	drain    float64  // tokens that come back per second
	returned int64    // tokens that had come back at the last measurement
	slot     int64    // time slot of the last refusal
	refused  int      // refusals in it
}

// token is the permission to be admitted. It belongs to one call of Do.
type token struct {
	own   *Pool // its domain's
	work  store.Work
	since time.Time
	pool  atomic.Pointer[Pool] // where it has a place; nil while it waits

	prev, next *token // guarded by the gate's mutex
}

func newGate(l store.HeijunkaLimits) *gate {
	g := &gate{limits: l}
	g.table.prev, g.table.next = &g.table, &g.table
	return g
}

// set changes the limits. Admitted requests keep their tokens.
func (g *gate) set(l store.HeijunkaLimits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l
}

// After flood refusals in a slot of time, each further one is delayed by holdBack,
// because clients that retry at once would take the processor from admitted requests.
const flood, slot, holdBack = 50, 100 * time.Millisecond, 250 * time.Millisecond

// admit puts t into the table, or refuses it with store.Overloaded. The caller answers
// a refusal after hold.
func (g *gate) admit(t *token) (hold time.Duration, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit, rule, rejected := g.limits.Regular(), RuleRegular, &g.rejected[0]
	if t.own.cfg.Priority {
		limit, rule, rejected = g.limits.Hard, RuleHard, &g.rejected[1]
	}
	if g.load >= limit {
		*rejected++
		if now := t.since.UnixNano() / int64(slot); now != g.slot {
			g.slot, g.refused = now, 0
		}
		if g.refused++; g.refused > flood {
			hold = holdBack
		}
		return hold, g.overload(rule, g.load, limit)
	}
	g.load++
	g.accepted++
	t.prev, t.next = g.table.prev, &g.table
	t.prev.next, t.next.prev = t, t
	return 0, nil
}

// release takes t out of the table.
func (g *gate) release(t *token) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.load--
	t.prev.next, t.next.prev = t.next, t.prev
}

// measure updates the rate at which tokens come back. It is called every second.
func (g *gate) measure() {
	g.mu.Lock()
	defer g.mu.Unlock()
	returned := g.accepted - int64(g.load)
	g.drain = (g.drain + float64(returned-g.returned)) / 2
	g.returned = returned
}

// overload is the refusal of a request. RetryAfter is how long the load takes to
// fall below the alert, at the rate at which tokens come back: a second at least, a
// minute at most.
func (g *gate) overload(rule string, load, limit int) error {
	wait := 1.0
	if above := float64(g.load - g.limits.Alert()); above > 0 {
		wait = 5 // if nothing comes back
		if g.drain > 0 {
			wait = min(max(above/g.drain, 1), 60)
		}
	}
	return &store.Error{
		Code: store.Overloaded, Message: fmt.Sprintf("Overloaded, try again later (%s limit, %d of %d)", rule, load, limit),
		RetryAfter: time.Duration(wait * float64(time.Second)), Overload: &store.Overload{Rule: rule, Load: load, Limit: limit},
	}
}

// crowded is the refusal of a request that has a token and gets no place.
func (g *gate) crowded(why limiter.Reason, load, limit int) error {
	rule := RuleWait
	if why == limiter.Crowded {
		rule = RuleQueue
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.overload(rule, load, limit)
}

// status describes the gate, and counts the requests past their time limit by pool.
func (g *gate) status() (s store.HeijunkaRegulator, overdue map[*Pool]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s = store.HeijunkaRegulator{
		Level: g.limits.Level(g.load), Load: g.load, SoftLimit: g.limits.Soft, HardLimit: g.limits.Hard, Reserved: g.limits.Reserved,
		RegularLimit: g.limits.Regular(), AlertLimit: g.limits.Alert(), Accepted: g.accepted,
		RejectedRegular: g.rejected[0], RejectedHard: g.rejected[1], DrainRate: g.drain, Oldest: []store.HeijunkaHolder{},
	}
	overdue = map[*Pool]int{}
	for t := g.table.next; t != &g.table; t = t.next {
		age := time.Since(t.since)
		late := t.work.Limit > 0 && age > t.work.Limit
		if late {
			overdue[t.pool.Load()]++
		}
		if len(s.Oldest) < 10 {
			s.Oldest = append(s.Oldest, store.HeijunkaHolder{
				Domain: t.own.name, Route: t.work.Route, RequestID: t.work.ID, AgeMS: age.Milliseconds(), Overdue: late,
			})
		}
	}
	return s, overdue
}
