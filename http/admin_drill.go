package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// drills makes faults in exercises.
type drills struct {
	edge  *edge.Server
	audit *audit
	// fault is nil if drills are not allowed.
	fault func(ctx context.Context, name string, d time.Duration) error
}

func (h *drills) routes() []edge.Route {
	r := edge.On(h.edge, api.CauseFault, h.cause)
	if h.fault == nil {
		r.Handle = func(context.Context, echo.Context) (any, error) {
			return nil, store.NewError(store.Forbidden, "Drills are not allowed here: takt serve --allow-drill allows them")
		}
	}
	return []edge.Route{r}
}

// cause replies when the fault has begun.
func (h *drills) cause(ctx context.Context, in api.Fault) (api.Fault, error) {
	d := time.Duration(in.Seconds * float64(time.Second))
	e := entry{"drill", "fault/" + store.Text(in.Fault), in.Reason, map[string]any{"seconds": in.Seconds}}
	return in, h.audit.do(ctx, e, func(ctx context.Context) error { return h.fault(ctx, in.Fault, d) })
}
