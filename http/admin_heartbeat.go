package http

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// handleHeartbeat handles GET /admin/heartbeat: the time-outs in force.
func (s *Server) handleHeartbeat(ctx context.Context, c echo.Context) error {
	t, err := s.deps.Heartbeat.Timeouts(ctx)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, heartbeatSettings(t))
}

// handleHeartbeatPut handles PUT /admin/heartbeat: it checks, applies and saves.
func (s *Server) handleHeartbeatPut(ctx context.Context, c echo.Context) error {
	var body api.HeartbeatSettings
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	why, err := reason(body.Reason)
	if err != nil {
		return err
	}
	if body.CheckInterval == nil && body.BuildTimeout == nil && body.WorkerTimeout == nil {
		return invalid("check_interval, build_timeout or worker_timeout required")
	}
	before, err := s.deps.Heartbeat.Timeouts(ctx)
	if err != nil {
		return err
	}
	after := before
	setSeconds(&after.CheckInterval, body.CheckInterval)
	setSeconds(&after.BuildTimeout, body.BuildTimeout)
	setSeconds(&after.WorkerTimeout, body.WorkerTimeout)
	entry := s.entry(c, "set", "heartbeat", why, map[string]any{
		"before": heartbeatSettings(before), "after": heartbeatSettings(after),
	})
	s.begin(ctx, &entry)
	err = s.deps.Heartbeat.Update(ctx, after)
	if !s.conclude(ctx, &entry, err) {
		s.deps.Background(func(ctx context.Context) { s.concludeLater(ctx, &entry) })
	}
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, heartbeatSettings(after))
}

func heartbeatSettings(t store.Timeouts) api.HeartbeatSettings {
	check, build, worker := t.CheckInterval.Seconds(), t.BuildTimeout.Seconds(), t.WorkerTimeout.Seconds()
	return api.HeartbeatSettings{CheckInterval: &check, BuildTimeout: &build, WorkerTimeout: &worker}
}

// setSeconds sets d to v, if there is one. What a Duration can't hold is out of
// bounds anyway.
func setSeconds(d *time.Duration, v *float64) {
	if v != nil {
		*d = time.Duration(min(max(*v, -1e9), 1e9) * float64(time.Second))
	}
}
