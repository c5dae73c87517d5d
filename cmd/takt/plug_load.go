package main

import (
	"context"
	"encoding/json"
	"time"

	"takt/actors/heijunka"
	"takt/http"
	"takt/http/api"
	"takt/store"
)

// levelled makes heijunka run the HTTP server's requests.
type levelled struct{ *heijunka.Heijunka }

var _ http.Requests = levelled{}

// Do implements http.Requests.
func (l levelled) Do(ctx context.Context, w http.Work, fn func(ctx context.Context) error) error {
	return l.Heijunka.Do(ctx, heijunka.Work(w), fn)
}

// loadOf shows heijunka to operators.
type loadOf struct{ h *heijunka.Heijunka }

var _ http.Load = loadOf{}

// SetLimits implements http.Load.
func (l loadOf) SetLimits(ctx context.Context, c api.LoadLimits, while time.Duration) error {
	if c.Reset {
		return l.h.ResetLimits(ctx)
	}
	return l.h.SetLimits(ctx, c.SoftLimit, c.HardLimit, c.Reserved, while)
}

// Scale implements http.Load.
func (l loadOf) Scale(ctx context.Context, pool string, c api.LoadScale, while time.Duration) (err error) {
	p := l.h.Pool(pool)
	switch {
	case p == nil:
		return store.NewError(store.NotFound, "No such pool")
	case c.By != nil:
		_, err = p.ScaleUp(ctx, *c.By)
	case c.Workers != nil:
		_, err = p.ScaleTo(ctx, *c.Workers)
	default:
		err = l.h.SetBounds(ctx, pool, c.Min, c.Max, while)
	}
	return err
}

// SetAffinity implements http.Load.
func (l loadOf) SetAffinity(ctx context.Context, c api.LoadAffinity, while time.Duration) error {
	return l.h.SetAffinity(ctx, c.Domain, c.Pools, while)
}

// Surge implements http.Load.
func (l loadOf) Surge(ctx context.Context, action string, while time.Duration) (err error) {
	switch action {
	case "start":
		_, err = l.h.StartSurge(ctx, while)
	case "stop":
		_, err = l.h.StopSurge(ctx)
	default:
		err = l.h.SetBurst(ctx, action == "enable", while)
	}
	return err
}

// Rebalance implements http.Load.
func (l loadOf) Rebalance(ctx context.Context, dryRun bool) (api.LoadRebalance, error) {
	r, err := l.h.Rebalance(ctx, dryRun)
	return rebalanceOf(r), err
}

func rebalanceOf(r heijunka.Rebalance) api.LoadRebalance {
	out := api.LoadRebalance{Coefficient: r.Coefficient, From: r.From, To: r.To, Reason: r.Reason, Done: r.Done, At: api.NewMillis(r.At)}
	for _, s := range r.Standings {
		out.Pools = append(out.Pools, api.LoadStanding{
			Name: s.Pool, Utilisation: s.Utilisation, Demand: s.Demand, Workers: s.Workers, Min: s.Minimum, Max: s.Maximum,
		})
	}
	return out
}

// Status implements http.Load.
func (l loadOf) Status() api.Load {
	s := l.h.Status()
	changed, err := json.Marshal(s.Changed)
	if err != nil {
		changed = nil // can't be: plain values
	}
	r, b := s.Regulator, s.Burst
	out := api.Load{
		Enabled: !s.Off,
		Regulator: api.LoadRegulator{
			Level: r.Level.String(), Load: r.Load, SoftLimit: r.Soft, HardLimit: r.Hard, Reserved: r.Reserved,
			RegularLimit: r.Regular(), AlertLimit: r.Alert(), Accepted: r.Accepted,
			RejectedRegular: r.RejectedRegular, RejectedHard: r.RejectedHard, DrainRate: r.Drain, Oldest: []api.LoadHolder{},
		},
		Balance: api.LoadBalance{Coefficient: s.Balance.Coefficient, Moves: s.Balance.Moves, Affinity: s.Balance.Affinity, Spilled: s.Balance.Spilled},
		Burst: api.LoadBurst{
			Enabled: b.Enabled, Active: b.Active, Demand: b.Demand, Baseline: b.Baseline,
			BeganAt: api.NewMillis(b.Began), Until: api.NewMillis(b.Until), TriggerDemand: b.TriggerDemand,
			TriggerBaseline: b.TriggerBaseline, Manual: b.Manual, Events: b.Events, WorkersAdded: b.Added, Cost: b.Cost,
		},
		Changed: changed,
	}
	for _, o := range r.Oldest {
		out.Regulator.Oldest = append(out.Regulator.Oldest, api.LoadHolder{Domain: o.Domain, Route: o.Route, RequestID: o.ID, AgeMS: o.Age.Milliseconds()})
	}
	if s.Balance.Moves > 0 {
		last := rebalanceOf(s.Balance.Last)
		out.Balance.Last = &last
	}
	for _, p := range s.Pools {
		out.Pools = append(out.Pools, poolOf(p))
	}
	return out
}

func poolOf(p heijunka.PoolStatus) api.LoadPool {
	return api.LoadPool{
		Name: p.Name, Health: string(p.Health), Workers: p.Workers, Available: p.Available, Busy: p.Busy,
		Utilisation: p.Utilisation, QueueLength: p.Waiting, QueuePeak: p.Peak, Target: p.Target, Surge: p.Surge,
		Min: p.Minimum, Max: p.Maximum, Overflow: p.Overflow,
		AverageLatencyMS: float64(p.Latency) / float64(time.Millisecond), ErrorRate: p.ErrorRate,
		LastScalingAt: api.NewMillis(p.LastScaling), Scalings: p.Scalings, Processed: p.Ended,
		Failed: p.Failed, Refused: p.Refused, Expired: p.Expired, Crashed: p.Crashed,
	}
}
