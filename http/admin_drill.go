package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// maxFault is the longest time that a fault lasts, so that a controller recovers from a
// drill whose client is gone.
const maxFault = time.Minute

// drills makes faults in exercises.
type drills struct {
	*audit
	// fault is nil if drills are not allowed.
	fault func(ctx context.Context, name string, d time.Duration) error
}

// cause handles POST /admin/drill. It replies when the fault has begun.
func (h *drills) cause(ctx context.Context, c echo.Context) (any, error) {
	if h.fault == nil {
		return nil, store.NewError(store.Forbidden, "Drills are not allowed here: takt serve --allow-drill allows them")
	}
	var body api.Fault
	if err := readOrdered(c, &body, &body.Reason); err != nil {
		return nil, err
	}
	if body.Reason == "" {
		return nil, edge.Invalid("reason is required")
	}
	if body.Seconds < 0 || body.Seconds > maxFault.Seconds() {
		return nil, edge.Invalid("seconds must be from 0 to 60")
	}
	d := time.Duration(body.Seconds * float64(time.Second))
	e := entry{"drill", "fault/" + store.Text(body.Fault), body.Reason, map[string]any{"seconds": body.Seconds}}
	return body, h.audited(ctx, e, func(ctx context.Context) error { return h.fault(ctx, body.Fault, d) })
}
