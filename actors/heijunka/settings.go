package heijunka

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// Settings stores what operators change. While the database is away both methods fail
// at once with store.Unavailable.
type Settings interface {
	HeijunkaSettings(ctx context.Context) (store.HeijunkaSettings, error)
	// ChangeHeijunkaSettings applies change, maybe more than once, in one transaction
	// and notifies all controllers. An error of change is returned, and nothing changes.
	ChangeHeijunkaSettings(ctx context.Context, change func(s *store.HeijunkaSettings) error) (store.HeijunkaSettings, error)
}

const (
	// settingsKey is the argument of settings:changed after they were saved.
	settingsKey = "heijunka"
	// maxChange is the longest that a change with an end may last.
	maxChange = 366 * 24 * time.Hour
	// restartGap is how long a change waits for the actor, if that restarts.
	restartGap = time.Second
)

// SetLimits changes the limits that are not nil, for the duration while, or permanently if
// that is 0. The limits are saved, so that they hold on all controllers and after a
// restart. Errors: InvalidArgument, Unavailable (they may have been saved or not).
func (h *Heijunka) SetLimits(ctx context.Context, soft, hard *int, reserved *float64, while time.Duration) error {
	return h.change(ctx, while, func(s *store.HeijunkaSettings, e store.Expiry) error {
		l := h.cfg.Limits
		if s.Limits != nil {
			l = *s.Limits
		}
		set(&l.Soft, soft)
		set(&l.Hard, hard)
		set(&l.Reserved, reserved)
		l.Expiry, s.Limits = e, &l
		return l.Validate()
	})
}

// set gives *v a new value, if there is one.
func set[T any](v, value *T) {
	if value != nil {
		*v = *value
	}
}

// ResetLimits puts the configured limits in force again.
func (h *Heijunka) ResetLimits(ctx context.Context) error {
	return h.change(ctx, 0, func(s *store.HeijunkaSettings, _ store.Expiry) error { s.Limits = nil; return nil })
}

// SetBounds changes the minimum and the maximum of a pool's places; nil leaves one as
// it is. Otherwise it works as SetLimits does.
func (h *Heijunka) SetBounds(ctx context.Context, pool string, low, high *int, while time.Duration) error {
	return h.changePool(ctx, pool, while, func(p *Pool, s *store.HeijunkaSettings, e store.Expiry) error {
		b, ok := s.Bounds[pool]
		if !ok {
			b = store.HeijunkaBounds{Min: p.cfg.Min, Max: p.cfg.Max}
		}
		set(&b.Min, low)
		set(&b.Max, high)
		b.Expiry = e
		s.Bounds[pool] = b
		return b.Validate()
	})
}

// SetAffinity changes the pools that a domain prefers: all of its list if pools is
// empty. Otherwise it works as SetLimits does.
func (h *Heijunka) SetAffinity(ctx context.Context, domain string, pools []string, while time.Duration) error {
	return h.changePool(ctx, domain, while, func(p *Pool, s *store.HeijunkaSettings, e store.Expiry) error {
		s.Affinity[domain] = store.HeijunkaAffinity{Pools: pools, Expiry: e}
		return p.checkAffinity(pools)
	})
}

// ResetBounds puts the configured bounds of a pool in force again.
func (h *Heijunka) ResetBounds(ctx context.Context, pool string) error {
	return h.changePool(ctx, pool, 0, func(_ *Pool, s *store.HeijunkaSettings, _ store.Expiry) error { delete(s.Bounds, pool); return nil })
}

// ResetAffinity makes a domain prefer its own pool again.
func (h *Heijunka) ResetAffinity(ctx context.Context, domain string) error {
	return h.changePool(ctx, domain, 0, func(_ *Pool, s *store.HeijunkaSettings, _ store.Expiry) error { delete(s.Affinity, domain); return nil })
}

// SetBurst turns the detection of bursts on or off. Otherwise it works as SetLimits
// does.
func (h *Heijunka) SetBurst(ctx context.Context, enabled bool, while time.Duration) error {
	return h.change(ctx, while, func(s *store.HeijunkaSettings, e store.Expiry) error {
		s.Burst = &store.HeijunkaBurst{Enabled: enabled, Expiry: e}
		return nil
	})
}

// changePool is change for settings of a pool. Errors: NotFound.
func (h *Heijunka) changePool(ctx context.Context, name string, while time.Duration, f func(p *Pool, s *store.HeijunkaSettings, e store.Expiry) error) error {
	p, err := h.pool(name)
	if err != nil {
		return err
	}
	return h.change(ctx, while, func(s *store.HeijunkaSettings, e store.Expiry) error { return f(p, s, e) })
}

// change applies f to the saved settings and puts the result in force. An error of f
// is returned as InvalidArgument.
func (h *Heijunka) change(ctx context.Context, while time.Duration, f func(s *store.HeijunkaSettings, e store.Expiry) error) error {
	if while < 0 || while > 0 && while < time.Second || while > maxChange {
		return store.NewError(store.InvalidArgument, "a change with an end lasts 1 second to 366 days")
	}
	var e store.Expiry
	if while > 0 {
		until := time.Now().Add(while).UTC()
		e.Until = &until
	}
	_, err := otp.CallWait[any](ctx, h.regulator, restartGap, change{func(s *store.HeijunkaSettings) error {
		err := f(s, e)
		if err != nil && store.CodeOf(err) == store.Internal {
			return store.NewError(store.InvalidArgument, err.Error())
		}
		return err
	}})
	switch {
	case err == nil || store.CodeOf(err) != store.Internal:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return store.NewUnavailable("Load levelling is restarting, try again", err)
}

// apply puts in force the configuration, overridden by s, of which nothing has expired.
// It leaves out settings that are no longer usable because the configuration has
// changed, and returns why.
func (h *Heijunka) apply(s store.HeijunkaSettings) (faults []error) {
	usable := func(err error) bool {
		if err != nil {
			faults = append(faults, err)
		}
		return err == nil
	}
	limits := h.cfg.Limits
	if s.Limits != nil && usable(s.Limits.Validate()) {
		limits = *s.Limits
	}
	h.gate.set(limits)
	for _, p := range h.pools {
		low, high, group := p.cfg.Min, p.cfg.Max, []string{p.name}
		if b, ok := s.Bounds[p.name]; ok && usable(b.Validate()) {
			low, high = b.Min, b.Max
		}
		if a, ok := s.Affinity[p.name]; ok && usable(p.checkAffinity(a.Pools)) {
			group = a.Pools
		}
		p.bound(low, high)
		p.prefer(group)
	}
	h.surge.update(func(k *store.HeijunkaBursts) {
		k.Enabled = s.Burst == nil || s.Burst.Enabled
	})
	h.saved.Store(&s)
	return faults
}
