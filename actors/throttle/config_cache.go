package throttle

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// maxCached is how many rates are remembered; beyond it all are read anew.
const maxCached = 50_000

// action names an action definition of a portal.
type action struct{ portal, id int64 }

// Cache is the handle of ConfigCache: the rates, as of 5 minutes ago at most.
// That there is none is never remembered. Whoever asks for a rate that is known
// reads it without the actor, which alone adds rates: every webhook asks.
type Cache struct {
	ref     otp.Ref
	known   sync.Map // action → cached
	db      Configs
	bus     pubsub.Bus
	portals *Portals
	cfg     Config
}

// Spec describes the actor to its supervisor.
func (k *Cache) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "config_cache", Server: func() otp.Server { return &configCache{k: k} }}
}

// Config returns the rate of an action. Errors: NotFound, Unavailable.
func (k *Cache) Config(ctx context.Context, portal, id int64) (store.ThrottleConfig, error) {
	if c, ok := k.remembered(action{portal, id}); ok && k.ref.Whereis() != nil { // else nobody hears of changes
		return c, nil
	}
	c, err := otp.CallWait[store.ThrottleConfig](ctx, k.ref, k.cfg.RestartGap, action{portal, id})
	return c, k.told(ctx, err)
}

// remembered returns a rate that is known and not too old.
func (k *Cache) remembered(a action) (store.ThrottleConfig, bool) {
	v, _ := k.known.Load(a)
	hit, ok := v.(cached)
	return hit.config, ok && time.Now().Before(hit.until)
}

// told makes the failure of a call one that a caller may see.
func (*Cache) told(ctx context.Context, err error) error {
	switch {
	case err == nil || store.CodeOf(err) != store.Internal:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return store.NewUnavailable("Throttle is restarting, try again", err)
	}
}

// forget drops what is remembered of an action, and what is just being read; it
// never blocks.
func (k *Cache) forget(a action) {
	k.known.Delete(a)
	otp.Cast(k.ref, dropped(a))
}

// The messages, besides an action that is asked for.
type (
	dropped action // cast: its rate has changed
	fetched struct {
		action
		config store.ThrottleConfig
		err    error
	}
)

// cached is a rate that is remembered.
type cached struct {
	config store.ThrottleConfig
	until  time.Time
}

// fetch is a rate that is being read.
type fetch struct {
	askers []otp.From
	stale  bool // it changed meanwhile: read it again
}

// configCache is the ConfigCache actor. A restart forgets what is remembered.
type configCache struct {
	otp.Base
	k       *Cache
	added   int // rates since all were forgotten
	fetches map[action]*fetch
}

// Init starts with nothing.
func (s *configCache) Init(c *otp.Ctx) error {
	s.fetches = map[action]*fetch{}
	s.k.known.Clear() // changes may have gone unheard
	s.k.bus.Listen(c, pubsub.ThrottleConfig, pubsub.ThrottleQueue, pubsub.ListenerResumed)
	return nil
}

// HandleCall answers from memory, or has the rate read.
func (s *configCache) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	a, ok := req.(action)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	if hit, ok := s.k.remembered(a); ok {
		return hit, nil
	}
	if f := s.fetches[a]; f != nil {
		f.askers = append(f.askers, from)
		return otp.NoReply, nil
	}
	s.fetches[a] = &fetch{askers: []otp.From{from}}
	s.fetch(c, a)
	return otp.NoReply, nil
}

func (s *configCache) fetch(c *otp.Ctx, a action) {
	k := s.k
	c.Async(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeoutCause(ctx, k.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		config, err := k.db.Config(ctx, a.portal, a.id)
		return fetched{a, config, err}
	})
}

// HandleCast implements otp.Server.
func (s *configCache) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case dropped:
		s.forget(action(msg))
	case pubsub.Event:
		s.notified(msg)
	default:
		s.Base.HandleCast(c, msg)
	}
}

// notified takes what some controller has changed.
func (s *configCache) notified(e pubsub.Event) {
	text, _ := e.Data.(string)
	switch e.Topic {
	case pubsub.ThrottleConfig:
		if a, ok := parseAction(text); ok {
			s.forget(a)
			s.k.portals.changed(a.portal, "")
		}
	case pubsub.ThrottleQueue:
		if portal, ok := portalOf(text); ok {
			s.k.portals.changed(portal, text)
		}
	default:
		s.forgetAll()
		s.k.portals.changedAll()
	}
}

// parseAction reads "portal:action".
func parseAction(text string) (action, bool) {
	p, id, _ := strings.Cut(text, ":")
	portal, err1 := strconv.ParseInt(p, 10, 64)
	definition, err2 := strconv.ParseInt(id, 10, 64)
	return action{portal, definition}, err1 == nil && err2 == nil
}

// portalOf reads the portal of a queue's name.
func portalOf(queue string) (int64, bool) {
	rest, ok := strings.CutPrefix(queue, "queue:")
	p, _, _ := strings.Cut(rest, ":")
	portal, err := strconv.ParseInt(p, 10, 64)
	return portal, ok && err == nil
}

func (s *configCache) forget(a action) {
	s.k.known.Delete(a)
	if f := s.fetches[a]; f != nil {
		f.stale = true
	}
}

func (s *configCache) forgetAll() {
	s.k.known.Clear()
	s.added = 0
	for _, f := range s.fetches {
		f.stale = true
	}
}

// HandleInfo implements otp.Server.
func (s *configCache) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case fetched:
		s.fetched(c, msg)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

func (s *configCache) fetched(c *otp.Ctx, m fetched) {
	f := s.fetches[m.action]
	if f.stale && m.err == nil {
		f.stale = false
		s.fetch(c, m.action)
		return
	}
	delete(s.fetches, m.action)
	if m.err == nil {
		if s.added++; s.added > maxCached {
			s.k.known.Clear()
			s.added = 1
		}
		s.k.known.Store(m.action, cached{m.config, time.Now().Add(s.k.cfg.CacheTTL)})
	} else if !store.IsUnavailable(m.err) && store.CodeOf(m.err) != store.NotFound {
		m.err = fmt.Errorf("looking a rate up: %w", m.err)
	}
	for _, from := range f.askers {
		from.Reply(m.config, m.err)
	}
}
