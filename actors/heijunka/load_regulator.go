package heijunka

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/settings"
	"takt/store"
)

const (
	checkEvery = time.Second
	// remind is how often a level that persists is logged again.
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

// LoadRegulator is the actor that owns the limits: it puts in force what is
// configured and saved, watches the load, and measures how fast tokens come back.
// A restart reads the settings again and loses no token, because the gate is the
// handle's.
func (h *Heijunka) LoadRegulator() otp.ChildSpec {
	return otp.ChildSpec{ID: "load_regulator", Server: func() otp.Server { return &loadRegulator{h: h} }}
}

type loadRegulator struct {
	otp.Base
	h        *Heijunka
	saved    settings.Watcher[store.HeijunkaSettings]
	level    string    // that was logged last
	logged   time.Time // when
	noExpiry func()
}

// Init starts the timer and begins to read the settings.
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

// apply puts s in force and starts the timer for the next setting that expires.
func (r *loadRegulator) apply(c *otp.Ctx, s store.HeijunkaSettings) {
	r.noExpiry()
	now := time.Now()
	s, next := s.Live(now)
	if !next.IsZero() {
		r.noExpiry = c.SendAfter(next.Sub(now), expireNow{})
	}
	for _, err := range r.h.apply(s) {
		c.Logger().Error().Err(err).Msg("ignoring a saved heijunka setting that is no longer valid")
	}
}

// watch measures the drain rate and logs the level: at once when it has changed,
// and again while it is not normal.
func (r *loadRegulator) watch(c *otp.Ctx) {
	r.h.gate.measure()
	g, _ := r.h.gate.status()
	loudness, repeat := zerolog.InfoLevel, false
	if g.Level != store.LoadNormal {
		loudness, repeat = zerolog.WarnLevel, time.Since(r.logged) >= remind
	}
	if g.Level != r.level || repeat {
		r.level, r.logged = g.Level, time.Now()
		c.Logger().WithLevel(loudness).Str("load_level", g.Level).Int("load", g.Load).
			Int("soft_limit", g.SoftLimit).Int("hard_limit", g.HardLimit).Msg("load")
	}
}
