package http

import (
	"context"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// priorities changes the priority of builds in the queue.
type priorities struct {
	*builds
	queue Queue
}

// patch handles PATCH /api/builds/:id: it sets the priority of a pending build. A parked
// poll may get the build at once.
func (h *priorities) patch(ctx context.Context, c echo.Context) (any, error) {
	id, err := edge.IDParam(c, "id", buildNotFound)
	if err != nil {
		return nil, err
	}
	var body api.BuildPatch
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	if body.Priority == nil {
		return nil, edge.Invalid("priority required")
	}
	if p := *body.Priority; p < store.MinPriority || p > store.MaxPriority {
		return nil, edge.Invalid("priority must be -10 to 10")
	}
	ref, err := h.store.SetPriority(ctx, id, *body.Priority)
	if err != nil {
		return nil, err
	}
	h.queue.Requeued([]store.BuildRef{ref})
	h.publish(store.TopicBuildUpdated, store.BuildUpdate{BuildID: id, State: store.Pending, Platform: ref.Platform})
	b, err := h.store.Find(ctx, id)
	return api.NewBuildItem(b), err
}
