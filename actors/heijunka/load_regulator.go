package heijunka

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/settings"
	"takt/store"
)

const (
	checkEvery = time.Second
	// remind is how often a level that holds on is told again.
	remind = 5 * time.Second
)

// The messages.
type (
	change struct {
		f func(s *store.HeijunkaSettings) error
	} // call: change the settings
	watchLoad struct{} // timer: compare the load with its levels
	expireNow struct{} // timer: a change ends
)

// loadRegulator is the LoadRegulator actor. It owns the limits: it puts in force
// what is configured and saved, watches the load, and measures how fast tokens
// come back. A restart reads the settings anew; the gate and its tokens are not
// its own.
type loadRegulator struct {
	otp.Base
	h        *Heijunka
	saved    settings.Watcher[store.HeijunkaSettings]
	level    string    // that was told last
	told     time.Time // when
	noExpiry func()
}

// Init starts the watch and has the settings read.
func (r *loadRegulator) Init(c *otp.Ctx) error {
	r.level, r.noExpiry = store.LoadNormal, func() {}
	c.SendEvery(checkEvery, watchLoad{})
	r.saved = settings.Watcher[store.HeijunkaSettings]{Key: settingsKey, Read: r.h.deps.Settings.HeijunkaSettings, Apply: r.apply}
	r.saved.Start(c, r.h.deps.Bus)
	return nil
}

// HandleCall implements otp.Server.
func (r *loadRegulator) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	m, ok := req.(change)
	if !ok {
		return r.Base.HandleCall(c, from, req)
	}
	kept := r.h.deps.Settings
	return r.saved.Change(c, from, func(ctx context.Context) (store.HeijunkaSettings, error) {
		return kept.ChangeHeijunkaSettings(ctx, func(s *store.HeijunkaSettings) error {
			*s, _ = s.Live(time.Now())
			return m.f(s)
		})
	})
}

// HandleCast implements otp.Server.
func (r *loadRegulator) HandleCast(c *otp.Ctx, msg any) {
	if !r.saved.Handle(c, msg) {
		r.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (r *loadRegulator) HandleInfo(c *otp.Ctx, msg any) {
	switch msg.(type) {
	case watchLoad:
		r.watch(c)
	case expireNow:
		r.apply(c, *r.h.saved.Load())
	default:
		if !r.saved.Handle(c, msg) {
			r.Base.HandleInfo(c, msg)
		}
	}
}

// apply puts s in force and arms the timer for its next end.
func (r *loadRegulator) apply(c *otp.Ctx, s store.HeijunkaSettings) {
	r.noExpiry()
	now := time.Now()
	s, next := s.Live(now)
	if !next.IsZero() {
		r.noExpiry = c.SendAfter(next.Sub(now), expireNow{})
	}
	for _, err := range r.h.apply(s) {
		log := c.Logger()
		log.Error().Err(err).Msg("a saved setting of load levelling is not usable")
	}
}

// watch measures the drain rate and tells the level: at once when it has changed,
// and again while it is not normal.
func (r *loadRegulator) watch(c *otp.Ctx) {
	now, h := time.Now(), r.h
	h.gate.measure()
	s := h.Status()
	h.deps.Bus.Publish(pubsub.HeijunkaUpdated, s)
	g := s.Regulator
	if before := r.level; g.Level != before || g.Level != store.LoadNormal && now.Sub(r.told) >= remind {
		r.level, r.told = g.Level, now
		loudness := map[bool]zerolog.Level{true: zerolog.InfoLevel, false: zerolog.WarnLevel}[g.Level == store.LoadNormal]
		log := c.Logger()
		log.WithLevel(loudness).Str("level", g.Level).Int("load", g.Load).Int("soft_limit", g.SoftLimit).Int("hard_limit", g.HardLimit).Msg("load")
		h.deps.Bus.Publish(pubsub.HeijunkaAlert, g)
	}
}
