package http

import (
	"context"
	"fmt"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

func (h *workers) list(ctx context.Context, c echo.Context) (any, error) {
	f := store.WorkerFilter{Status: store.WorkerStatus(c.QueryParam("status"))}
	switch f.Status {
	case "", store.Idle, store.Busy, store.Offline:
	default:
		return nil, invalid("Invalid status")
	}
	limit, err := limitParam(c, h.cfg.MaxList, 0)
	if err != nil {
		return nil, err
	}
	f.Limit = min(limit, h.cfg.MaxList)
	list, err := h.store.List(ctx, f)
	return api.WorkerList{Workers: each(list, workerItem), Total: len(list)}, err
}

func (h *workers) show(ctx context.Context, id string) (any, error) {
	list, err := h.store.List(ctx, store.WorkerFilter{ID: id})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, workerNotFound()
	}
	return workerItem(list[0]), nil
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

func (h *workers) stats(ctx context.Context, id string) (any, error) {
	w, err := h.store.Find(ctx, id)
	return api.WorkerStats{
		TotalBuilds: w.Completed + w.Failed, SuccessfulBuilds: w.Completed, FailedBuilds: w.Failed,
		WorkerName: w.Name, Status: string(w.Status), Uptime: uptime(time.Since(w.RegisteredAt)),
	}, err
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

func (h *workers) drain(ctx context.Context, id string) (any, error) {
	return h.setDraining(ctx, id, true)
}

func (h *workers) resume(ctx context.Context, id string) (any, error) {
	return h.setDraining(ctx, id, false)
}

func (h *workers) setDraining(ctx context.Context, id string, draining bool) (any, error) {
	status, err := h.store.Drain(ctx, id, draining)
	if err != nil {
		return nil, err
	}
	if !draining {
		h.queue.Freed(id) // its parked poll may be woken again
	}
	h.announce.WorkerUpdated(store.WorkerUpdate{WorkerID: id, Status: status, Draining: draining})
	return h.show(ctx, id)
}
