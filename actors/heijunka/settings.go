package heijunka

import (
	"context"
	"time"

	"takt/store"
)

// Settings keeps what operators change. Both fail at once with
// store.Unavailable while the database is away.
type Settings interface {
	// LoadSettings returns what was saved.
	LoadSettings(ctx context.Context) (store.LoadSettings, error)
	// ChangeLoadSettings applies change to what is saved, in one transaction, and
	// tells all controllers. It may call change more than once. An error of
	// change is returned, and nothing is changed.
	ChangeLoadSettings(ctx context.Context, change func(s *store.LoadSettings) error) (store.LoadSettings, error)
}

// settingsKey is what settings:changed says when they were saved.
const settingsKey = "heijunka"

// expire takes out of s what is over and returns when the next change ends; the
// zero time if none does.
func expire(s *store.LoadSettings, now time.Time) (next time.Time) {
	keep := func(e store.Expiry) bool {
		if e.Over(now) {
			return false
		}
		if e.Until != nil && (next.IsZero() || e.Until.Before(next)) {
			next = *e.Until
		}
		return true
	}
	if s.Limits != nil && !keep(s.Limits.Expiry) {
		s.Limits = nil
	}
	if s.Burst != nil && !keep(s.Burst.Expiry) {
		s.Burst = nil
	}
	bounds, affinity := map[string]store.LoadBounds{}, map[string]store.LoadAffinity{}
	for name, b := range s.Bounds {
		if keep(b.Expiry) {
			bounds[name] = b
		}
	}
	for name, a := range s.Affinity {
		if keep(a.Expiry) {
			affinity[name] = a
		}
	}
	s.Bounds, s.Affinity = bounds, affinity
	return next
}

// apply puts in force what is configured and, over it, s, of which nothing is
// over. What is not usable any more, because the configuration has changed, is
// left out and returned.
func (h *Heijunka) apply(s store.LoadSettings) (faults []error) {
	limits := h.cfg.Limits
	if s.Limits != nil {
		l := Limits{Soft: s.Limits.Soft, Hard: s.Limits.Hard, Reserved: s.Limits.Reserved}
		if err := l.Validate(); err != nil {
			faults = append(faults, err)
		} else {
			limits = l
		}
	}
	h.gate.set(limits)
	for _, p := range h.pools {
		low, high := p.lanes.cfg.Min, p.lanes.cfg.Max
		if b, ok := s.Bounds[p.name]; ok {
			if err := checkBounds(b.Min, b.Max); err != nil {
				faults = append(faults, err)
			} else {
				low, high = b.Min, b.Max
			}
		}
		p.lanes.resize(func(s *sizing) { s.bound(low, high) })
		p.resized(0)
	}
	for _, d := range h.domains {
		pools := d.Affinity
		if a, ok := s.Affinity[d.Name]; ok {
			if err := d.checkAffinity(a.Pools); err != nil {
				faults = append(faults, err)
			} else {
				pools = a.Pools
			}
		}
		d.prefer(byName(d.list, pools))
	}
	h.surge.enable(s.Burst == nil && !h.cfg.Burst.Disabled || s.Burst != nil && s.Burst.Enabled)
	h.saved.Store(&s)
	return faults
}

func checkBounds(low, high int) error {
	return PoolConfig{Name: "pool", Initial: low, Min: low, Max: high}.validate()
}
