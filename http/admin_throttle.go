package http

import (
	"context"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	queueList    = 100
	maxQueueList = 1000
)

// queues shows throttle queues and carries out orders on them.
type queues struct {
	*audit
	store    ThrottleStore
	throttle Throttle
	oauth    OAuth
}

func (h *queues) list(ctx context.Context, c echo.Context) (any, error) {
	limit, err := edge.LimitParam(c, queueList, maxQueueList)
	if err != nil {
		return nil, err
	}
	portal := int64(0)
	if v := c.QueryParam("portal"); v != "" {
		if portal, err = edge.Positive("portal", v); err != nil {
			return nil, err
		}
	}
	list, err := h.store.Queues(ctx, portal, limit)
	return api.ThrottleQueues{Queues: edge.Each(list, api.NewThrottleQueue)}, err
}

func (h *queues) show(ctx context.Context, c echo.Context) (any, error) {
	q, err := h.store.Queue(ctx, store.Text(c.Param("id")))
	return api.NewThrottleQueue(q), err
}

// steer carries out an operator's order. Its body may give a reason.
func (h *queues) steer(ctx context.Context, c echo.Context, action, target string, do func(ctx context.Context) error) error {
	var body api.ThrottleOrder
	if err := readOrdered(c, &body, &body.Reason); err != nil {
		return err
	}
	return h.audited(ctx, entry{action, target, body.Reason, change(nil)}, do)
}

func (h *queues) pauseWith(paused bool) edge.Handler {
	action := "resume"
	if paused {
		action = "pause"
	}
	return func(ctx context.Context, c echo.Context) (any, error) {
		id := store.Text(c.Param("id"))
		err := h.steer(ctx, c, action, id, func(ctx context.Context) error {
			err := h.store.Pause(ctx, id, paused)
			if err == nil && !paused {
				h.look(ctx, id)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		return h.show(ctx, c)
	}
}

// look has a queue served at once. If that fails, the queue's job serves it later.
func (h *queues) look(ctx context.Context, queue string) {
	if err := h.throttle.Look(ctx, queue); err != nil {
		h.edge.Log.Warn().Err(err).Str("queue", queue).Msg("queue is not served yet")
	}
}

// redrive handles POST /admin/throttle/queues/:id/redrive: it retries failed actions now.
func (h *queues) redrive(ctx context.Context, c echo.Context) (any, error) {
	id := store.Text(c.Param("id"))
	var out api.Redriven
	err := h.steer(ctx, c, "redrive", id, func(ctx context.Context) (err error) {
		if out.Actions, err = h.store.Redrive(ctx, id); err == nil {
			h.look(ctx, id)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	q, err := h.store.Queue(ctx, id)
	out.Queue = api.NewThrottleQueue(q)
	return out, err
}
