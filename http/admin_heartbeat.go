package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
)

// timeouts shows and sets when builds and workers count as lost.
type timeouts struct {
	*audit
	monitor Heartbeat
}

// show handles GET /admin/heartbeat: the time-outs in force.
func (h *timeouts) show(ctx context.Context, _ echo.Context) (any, error) {
	t, err := h.monitor.Timeouts(ctx)
	return api.NewHeartbeatSettings(t), err
}

// put handles PUT /admin/heartbeat: it checks, applies and saves the time-outs.
func (h *timeouts) put(ctx context.Context, c echo.Context) (any, error) {
	var body api.HeartbeatSettings
	if err := readOrdered(c, &body, &body.Reason); err != nil {
		return nil, err
	}
	if body.CheckInterval == nil && body.BuildTimeout == nil && body.WorkerTimeout == nil {
		return nil, edge.Invalid("check_interval, build_timeout or worker_timeout required")
	}
	before, err := h.monitor.Timeouts(ctx)
	if err != nil {
		return nil, err
	}
	after := before
	setSeconds(&after.CheckInterval, body.CheckInterval)
	setSeconds(&after.BuildTimeout, body.BuildTimeout)
	setSeconds(&after.WorkerTimeout, body.WorkerTimeout)
	detail := map[string]any{"before": api.NewHeartbeatSettings(before), "after": api.NewHeartbeatSettings(after)}
	err = h.audited(ctx, entry{"set", "heartbeat", body.Reason, detail}, func(ctx context.Context) error {
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
