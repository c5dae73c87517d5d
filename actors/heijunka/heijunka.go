package heijunka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// Runner runs a request in a process of its own and returns when it has ended;
// request.Requests is one. end ends fn's context.
type Runner interface {
	DoWith(ctx context.Context, route string, fn func(ctx context.Context, end context.CancelCauseFunc) error) error
}

// Work describes a request.
type Work struct {
	// Domain is what it competes with; an unknown one is a defect and fails.
	Domain string
	// Route and ID are shown to operators.
	Route, ID string
	// Key is what it is about: requests with the same key go to the same pool, if
	// there is a choice.
	Key string
}

// Heijunka is the handle. It stays valid over restarts and may be used by any
// goroutine.
type Heijunka struct {
	cfg      Config
	sys      *otp.System
	run      Runner
	bus      pubsub.Bus
	settings Settings

	gate    *gate
	pools   []*Pool
	domains map[string]*domain
	surge   *surge
	moves   moves

	level       atomic.Int32            // the last Level that was told
	coefficient atomic.Uint64           // of balance, bits of a float64
	baseline    atomic.Pointer[trigger] // demand and baseline of the last sample
	saved       atomic.Pointer[store.LoadSettings]

	regulator, balancer, burster otp.Ref
}

// Pool is the handle of one pool.
type Pool struct {
	h     *Heijunka
	name  string
	seed  uint64
	lanes *lanes
	asked atomic.Bool // the manager knows that requests wait

	workers, manager otp.Ref
}

// Deps are what Heijunka works with but does not make.
type Deps struct {
	// Requests runs what was admitted.
	Requests Runner
	Bus      pubsub.Bus
	// Settings keeps what operators change.
	Settings Settings
}

// New returns the handle for the actors that Spec describes. It starts nothing.
// cfg must be valid.
func New(sys *otp.System, deps Deps, cfg Config) *Heijunka {
	cfg = cfg.withDefaults()
	h := &Heijunka{
		cfg: cfg, sys: sys, run: deps.Requests, bus: deps.Bus, settings: deps.Settings,
		gate: newGate(cfg.Limits), domains: map[string]*domain{}, surge: newSurge(cfg.Burst),
		regulator: sys.Ref(cfg.Name + "/load_regulator"),
		balancer:  sys.Ref(cfg.Name + "/balancer"),
		burster:   sys.Ref(cfg.Name + "/burst_handler"),
	}
	for _, pc := range cfg.Pools {
		h.pools = append(h.pools, h.newPool(pc))
	}
	for _, dc := range cfg.Domains {
		d := &domain{DomainConfig: dc, list: byName(h.pools, dc.Pools)}
		d.prefer(byName(h.pools, dc.Affinity))
		h.domains[dc.Name] = d
	}
	h.coefficient.Store(math.Float64bits(1))
	h.baseline.Store(&trigger{})
	h.saved.Store(&store.LoadSettings{})
	return h
}

func (h *Heijunka) newPool(cfg PoolConfig) *Pool {
	path := h.cfg.Name + "/pool_sup/" + cfg.Name
	p := &Pool{
		h: h, name: cfg.Name, seed: mix(hash(cfg.Name)), lanes: newLanes(cfg, h.cfg.Health.Window, h.gate.born),
		workers: h.sys.Ref(path + "/workers"), manager: h.sys.Ref(path + "/manager"),
	}
	p.lanes.hungry, p.lanes.orphaned = p.feed, func() { otp.Cast(p.manager, bereaved{}) }
	return p
}

// feed tells the manager that requests wait, unless it has yet to hear of it.
func (p *Pool) feed() {
	if !p.asked.Swap(true) && !otp.Cast(p.manager, hungry{}) {
		p.asked.Store(false) // the next one looks by itself
	}
}

// Do runs fn as a request: with a token, in a slot, in a process of its own. It
// returns fn's error, and never while fn runs. Token and slot are given back
// before it returns, however fn ends.
//
// fn's context ends when ctx does, when the process is told to stop and when the
// slot's worker crashes. Errors beside fn's: [*OverloadError] (an Overloaded),
// store.Unavailable (no worker, no process; or one of them ended under fn), a
// panic of fn as an error that wraps *otp.PanicError, ctx's cause.
func (h *Heijunka) Do(ctx context.Context, w Work, fn func(ctx context.Context) error) error {
	d := h.domains[w.Domain]
	switch {
	case d == nil:
		return fmt.Errorf("request of an unknown domain %q", w.Domain)
	case h.cfg.Off:
		return h.run.DoWith(ctx, w.Route, func(ctx context.Context, _ context.CancelCauseFunc) error { return fn(ctx) })
	}
	now := h.gate.now()
	token, rule, load, limit := h.gate.admit(d, w.ID, w.Route, now)
	if rule != "" {
		return h.overload(rule, load, limit)
	}
	defer token.Release()
	return h.serve(ctx, d.route(w.Key, h.cfg.Spill), w.Route, now, fn)
}

// serve runs fn in a slot of p.
func (h *Heijunka) serve(
	ctx context.Context, p *Pool, route string, now time.Duration, fn func(ctx context.Context) error,
) (err error) {
	slot, err := p.checkout(ctx, now)
	if err != nil {
		return err
	}
	failed := true // unless we get to know better
	defer func() {
		if _, lost := p.lanes.giveBack(slot, failed); lost {
			err = afterLoss(err)
		}
	}()
	err = h.run.DoWith(ctx, route, func(ctx context.Context, end context.CancelCauseFunc) error {
		p.lanes.bind(slot, end)
		return fn(ctx)
	})
	failed = isFailure(err)
	return err
}

// isFailure tells defects from refusals: what a client did wrong, and weather,
// say nothing about a pool's health.
func isFailure(err error) bool {
	if err == nil || store.CodeOf(err) != store.Internal {
		return false
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// Metadata describes who asks for a token.
type Metadata struct {
	// ID and Route are shown to operators.
	ID, Route string
	// Holder, if set, is the process whose end gives the token back.
	Holder *otp.Proc
}

// RequestAdmission hands out a token, or an [*OverloadError] at once. [Heijunka.Do]
// does this by itself.
func (h *Heijunka) RequestAdmission(domain string, m Metadata) (Token, error) {
	d := h.domains[domain]
	if d == nil {
		return Token{}, fmt.Errorf("admission to an unknown domain %q", domain)
	}
	t, rule, load, limit := h.gate.admit(d, m.ID, m.Route, h.gate.now())
	if rule != "" {
		return Token{}, h.overload(rule, load, limit)
	}
	if m.Holder != nil {
		t.hold(m.Holder)
	}
	return t, nil
}

// Release gives a token back. It reports whether that was still to be done.
func (h *Heijunka) Release(t Token) bool { return t.Release() }

// Route returns the pool that a request of the domain goes to now; nil if the
// domain is unknown.
func (h *Heijunka) Route(domain, key string) *Pool {
	d := h.domains[domain]
	if d == nil {
		return nil
	}
	return d.route(key, h.cfg.Spill)
}

// Pool returns a pool by name; nil if there is none.
func (h *Heijunka) Pool(name string) *Pool {
	for _, p := range h.pools {
		if p.name == name {
			return p
		}
	}
	return nil
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// GetWorker returns a slot of the pool, waiting its turn for one. holder, if not
// nil, is the process whose end gives it back. Errors as of [Heijunka.Do].
func (p *Pool) GetWorker(ctx context.Context, holder *otp.Proc) (Slot, error) {
	s, err := p.checkout(ctx, p.lanes.now())
	if err != nil || holder == nil {
		return s, err
	}
	again := s
	s.watch = &watch{cancel: holder.Watch(func(error) { again.Return(true) })}
	return s, nil
}

// ReturnWorker gives a slot back. It reports whether that was still to be done.
func (p *Pool) ReturnWorker(s Slot) bool { return s.Return(false) }

// OverloadError says why a request was refused and when to try again. It is a
// store.Error with code Overloaded.
type OverloadError struct {
	Failure *store.Error
	// Rule is one of the Rule constants; Load was as high as Limit.
	Rule        string
	Load, Limit int
}

func (e *OverloadError) Error() string { return e.Failure.Error() }

// Unwrap gives the store.Error.
func (e *OverloadError) Unwrap() error { return e.Failure }

// Overload gives rule, load and limit, for whoever tells a client.
func (e *OverloadError) Overload() (rule string, load, limit int) { return e.Rule, e.Load, e.Limit }

// retryBounds are the least and the most that a refused client is told to wait.
const (
	retryLeast = time.Second
	retryMost  = time.Minute
)

// overload makes the refusal of a request.
func (h *Heijunka) overload(rule string, load, limit int) error {
	e := store.NewError(store.Overloaded, fmt.Sprintf("Overloaded, try again later (%s limit, %d of %d)", rule, load, limit))
	e.RetryAfter = h.retryAfter()
	return &OverloadError{Failure: e, Rule: rule, Load: load, Limit: limit}
}

// retryAfter is how long the load takes to fall out of the alert, at the rate at
// which tokens come back.
func (h *Heijunka) retryAfter() time.Duration {
	above := float64(h.gate.load.Load()) - float64(h.gate.limits.Load().Alert())
	rate := h.gate.drainRate()
	switch {
	case above <= 0:
		return retryLeast
	case rate <= 0:
		return 5 * retryLeast
	}
	seconds := min(above/rate, retryMost.Seconds())
	return max(time.Duration(seconds*float64(time.Second)), retryLeast)
}
