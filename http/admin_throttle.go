package http

import (
	"context"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// queues shows throttle queues and carries out orders on them.
type queues struct {
	edge     *edge.Server
	audit    *audit
	store    ThrottleStore
	throttle Throttle
}

func (h *queues) routes() []edge.Route {
	return []edge.Route{
		edge.OnList(h.edge, api.ShowQueues, h.list),
		edge.On(h.edge, api.ShowQueue, h.show),
		edge.On(h.edge, api.PauseQueue, h.pause),
		edge.On(h.edge, api.ResumeQueue, h.resume),
		edge.On(h.edge, api.RedriveQueue, h.redrive),
	}
}

func (h *queues) list(_ context.Context, in api.ShowQueuesIn) (edge.List, error) {
	read := func(ctx context.Context, p store.Page) ([]store.QueueStatus, store.Cursor, error) {
		return h.store.Queues(ctx, in.Portal, true, p)
	}
	return edge.ListOf(in.Limit, in.Cursor, read, api.NewThrottleQueue).In("queues", false), nil
}

func (h *queues) show(ctx context.Context, in api.QueuePath) (api.ThrottleQueue, error) {
	q, err := h.store.Queue(ctx, store.Text(in.ID))
	return api.NewThrottleQueue(q), err
}

func (h *queues) pause(ctx context.Context, in api.QueueOrderIn) (api.ThrottleQueue, error) {
	return h.setPaused(ctx, in, "pause", true)
}

func (h *queues) resume(ctx context.Context, in api.QueueOrderIn) (api.ThrottleQueue, error) {
	return h.setPaused(ctx, in, "resume", false)
}

func (h *queues) setPaused(ctx context.Context, in api.QueueOrderIn, action string, paused bool) (reply api.ThrottleQueue, err error) {
	id := store.Text(in.ID)
	err = h.audit.do(ctx, entry{action, id, in.Body.Reason, change(nil)}, func(ctx context.Context) error {
		err := h.store.Pause(ctx, id, paused)
		if err == nil && !paused {
			h.look(ctx, id)
		}
		return err
	})
	if err != nil {
		return reply, err
	}
	return h.show(ctx, api.QueuePath{ID: in.ID})
}

// look has a queue served at once. If that fails, the queue's job serves it later.
func (h *queues) look(ctx context.Context, queue string) {
	if err := h.throttle.Look(ctx, queue); err != nil {
		h.edge.Log.Warn().Err(err).Str("queue", queue).Msg("queue is not served yet")
	}
}

// redrive retries failed actions now.
func (h *queues) redrive(ctx context.Context, in api.QueueOrderIn) (out api.Redriven, err error) {
	id := store.Text(in.ID)
	err = h.audit.do(ctx, entry{"redrive", id, in.Body.Reason, change(nil)}, func(ctx context.Context) (err error) {
		if out.Actions, err = h.store.Redrive(ctx, id); err == nil {
			h.look(ctx, id)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	out.Queue, err = h.show(ctx, api.QueuePath{ID: in.ID})
	return out, err
}
