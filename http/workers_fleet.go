package http

import (
	"context"
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
	return api.WorkerList{Workers: each(list, api.NewWorker), Total: len(list)}, err
}

func (h *workers) show(ctx context.Context, id string) (any, error) {
	list, err := h.store.List(ctx, store.WorkerFilter{ID: id})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, workerNotFound()
	}
	return api.NewWorker(list[0]), nil
}

func (h *workers) stats(ctx context.Context, id string) (any, error) {
	w, err := h.store.Find(ctx, id)
	return api.NewWorkerStats(w, time.Now()), err
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
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: id, Status: status, Draining: draining})
	return h.show(ctx, id)
}
