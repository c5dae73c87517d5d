package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"takt/actors/otp"
	"takt/actors/pubsub"
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

// cacheTTL is how long a rate may be cached.
const cacheTTL = 5 * time.Minute

// action names an action definition of a portal.
type action struct{ portal, id int64 }

// Cache is the handle of ConfigCache. It caches rates for at most 5 minutes. It does not
// cache that a rate is missing, so it never has more entries than the database. Because every
// webhook needs a rate, callers read and add entries themselves; the actor only subscribes to
// changes. Safe for concurrent use.
type Cache struct {
	ref     otp.Ref
	db      Store
	bus     pubsub.Bus
	portals *Portals
	known   sync.Map     // action → cached
	changes atomic.Int64 // grows with every change of a rate
	reads   singleflight.Group
}

// cached is a cached rate.
type cached struct {
	config store.ThrottleConfig
	until  time.Time
}

// Spec describes the actor to its supervisor.
func (k *Cache) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "config_cache", Server: func() otp.Server { return &configCache{k: k} }}
}

// Config returns the rate of an action. Errors: NotFound, Unavailable.
func (k *Cache) Config(ctx context.Context, portal, id int64) (store.ThrottleConfig, error) {
	a := action{portal, id}
	subscribed := k.ref.Whereis() != nil // without a subscription changes go unnoticed
	known, _ := k.known.Load(a)
	if hit, ok := known.(cached); ok && subscribed && time.Now().Before(hit.until) {
		return hit.config, nil
	}
	before := k.changes.Load()
	// Concurrent callers share one read. The key has the number of changes, so a read
	// that began before a change is not shared.
	v, err, _ := k.reads.Do(fmt.Sprint(portal, ":", id, ":", before), func() (any, error) {
		ctx, cancel := transaction(context.WithoutCancel(ctx))
		defer cancel()
		return k.db.Config(ctx, portal, id)
	})
	config, _ := v.(store.ThrottleConfig)
	if err != nil || !subscribed {
		return config, err
	}
	k.known.Store(a, cached{config, time.Now().Add(cacheTTL)})
	if k.changes.Load() != before {
		k.known.Delete(a) // the rate may have changed during the read
	}
	return config, nil
}

// forget drops a cached rate, and keeps the results of running reads from being cached.
func (k *Cache) forget(a action) {
	k.changes.Add(1)
	k.known.Delete(a)
}

func (k *Cache) forgetAll() {
	k.changes.Add(1)
	k.known.Clear()
}

// configCache is the ConfigCache actor. A restart drops all cached rates, because a change
// may have been missed.
type configCache struct {
	otp.Base
	k *Cache
}

// Init subscribes to changes.
func (s *configCache) Init(c *otp.Ctx) error {
	s.k.bus.Listen(c, pubsub.ThrottleConfig, pubsub.ThrottleQueue, pubsub.ListenerResumed)
	s.k.forgetAll()
	return nil
}

// HandleCast handles changes that this or another controller has published.
func (s *configCache) HandleCast(c *otp.Ctx, msg any) {
	e, ok := msg.(pubsub.Event)
	if !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	text, _ := e.Data.(string)
	switch e.Topic {
	case pubsub.ThrottleConfig:
		if a, ok := parseAction(text); ok {
			s.k.forget(a)
			s.k.portals.changed(a.portal, "")
		}
	case pubsub.ThrottleQueue:
		if portal, ok := portalOf(text); ok {
			s.k.portals.changed(portal, text)
		}
	default: // listener:resumed: changes may have been missed
		s.k.forgetAll()
		s.k.portals.changedAll()
	}
}

// parseAction reads "portal:action".
func parseAction(text string) (a action, ok bool) {
	_, err := fmt.Sscanf(text, "%d:%d", &a.portal, &a.id)
	return a, err == nil
}

// portalOf parses the portal from a queue's name.
func portalOf(queue string) (portal int64, ok bool) {
	_, err := fmt.Sscanf(queue, "queue:%d", &portal)
	return portal, err == nil
}
