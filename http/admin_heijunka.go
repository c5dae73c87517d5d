package http

import (
	"context"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// heijunka shows and changes load levelling. Each change is answered with the status
// after it.
type heijunka struct {
	edge     *edge.Server
	audit    *audit
	heijunka Heijunka
}

func (h *heijunka) routes() []edge.Route {
	return []edge.Route{
		edge.On(h.edge, api.ShowHeijunka, h.show),
		edge.On(h.edge, api.ChangeHeijunkaLimits, h.limits),
		edge.On(h.edge, api.ScalePool, h.scale),
		edge.On(h.edge, api.ChangeHeijunkaAffinity, h.affinity),
		edge.On(h.edge, api.SurgeHeijunka, h.surge),
		edge.On(h.edge, api.RebalanceHeijunka, h.rebalance),
	}
}

func (h *heijunka) show(context.Context, api.None) (api.Heijunka, error) {
	return h.heijunka.Status(), nil
}

func (h *heijunka) limits(ctx context.Context, in api.HeijunkaLimits) (api.Heijunka, error) {
	return h.change(ctx, entry{"set", "heijunka/limits", in.Reason, change(in)}, in.For, func(ctx context.Context, while time.Duration) error {
		if in.Reset {
			return h.heijunka.ResetLimits(ctx)
		}
		return h.heijunka.SetLimits(ctx, in.SoftLimit, in.HardLimit, in.Reserved, while)
	})
}

func (h *heijunka) scale(ctx context.Context, in api.ScalePoolIn) (api.Heijunka, error) {
	to := in.Body
	what := entry{"scale", "heijunka/pools/" + store.Text(in.Name), to.Reason, change(to)}
	return h.change(ctx, what, to.For, func(ctx context.Context, while time.Duration) error {
		switch {
		case to.Bounds():
			return h.heijunka.SetBounds(ctx, in.Name, to.Min, to.Max, while)
		case to.Reset:
			return h.heijunka.ResetBounds(ctx, in.Name)
		}
		return h.heijunka.Scale(in.Name, to.By, to.Workers)
	})
}

func (h *heijunka) affinity(ctx context.Context, in api.HeijunkaAffinity) (api.Heijunka, error) {
	what := entry{"set", "heijunka/affinity/" + store.Text(in.Domain), in.Reason, change(in)}
	return h.change(ctx, what, in.For, func(ctx context.Context, while time.Duration) error {
		if in.Reset {
			return h.heijunka.ResetAffinity(ctx, in.Domain)
		}
		return h.heijunka.SetAffinity(ctx, in.Domain, in.Pools, while)
	})
}

func (h *heijunka) surge(ctx context.Context, in api.HeijunkaSurge) (api.Heijunka, error) {
	return h.change(ctx, entry{in.Action, "heijunka/surge", in.Reason, change(in)}, in.For, func(ctx context.Context, while time.Duration) error {
		switch in.Action {
		case "start":
			return h.heijunka.StartSurge(while)
		case "stop":
			return h.heijunka.StopSurge()
		default:
			return h.heijunka.SetBurst(ctx, in.Action == "enable", while)
		}
	})
}

// rebalance moves a worker to the pool with more work. A dry run only reports what it would
// do, and why.
func (h *heijunka) rebalance(ctx context.Context, in api.RebalanceHeijunkaIn) (moved api.HeijunkaRebalance, err error) {
	if in.DryRun {
		return h.heijunka.Rebalance(true)
	}
	if in.Body.Reason == "" {
		return moved, edge.Invalid("reason is required")
	}
	err = h.audit.do(ctx, entry{"rebalance", "heijunka", in.Body.Reason, change(nil)}, func(context.Context) (err error) {
		moved, err = h.heijunka.Rebalance(false)
		return err
	})
	return moved, err
}

// change carries out a change that holds for as long as hold says.
func (h *heijunka) change(ctx context.Context, what entry, hold string, do func(ctx context.Context, while time.Duration) error) (api.Heijunka, error) {
	while, err := api.HoldFor(hold)
	if err != nil {
		return api.Heijunka{}, err
	}
	if err := h.audit.do(ctx, what, func(ctx context.Context) error { return do(ctx, while) }); err != nil {
		return api.Heijunka{}, err
	}
	return h.heijunka.Status(), nil
}
