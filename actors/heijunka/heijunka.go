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
		metrics.Observe(ctx, p.waited, time.Since(begin))
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
