package heijunka

import (
	"context"
	"errors"
	"time"

	"takt/store"
)

// maxChange is the longest that a change with an end may last.
const maxChange = 366 * 24 * time.Hour

// SetLimits changes the limits that are not nil, for a while if that is not 0.
// What is in force is saved, so that it holds on all controllers and after a
// restart. Errors: InvalidArgument, Unavailable (it may have been saved or not).
func (h *Heijunka) SetLimits(ctx context.Context, soft, hard *int, reserved *float64, while time.Duration) error {
	return h.change(ctx, while, func(s *store.LoadSettings, e store.Expiry) error {
		l := h.limitsOf(s)
		if soft != nil {
			l.Soft = *soft
		}
		if hard != nil {
			l.Hard = *hard
		}
		if reserved != nil {
			l.Reserved = *reserved
		}
		s.Limits = &store.LoadLimits{Soft: l.Soft, Hard: l.Hard, Reserved: l.Reserved, Expiry: e}
		return l.Validate()
	})
}

// SetSoftLimit changes the soft limit only.
func (h *Heijunka) SetSoftLimit(ctx context.Context, n int) error {
	return h.SetLimits(ctx, &n, nil, nil, 0)
}

// SetHardLimit changes the hard limit only.
func (h *Heijunka) SetHardLimit(ctx context.Context, n int) error {
	return h.SetLimits(ctx, nil, &n, nil, 0)
}

// ResetLimits puts the configured limits in force again.
func (h *Heijunka) ResetLimits(ctx context.Context) error {
	return h.change(ctx, 0, func(s *store.LoadSettings, _ store.Expiry) error { s.Limits = nil; return nil })
}

// limitsOf are the limits in force when s is what is saved.
func (h *Heijunka) limitsOf(s *store.LoadSettings) Limits {
	if s.Limits == nil {
		return h.cfg.Limits
	}
	return Limits{Soft: s.Limits.Soft, Hard: s.Limits.Hard, Reserved: s.Limits.Reserved}
}

// SetBounds changes the fewest and the most workers of a pool; nil leaves one as
// it is. Else as SetLimits.
func (h *Heijunka) SetBounds(ctx context.Context, pool string, low, high *int, while time.Duration) error {
	p := h.Pool(pool)
	if p == nil {
		return store.NewError(store.NotFound, "No such pool")
	}
	return h.change(ctx, while, func(s *store.LoadSettings, e store.Expiry) error {
		b, ok := s.Bounds[pool]
		if !ok {
			b = store.LoadBounds{Min: p.lanes.cfg.Min, Max: p.lanes.cfg.Max}
		}
		if low != nil {
			b.Min = *low
		}
		if high != nil {
			b.Max = *high
		}
		b.Expiry = e
		s.Bounds[pool] = b
		return checkBounds(b.Min, b.Max)
	})
}

// SetAffinity changes the pools that a domain prefers, all of its list if pools
// is empty. Else as SetLimits.
func (h *Heijunka) SetAffinity(ctx context.Context, domain string, pools []string, while time.Duration) error {
	d := h.domains[domain]
	if d == nil {
		return store.NewError(store.NotFound, "No such domain")
	}
	return h.change(ctx, while, func(s *store.LoadSettings, e store.Expiry) error {
		s.Affinity[domain] = store.LoadAffinity{Pools: pools, Expiry: e}
		return d.checkAffinity(pools)
	})
}

// SetBurst turns the detection of bursts on or off. Else as SetLimits.
func (h *Heijunka) SetBurst(ctx context.Context, enabled bool, while time.Duration) error {
	return h.change(ctx, while, func(s *store.LoadSettings, e store.Expiry) error {
		s.Burst = &store.LoadBurst{Enabled: enabled, Expiry: e}
		return nil
	})
}

// change has f applied to the saved settings and these put in force. An error of
// f is the caller's mistake.
func (h *Heijunka) change(ctx context.Context, while time.Duration, f func(s *store.LoadSettings, e store.Expiry) error) error {
	if while < 0 || while > 0 && while < time.Second || while > maxChange {
		return store.NewError(store.InvalidArgument, "a change with an end lasts 1 second to 366 days")
	}
	var e store.Expiry
	if while > 0 {
		until := time.Now().Add(while).UTC()
		e.Until = &until
	}
	_, err := call[any](ctx, h, h.regulator, change{func(s *store.LoadSettings) error {
		err := f(s, e)
		if _, known := errors.AsType[*store.Error](err); err != nil && !known {
			return store.NewError(store.InvalidArgument, err.Error())
		}
		return err
	}})
	return err
}
