package http

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"takt/http/api"
	"takt/store"
)

// handleHealth handles GET /health and GET /api/health. Anybody may ask, so it
// shows numbers only.
func (s *Server) handleHealth(ctx context.Context, c echo.Context) error {
	n, err := s.deps.Builds.Counts(ctx)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, api.Health{
		Status: "ok", Queue: api.QueueHealth{Pending: n.Pending, Active: n.Assigned + n.Building}, Storage: s.storageHealth(),
		Database: api.DatabaseHealth{VacuumHeldBackSeconds: int64(s.deps.VacuumHeldBack().Seconds())},
	})
}

// storageHealth shows how storage does. Why it is not well is for the log.
func (s *Server) storageHealth() map[string]any {
	h := s.deps.Files.Health()
	files := map[string]any{"kind": string(h.Mode), "ok": h.OK()}
	if h.Local != nil {
		s.log.Warn().Err(h.Local).Msg("storage is not well")
	} else {
		files["free_bytes"] = h.Free
	}
	if h.S3 != nil {
		files["s3"] = map[string]any{"ok": h.S3.Err == nil, "asked_at": api.NewMillis(h.S3.At)}
	}
	return files
}

// handleLive handles GET /livez: this process answers.
func (s *Server) handleLive(_ context.Context, c echo.Context) error {
	return s.reply(c, http.StatusOK, api.Status{Status: "ok"})
}

// handleReady handles GET /readyz and GET /healthz: this process can do work.
func (s *Server) handleReady(ctx context.Context, c echo.Context) error {
	switch {
	case stopping(ctx).Err() != nil:
		return store.NewError(store.Unavailable, "The controller is shutting down")
	case !s.deps.Ready():
		return store.NewError(store.Unavailable, "The database is not ready")
	}
	return s.reply(c, http.StatusOK, api.Status{Status: "ready"})
}

// handleMetrics handles GET /metrics.
func (s *Server) handleMetrics() handler {
	h := promhttp.HandlerFor(s.deps.Metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return func(_ context.Context, c echo.Context) error {
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
