package main

import (
	"context"
	"time"

	"takt/actors/heijunka"
	"takt/http"
	"takt/http/api"
)

var _ http.Requests = (*heijunka.Heijunka)(nil)

// loadOf shows heijunka to operators.
type loadOf struct{ h *heijunka.Heijunka }

var _ http.Load = loadOf{}

// Status implements http.Load.
func (l loadOf) Status() api.Load { return l.h.Status() }

// SetLimits implements http.Load.
func (l loadOf) SetLimits(ctx context.Context, c api.LoadLimits, while time.Duration) error {
	if c.Reset {
		return l.h.ResetLimits(ctx)
	}
	return l.h.SetLimits(ctx, c.SoftLimit, c.HardLimit, c.Reserved, while)
}

// Scale implements http.Load.
func (l loadOf) Scale(ctx context.Context, pool string, c api.LoadScale, while time.Duration) (err error) {
	if c.By != nil || c.Workers != nil {
		return l.h.Scale(pool, c.By, c.Workers)
	}
	return l.h.SetBounds(ctx, pool, c.Min, c.Max, while)
}

// SetAffinity implements http.Load.
func (l loadOf) SetAffinity(ctx context.Context, c api.LoadAffinity, while time.Duration) error {
	return l.h.SetAffinity(ctx, c.Domain, c.Pools, while)
}

// Surge implements http.Load.
func (l loadOf) Surge(ctx context.Context, action string, while time.Duration) (err error) {
	switch action {
	case "start":
		return l.h.StartSurge(while)
	case "stop":
		return l.h.StopSurge()
	default:
		return l.h.SetBurst(ctx, action == "enable", while)
	}
}

// Rebalance implements http.Load.
func (l loadOf) Rebalance(_ context.Context, dryRun bool) (api.LoadRebalance, error) {
	return l.h.Rebalance(dryRun)
}
