package heijunka

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// The messages.
type (
	change struct { // call: change the settings
		f func(s *store.LoadSettings) error
	}

	watchLoad struct{} // timer: compare the load with its levels
	expireNow struct{} // timer: a change ends
	loadNow   struct{} // timer: read the settings again

	loaded struct { // the settings were read
		settings store.LoadSettings
		err      error
	}
	changed struct { // the settings were written
		from     otp.From
		settings store.LoadSettings
		err      error
	}
)

const (
	// reloadDelay is how soon a failed read of the settings is tried again.
	reloadDelay = time.Second
	// settingsLimit bounds one transaction.
	settingsLimit = 5 * time.Second
)

var errSettingsTooSlow = errors.New("settings took too long")

// loadRegulator is the LoadRegulator actor. It owns the limits: it puts in force
// what is configured and saved, watches the load, and measures how fast tokens
// come back. A restart loses that rate and reads the settings anew; the gate and
// its tokens are not its own.
type loadRegulator struct {
	otp.Base
	h        *Heijunka
	drain    rate
	told     time.Time // when the level was told last
	loading  bool
	stale    bool // settings changed while they were being read
	noExpiry func()
}

// Init starts the watch and has the settings read.
func (r *loadRegulator) Init(c *otp.Ctx) error {
	r.drain = rate{at: time.Now(), count: r.returned()}
	c.SendEvery(r.h.cfg.Check, watchLoad{})
	r.h.bus.Listen(c, pubsub.SettingsChanged, pubsub.ListenerResumed)
	r.load(c)
	return nil
}

// HandleCall implements otp.Server.
func (r *loadRegulator) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case change:
		r.change(c, from, req.f)
		return otp.NoReply, nil
	default:
		return r.Base.HandleCall(c, from, req)
	}
}

// HandleCast implements otp.Server.
func (r *loadRegulator) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case pubsub.Event:
		if msg.Topic == pubsub.ListenerResumed || msg.Data == settingsKey {
			r.load(c)
		}
	default:
		r.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (r *loadRegulator) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case watchLoad:
		r.watch(c)
	case loadNow:
		r.load(c)
	case loaded:
		r.loaded(c, msg)
	case changed:
		r.changed(c, msg)
	case expireNow:
		r.apply(c, *r.h.saved.Load())
	default:
		r.Base.HandleInfo(c, msg)
	}
}

// returned is how many tokens have ever come back.
func (r *loadRegulator) returned() int64 { return r.h.gate.accepted() - r.h.gate.load.Load() }

// watch measures the drain rate and tells the level: at once when it has
// changed, and again and again while it is not normal.
func (r *loadRegulator) watch(c *otp.Ctx) {
	now := time.Now()
	r.h.gate.drained(r.drain.next(now, r.returned()))
	load, limits := int(r.h.gate.load.Load()), *r.h.gate.limits.Load()
	level := levelOf(load, limits)
	before := Level(r.h.level.Swap(int32(level)))
	if level != before || level != Normal && now.Sub(r.told) >= r.h.cfg.Remind {
		r.told = now
		r.tell(c, level, load, limits)
	}
	r.h.bus.Publish(pubsub.HeijunkaUpdated, r.h.Status())
}

func (r *loadRegulator) tell(c *otp.Ctx, level Level, load int, l Limits) {
	log := c.Logger()
	loudness := zerolog.InfoLevel
	if level != Normal {
		loudness = zerolog.WarnLevel
	}
	log.WithLevel(loudness).Stringer("level", level).Int("load", load).Int("soft_limit", l.Soft).Int("hard_limit", l.Hard).Msg("load")
	r.h.bus.Publish(pubsub.HeijunkaAlert, Alert{Level: level.String(), Load: load, Soft: l.Soft, Hard: l.Hard, At: time.Now()})
}

// load has the saved settings read.
func (r *loadRegulator) load(c *otp.Ctx) {
	if r.loading {
		r.stale = true
		return
	}
	r.loading, r.stale = true, false
	h := r.h
	c.Async(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeoutCause(ctx, settingsLimit, errSettingsTooSlow)
		defer cancel()
		s, err := h.settings.LoadSettings(ctx)
		return loaded{s, err}
	})
}

func (r *loadRegulator) loaded(c *otp.Ctx, l loaded) {
	r.loading = false
	switch {
	case l.err != nil:
		if store.CodeOf(l.err) != store.Unavailable && !errors.Is(l.err, errSettingsTooSlow) {
			log := c.Logger()
			log.Error().Err(l.err).Msg("settings of load levelling could not be read")
		}
		c.SendAfter(reloadDelay, loadNow{})
	case r.stale:
		r.load(c)
	default:
		r.apply(c, l.settings)
	}
}

// apply puts s in force and arms the timer for its next end.
func (r *loadRegulator) apply(c *otp.Ctx, s store.LoadSettings) {
	if r.noExpiry != nil {
		r.noExpiry()
		r.noExpiry = nil
	}
	now := time.Now()
	next := expire(&s, now)
	if !next.IsZero() {
		r.noExpiry = c.SendAfter(next.Sub(now), expireNow{})
	}
	for _, err := range r.h.apply(s) {
		log := c.Logger()
		log.Error().Err(err).Msg("a saved setting of load levelling is not usable")
	}
}

// change has the settings changed; they are in force once they are saved.
func (r *loadRegulator) change(c *otp.Ctx, from otp.From, f func(s *store.LoadSettings) error) {
	h := r.h
	c.Async(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeoutCause(ctx, settingsLimit, errSettingsTooSlow)
		defer cancel()
		s, err := h.settings.ChangeLoadSettings(ctx, func(s *store.LoadSettings) error {
			expire(s, time.Now())
			return f(s)
		})
		return changed{from, s, err}
	})
}

func (r *loadRegulator) changed(c *otp.Ctx, m changed) {
	if m.err != nil {
		m.from.Reply(nil, m.err)
		return
	}
	// Read back as well: of two changes at once only the database knows which was
	// the later.
	r.apply(c, m.settings)
	r.load(c)
	m.from.Reply(nil, nil)
}

// rate is a smoothed number of events per second.
type rate struct {
	at    time.Time
	count int64
	value float64
	known bool
}

// next takes a reading of the count and returns the rate.
func (r *rate) next(now time.Time, count int64) float64 {
	seconds := now.Sub(r.at).Seconds()
	if seconds <= 0 {
		return r.value
	}
	current := max(float64(count-r.count)/seconds, 0)
	if r.known {
		current = (r.value + current) / 2
	}
	r.at, r.count, r.value, r.known = now, count, current, true
	return current
}
