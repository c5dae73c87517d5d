package heijunka

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// budget is the period of the restart budgets: three restarts.
const budget = 5 * time.Second

// Spec describes the subtree to its supervisor.
func (h *Heijunka) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "heijunka", Name: h.cfg.Name, Supervisor: h.spec}
}

func (h *Heijunka) spec() otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.OneForAll, Intensity: 3, Period: budget,
		Children: []otp.ChildSpec{
			{ID: "pool_sup", Supervisor: h.poolSup},
			{ID: "load_regulator", Server: func() otp.Server { return &loadRegulator{h: h} }},
			{ID: "balancer", Server: func() otp.Server { return &balancer{h: h} }},
			{ID: "burst_handler", Server: func() otp.Server { return &burstHandler{h: h} }},
		},
	}
}

func (h *Heijunka) poolSup() otp.SupSpec {
	spec := otp.SupSpec{Strategy: otp.OneForOne, Intensity: 3, Period: budget}
	for _, p := range h.pools {
		spec.Children = append(spec.Children, otp.ChildSpec{ID: p.name, Supervisor: p.spec})
	}
	return spec
}

func (p *Pool) spec() otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.RestForOne, Intensity: 3, Period: budget,
		Children: []otp.ChildSpec{
			{ID: "workers", Supervisor: workers},
			{ID: "manager", Server: func() otp.Server { return &manager{p: p} }},
		},
	}
}

// workers is the specification of a pool's workers. They are temporary: their
// manager replaces them, so that a run of crashes ends no supervisor.
func workers() otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.Dynamic,
		Children: []otp.ChildSpec{{
			ID: "worker", Restart: otp.Temporary,
			ServerArgs: func(args any) otp.Server {
				l, _ := args.(*lane)
				return &worker{lane: l}
			},
		}},
	}
}

// ScaleUp adds n workers for good, ScaleDown removes them: idle ones at once,
// others when their request ends. Both return how the pool is then. Errors:
// Conflict (outside of its bounds, or scaled a moment ago), Unavailable.
func (p *Pool) ScaleUp(ctx context.Context, n int) (PoolStatus, error) {
	return call[PoolStatus](ctx, p.h, p.manager, scale{by: n})
}

// ScaleDown is described at ScaleUp.
func (p *Pool) ScaleDown(ctx context.Context, n int) (PoolStatus, error) { return p.ScaleUp(ctx, -n) }

// ScaleTo makes it n workers, else as ScaleUp.
func (p *Pool) ScaleTo(ctx context.Context, n int) (PoolStatus, error) {
	if n < 1 {
		return PoolStatus{}, store.NewError(store.InvalidArgument, "workers must be at least 1")
	}
	return call[PoolStatus](ctx, p.h, p.manager, scale{to: n})
}

// Examination is the result of a round of pings.
type Examination struct {
	Workers int
	// Failed did not answer, and are being replaced.
	Failed int
}

// HealthCheck pings all workers at once.
func (p *Pool) HealthCheck(ctx context.Context) (Examination, error) {
	return call[Examination](ctx, p.h, p.manager, examine{})
}

// resized tells the manager that the size was changed, and that of those who are
// too many now so many may go at once.
func (p *Pool) resized(spare int) { otp.Cast(p.manager, resized{spare}) }

// call asks an actor, waiting for one that restarts.
func call[R any](ctx context.Context, h *Heijunka, ref otp.Ref, req any) (R, error) {
	r, err := otp.CallWait[R](ctx, ref, h.cfg.RestartGap, req)
	if err == nil || store.CodeOf(err) != store.Internal {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, unavailable("Load levelling is restarting, try again", err)
}
