package edge

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// limit returns how long a request of a class should take at most. Operators see slower ones.
func limit(d api.Class) time.Duration {
	if d == api.Transfer {
		return time.Hour
	}
	return 30 * time.Second
}

// Handler returns the reply to a request, see [Server.Answer], or an error. ctx ends with the
// request, or when it is told to end.
type Handler func(ctx context.Context, c echo.Context) (any, error)

// Route is a route of the server.
type Route struct {
	Method string // several methods are separated by spaces
	Path   string
	// Service is the service that the route belongs to; "" for all.
	Service string
	Access  api.Access
	Class   api.Class
	// Scope is what a named key needs. If Own is true, a key with the scope submit needs it only
	// for what other keys submitted.
	Scope store.Scope
	Own   bool
	// Body is how many bytes a body may have. A refused body is read up to this limit, so
	// that the client receives the refusal.
	Body int64
	// Serve calls Handle, for example Server.Levelled or Server.Direct. Streams and polls have
	// functions of their own and hold no place while they wait.
	Serve  func(c echo.Context, r *Route) error
	Handle Handler
}
