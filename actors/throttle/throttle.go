package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/actors/otp"
	"takt/store"
	"takt/store/metrics"
)

// Throttle is the handle of the subsystem and its parts. Handles stay valid over restarts
// and are safe for concurrent use.
type Throttle struct {
	Cache   *Cache
	Tokens  *Tokens
	Batcher *Batcher
	Jobs    *Jobs
	Portals *Portals

	db      Store
	metrics *figures
}

// New returns the handles for the actors that their Specs describe. It starts
// nothing.
func New(sys *otp.System, deps Deps, cfg Config) *Throttle {
	call := 30 * time.Second
	if deps.HubSpot != nil {
		call = deps.HubSpot.Timeout()
	}
	cfg = cfg.withDefaults(call)
	m := newFigures()
	ref := func(id string) otp.Ref { return sys.Ref(root + "/" + id) }
	t := &Throttle{db: deps.Store, metrics: m}
	t.Tokens = &Tokens{
		ref: ref("oauth_refresh_lock"), db: deps.Store, hs: deps.HubSpot, app: deps.App, keys: deps.Keys, metrics: m, call: cfg.call,
	}
	t.Portals = &Portals{
		sys: sys, sup: ref("portal_queue_sup"), db: deps.Store, hs: deps.HubSpot, tokens: t.Tokens, metrics: m, cfg: cfg,
	}
	t.Cache = &Cache{ref: ref("config_cache"), db: deps.Store, bus: deps.Bus, portals: t.Portals}
	t.Portals.started = t.Resume
	t.Batcher = &Batcher{ref: ref("action_batcher"), db: deps.Store, portals: t.Portals, metrics: m, most: cfg.MaxBuffered}
	m.Read(func(show metrics.Show) { show("takt_throttle_actions_buffered", t.Batcher.waiting()) })
	t.Jobs = &Jobs{db: deps.Store, portals: t.Portals, metrics: m, cfg: cfg}
	return t
}

// Metrics returns the metrics for registration.
func (t *Throttle) Metrics() prometheus.Collector { return t.metrics }

// Resume makes this controller serve all queues that have actions now. Without it, the queues'
// jobs do that up to a minute later.
func (t *Throttle) Resume() { otp.Cast(t.Batcher.ref, resume{}) }

// Backlog returns the current backlog.
func (t *Throttle) Backlog(ctx context.Context) (Backlog, error) {
	n, oldest, err := t.db.Backlog(ctx)
	return Backlog{n, oldest}, err
}

// Backlog is how many actions wait, and for how long the oldest has waited.
type Backlog struct {
	Actions int
	Oldest  time.Duration
}

// Accept makes an action durable and returns its state. Errors: InvalidArgument (the
// action has no rate), Unavailable.
func (t *Throttle) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	_, err := t.Cache.Config(ctx, a.Queue.PortalID, a.Queue.ActionID)
	if store.CodeOf(err) == store.NotFound {
		t.metrics.refused.WithLabelValues("unknown").Inc()
		return store.Acceptance{}, bad("No configuration for this portal and action")
	}
	if err != nil {
		return store.Acceptance{}, err
	}
	return t.Batcher.Accept(ctx, a)
}

// PutConfig sets a rate, which also applies to waiting actions. Errors: InvalidArgument,
// Unavailable.
func (t *Throttle) PutConfig(ctx context.Context, c store.ThrottleConfig) (store.ThrottleConfig, error) {
	if err := c.Validate(); err != nil {
		return c, err
	}
	saved, err := t.db.PutConfig(ctx, c)
	// The cache is cleared even after an error, because the rate may have been saved.
	t.Cache.forget(action{c.PortalID, c.ActionID})
	t.Portals.changed(c.PortalID, "")
	if err == nil && t.Portals.proc(c.PortalID) == nil {
		// makeRoom may have ended the PortalQueue that would serve the waiting actions.
		if busy, err := t.db.BusyQueues(ctx, c.PortalID, c.ActionID, restoreLimit); err == nil {
			t.Portals.Resume(ctx, busy)
		} // else the queues' jobs serve them
	}
	return saved, err
}

// DeleteConfig deletes a rate. New actions are then refused; waiting ones keep it. Errors:
// NotFound, Unavailable.
func (t *Throttle) DeleteConfig(ctx context.Context, portal, id int64) error {
	err := t.db.DeleteConfig(ctx, portal, id)
	t.Cache.forget(action{portal, id})
	return err
}

// Look makes this controller serve a queue now, because an operator has changed it. Error:
// NotFound for an invalid name.
func (t *Throttle) Look(ctx context.Context, queue string) error {
	portal, ok := portalOf(queue)
	if !ok {
		return store.NewError(store.NotFound, "Queue not found")
	}
	t.Portals.changed(portal, queue)
	return t.Portals.Wake(ctx, portal, map[string]int{queue: 0})
}

// call calls an actor. If the actor is restarting, it waits up to restartGap for it. Errors of
// the call itself become Unavailable.
func call[R any](ctx context.Context, ref otp.Ref, req any) (R, error) {
	reply, err := otp.CallWait[R](ctx, ref, restartGap, req)
	if err == nil || store.CodeOf(err) != store.Internal {
		return reply, err
	}
	_, down := errors.AsType[*otp.DownError](err)
	switch {
	case errors.Is(err, otp.ErrOverload):
		err = errFull()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case down || errors.Is(err, otp.ErrTimeout):
		err = errRestarting(err)
	}
	return reply, err
}

func errRestarting(cause error) error {
	return store.NewUnavailable("Throttle is restarting, try again", cause)
}

func errFull() error {
	return store.NewUnavailable("Too many actions wait to be written, try again", nil)
}

func bad(text string) error { return store.NewError(store.InvalidArgument, text) }
