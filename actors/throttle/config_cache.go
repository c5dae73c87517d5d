package throttle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

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
