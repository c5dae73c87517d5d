package http

import (
	"context"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// requeues lets operators take a build from a worker that is stuck.
type requeues struct {
	*builds
	audit *audit
	queue Queue
}

// requeue handles POST /api/builds/:id/requeue: an assigned or running build is pending
// again. Its worker learns of it when another worker has the build.
func (h *requeues) requeue(ctx context.Context, c echo.Context) (any, error) {
	id, err := edge.IDParam(c, "id", buildNotFound)
	if err != nil {
		return nil, err
	}
	var body api.Order
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	if err := body.Check(); err != nil {
		return nil, err
	}
	err = h.audit.do(ctx, entry{"requeue", "build/" + id, body.Reason, change(nil)}, func(ctx context.Context) error {
		ref, err := h.store.Requeue(ctx, id)
		if err == nil {
			h.queue.Requeued([]store.BuildRef{ref})
			h.publish(store.TopicBuildUpdated, store.Lost(ref, store.Pending, store.LostRequeued))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b, err := h.store.Find(ctx, id)
	return api.NewBuildItem(b), err
}
