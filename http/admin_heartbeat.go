package http

import (
	"context"
	"time"

	"takt/http/api"
	"takt/http/edge"
)

// timeouts shows and sets when builds and workers count as lost.
type timeouts struct {
	edge    *edge.Server
	audit   *audit
	monitor Heartbeat
}

func (h *timeouts) routes() []edge.Route {
	return []edge.Route{edge.On(h.edge, api.ShowTimeouts, h.show), edge.On(h.edge, api.ChangeTimeouts, h.change)}
}

// show returns the time-outs in force.
func (h *timeouts) show(ctx context.Context, _ api.None) (api.HeartbeatSettings, error) {
	t, err := h.monitor.Timeouts(ctx)
	return api.NewHeartbeatSettings(t), err
}

// change checks, applies and saves the time-outs.
func (h *timeouts) change(ctx context.Context, in api.HeartbeatSettings) (reply api.HeartbeatSettings, err error) {
	if in.CheckInterval == nil && in.BuildTimeout == nil && in.WorkerTimeout == nil {
		return reply, edge.Invalid("check_interval, build_timeout or worker_timeout required")
	}
	before, err := h.monitor.Timeouts(ctx)
	if err != nil {
		return reply, err
	}
	after := before
	setSeconds(&after.CheckInterval, in.CheckInterval)
	setSeconds(&after.BuildTimeout, in.BuildTimeout)
	setSeconds(&after.WorkerTimeout, in.WorkerTimeout)
	detail := map[string]any{"before": api.NewHeartbeatSettings(before), "after": api.NewHeartbeatSettings(after)}
	err = h.audit.do(ctx, entry{"set", "heartbeat", in.Reason, detail}, func(ctx context.Context) error {
		return h.monitor.Update(ctx, after)
	})
	return api.NewHeartbeatSettings(after), err
}

// setSeconds sets d to v unless v is nil. It clamps v to what a Duration can hold; such
// values are out of bounds anyway.
func setSeconds(d *time.Duration, v *float64) {
	if v != nil {
		*d = time.Duration(min(max(*v, -1e9), 1e9) * float64(time.Second))
	}
}
