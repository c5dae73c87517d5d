package http

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// workerParam reads a worker's id from the path.
func workerParam(c echo.Context, name string) (string, error) {
	id := c.Param(name)
	if !store.ValidID(id) {
		return "", workerNotFound()
	}
	return id, nil
}

// handleWorkerList handles GET /api/workers.
func (s *Server) handleWorkerList(ctx context.Context, c echo.Context) error {
	f := store.WorkerFilter{Limit: s.cfg.MaxList, Status: store.WorkerStatus(c.QueryParam("status"))}
	switch f.Status {
	case "", store.Idle, store.Busy, store.Offline:
	default:
		return invalid("Invalid status")
	}
	limit, err := limitParam(c, f.Limit)
	if err != nil {
		return err
	}
	f.Limit = min(limit, f.Limit)
	workers, err := s.deps.Workers.List(ctx, f)
	if err != nil {
		return err
	}
	reply := api.WorkerList{Workers: make([]api.Worker, len(workers)), Total: len(workers)}
	for i, w := range workers {
		reply.Workers[i] = workerItem(w)
	}
	return s.reply(c, http.StatusOK, reply)
}

// limitParam reads ?limit=, a number of at least 1.
func limitParam(c echo.Context, otherwise int) (int, error) {
	v := c.QueryParam("limit")
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, invalid("limit must be a positive whole number")
	}
	return n, nil
}

// handleWorkerShow handles GET /api/workers/:id.
func (s *Server) handleWorkerShow(ctx context.Context, c echo.Context) error {
	id, err := workerParam(c, "id")
	if err != nil {
		return err
	}
	return s.showWorker(ctx, c, id)
}

// showWorker answers with a worker as it is now.
func (s *Server) showWorker(ctx context.Context, c echo.Context, id string) error {
	workers, err := s.deps.Workers.List(ctx, store.WorkerFilter{ID: id})
	if err != nil {
		return err
	}
	if len(workers) == 0 {
		return workerNotFound()
	}
	return s.reply(c, http.StatusOK, workerItem(workers[0]))
}

func workerItem(w store.WorkerDetail) api.Worker {
	item := api.Worker{
		ID: w.ID, Name: w.Name, Status: string(w.Status), Draining: w.Draining, Platforms: []string{},
		Capabilities: w.Capabilities, MaxConcurrentBuilds: w.Slots, Builds: w.Builds,
		Completed: w.Completed, Failed: w.Failed,
		RegisteredAt: api.FormatTime(w.RegisteredAt), LastSeenAt: api.FormatTime(w.LastSeenAt),
	}
	for _, p := range w.Platforms {
		item.Platforms = append(item.Platforms, string(p))
	}
	if t := w.Telemetry; t != nil {
		item.Telemetry = &api.WorkerTelemetry{
			BuildID: t.BuildID, At: api.FormatTime(t.At), Type: t.Type, Stage: t.Stage, UptimeSeconds: t.UptimeSeconds,
			Metrics: api.Metrics{CPUPercent: t.CPUPercent, MemoryMB: t.MemoryMB, DiskPercent: t.DiskPercent, Processes: t.Processes},
		}
	}
	if w.Diagnostic != "" {
		item.Diagnostics = &api.WorkerDiagnostic{Status: string(w.Diagnostic), RunAt: api.Millis(w.DiagnosedAt.UnixMilli())}
	}
	return item
}

// handleWorkerStats handles GET /api/workers/:id/stats.
func (s *Server) handleWorkerStats(ctx context.Context, c echo.Context) error {
	id, err := workerParam(c, "id")
	if err != nil {
		return err
	}
	w, err := s.deps.Workers.Find(ctx, id)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, api.WorkerStats{
		TotalBuilds: w.Completed + w.Failed, SuccessfulBuilds: w.Completed, FailedBuilds: w.Failed,
		WorkerName: w.Name, Status: string(w.Status), Uptime: uptime(time.Since(w.RegisteredAt)),
	})
}

// uptime is d as published menus read it: the two largest units, whose letters
// they look for.
func uptime(d time.Duration) string {
	seconds := int64(max(d, 0) / time.Second)
	switch {
	case seconds >= 86400:
		return fmt.Sprintf("%dd %dh", seconds/86400, seconds%86400/3600)
	case seconds >= 3600:
		return fmt.Sprintf("%dh %dm", seconds/3600, seconds%3600/60)
	case seconds >= 60:
		return fmt.Sprintf("%dm %ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%ds", seconds)
}

// drainWith handles POST /api/workers/:id/drain and /resume.
func (s *Server) drainWith(draining bool) handler {
	return func(ctx context.Context, c echo.Context) error { return s.handleWorkerDrain(ctx, c, draining) }
}

func (s *Server) handleWorkerDrain(ctx context.Context, c echo.Context, draining bool) error {
	id, err := workerParam(c, "id")
	if err != nil {
		return err
	}
	status, err := s.deps.Workers.Drain(ctx, id, draining)
	if err != nil {
		return err
	}
	if !draining {
		s.deps.Queue.Freed(id) // its parked poll may be woken again
	}
	s.deps.Announce.WorkerUpdated(store.WorkerUpdate{WorkerID: id, Status: status, Draining: draining})
	return s.showWorker(ctx, c, id)
}

// handleWorkerDelete handles DELETE /api/workers/:id.
func (s *Server) handleWorkerDelete(ctx context.Context, c echo.Context) error {
	id, err := workerParam(c, "id")
	if err != nil {
		return err
	}
	gone, err := s.deps.Workers.Delete(ctx, id)
	if err != nil {
		return err
	}
	s.requeued(gone.Requeued)
	s.deps.Announce.WorkerUpdated(store.WorkerUpdate{WorkerID: id, Status: store.Offline, Deleted: true})
	return s.reply(c, http.StatusOK, api.Unregistered{
		Success: true, BuildsReassigned: len(gone.Requeued), Message: "Worker deleted",
	})
}
