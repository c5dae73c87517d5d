package heijunka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/limiter"
	"takt/store/metrics"
	"takt/store/tracing"
)

// Heijunka is the handle. It stays valid over restarts and may be used by any
// goroutine.
type Heijunka struct {
	cfg  Config
	deps Deps

	gate  *gate
	pools []*Pool
	surge surge
	saved atomic.Pointer[store.HeijunkaSettings]

	balance struct {
		mu    sync.Mutex // guards what follows
		last  time.Time  // when a place was moved
		known store.HeijunkaBalance
	}

	regulator otp.Ref
}

// Deps are Heijunka's dependencies.
type Deps struct {
	// Run runs fn as a process under the supervisor of a pool's requests and
	// returns its error when it has ended: request.Requests.Run.
	Run      func(ctx context.Context, pool string, w *store.Work, fn func(ctx context.Context) error) error
	Bus      pubsub.Bus
	Settings Settings
	// Outside counts, by pool, the requests that wait without a place. They count as
	// demand, like those that have one.
	Outside map[string]func() int
	// Metrics observe the waits for places. Defaults to unregistered metrics.
	Metrics *metrics.Metrics
}

// New returns the handle. It starts nothing. cfg must be valid.
func New(sys *otp.System, deps Deps, cfg Config) *Heijunka {
	cfg = cfg.withDefaults()
	if deps.Metrics == nil {
		deps.Metrics = metrics.New()
	}
	h := &Heijunka{cfg: cfg, deps: deps, gate: newGate(cfg.Limits), regulator: sys.Ref("takt/heijunka/load_regulator")}
	h.surge.known.Enabled, h.balance.known.Coefficient = true, 1
	for _, pc := range cfg.Pools {
		h.pools = append(h.pools, newPool(pc, cfg.Wait, h.gate))
	}
	for _, p := range h.pools {
		p.outside = deps.Outside[p.name]
		p.waited = deps.Metrics.PlaceWait.WithLabelValues(p.name)
		p.list = byName(h.pools, append(p.cfg.List, p.name))
		p.prefer([]string{p.name})
	}
	h.saved.Store(&store.HeijunkaSettings{})
	return h
}

// Do runs fn as a request: with a token, in a place, as a process of its own. It
// returns fn's error, after fn has returned. Token and place are given back however
// fn ends.
//
// fn's context ends with ctx, and when the process has to end. Other errors:
// store.Overloaded, store.Unavailable (the process could not be started, or was
// ended), a panic of fn as an error that wraps *otp.PanicError, ctx's cause.
func (h *Heijunka) Do(ctx context.Context, w store.Work, fn func(ctx context.Context) error) (err error) {
	own, err := h.pool(w.Domain)
	if err != nil {
		return fmt.Errorf("request of an unknown domain %q", w.Domain)
	}
	t := &token{own: own, work: w, since: time.Now()}
	// Also if levelling is off, because files take memory and connections.
	if own.cfg.Shared {
		place, err := h.await(ctx, t, w.Share)
		if err != nil {
			return err
		}
		// After the token is given back, because who gets the place needs one next.
		defer place.Release()
		t.since = time.Now()
	}
	if h.cfg.Off {
		return h.deps.Run(ctx, own.name, &t.work, fn)
	}
	if hold, err := h.gate.admit(t); err != nil {
		if hold > 0 {
			select {
			case <-time.After(hold):
			case <-ctx.Done():
			}
		}
		return err
	}
	defer h.gate.release(t)
	if !own.cfg.Shared {
		place, err := h.await(ctx, t, store.Share{})
		if err != nil {
			return err
		}
		defer place.Release()
	}
	p, begin := t.pool.Load(), time.Now()
	err = otp.ErrGoexit // unless fn returns
	defer func() { p.ended(time.Since(begin), w.Limit, err) }()
	return h.deps.Run(ctx, p.name, &t.work, fn)
}

// await waits for a place in the pool to which a request is routed.
func (h *Heijunka) await(ctx context.Context, t *token, who store.Share) (*limiter.Unit, error) {
	p, begin := t.own.route(t.work.Key), time.Now()
	_, wait := tracing.Start(ctx, trace.SpanKindInternal, "wait for a place")
	place, err := p.places.Take(ctx, who, nil)
	if wait.IsRecording() {
		wait.SetAttributes(attribute.String("takt.pool", p.name), attribute.String("takt.domain", t.work.Domain))
	}
	tracing.End(wait, err)
	if err == nil {
		t.pool.Store(p)
		waited := time.Duration(0) // which a histogram counts most cheaply
		if place.Waited() {
			waited = time.Since(begin)
		}
		metrics.Observe(ctx, p.waited, waited)
	}
	return place, err
}

// outcome reports whether err is a defect, and whether the request's process crashed.
// Clients' mistakes and outages are not defects, because they don't reflect a
// pool's health.
func outcome(err error) (failed, crashed bool) {
	_, panicked := errors.AsType[*otp.PanicError](err)
	crashed = panicked || errors.Is(err, otp.ErrGoexit) || errors.Is(err, otp.ErrKilled)
	gone := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return crashed || store.CodeOf(err) == store.Internal && !gone, crashed
}

// pool returns a pool by name, or NotFound.
func (h *Heijunka) pool(name string) (*Pool, error) {
	if i := slices.IndexFunc(h.pools, func(p *Pool) bool { return p.name == name }); i >= 0 {
		return h.pools[i], nil
	}
	return nil, store.NewError(store.NotFound, "No such pool")
}

// Scale changes the size of a pool on this controller by that many places, or to that
// many if by is nil. Automatic scaling goes on from there. Errors: NotFound,
// InvalidArgument, Conflict (outside of its bounds, or scaled a moment ago).
func (h *Heijunka) Scale(pool string, by, to *int) error {
	p, err := h.pool(pool)
	switch {
	case err != nil:
		return err
	case by != nil:
		return p.scale(*by)
	case to != nil && *to > 0:
		return p.scale(*to - p.use().Workers)
	}
	return store.NewError(store.InvalidArgument, "workers must be at least 1")
}

// Status returns the current state. It sends no messages.
func (h *Heijunka) Status() store.HeijunkaStatus {
	gate, overdue := h.gate.status()
	h.balance.mu.Lock()
	s := store.HeijunkaStatus{Enabled: !h.cfg.Off, Regulator: gate, Balance: h.balance.known}
	h.balance.mu.Unlock()
	h.surge.update(func(k *store.HeijunkaBursts) { s.Burst = *k })
	s.Balance.Affinity, s.Balance.Spilled = map[string][]string{}, map[string]int64{}
	for _, p := range h.pools {
		ps := p.status()
		ps.Overdue = overdue[p]
		s.Pools = append(s.Pools, ps)
		s.Balance.Affinity[p.name], s.Balance.Spilled[p.name] = p.preferred(), p.spilled.Load()
	}
	s.Changed, _ = json.Marshal(h.saved.Load()) // plain values
	return s
}

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
