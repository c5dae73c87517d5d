package edge

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// limit is how long a request of a class should take at most; operators are shown slower ones.
func limit(d api.Class) time.Duration {
	if d == api.Transfer {
		return time.Hour
	}
	return 30 * time.Second
}

// Handler answers a request with a value that is sent as JSON, see [Server.Reply], or
// with an error. ctx ends with the request, or when it is told to end.
type Handler func(ctx context.Context, c echo.Context) (any, error)

// Route is one row of the table.
type Route struct {
	Method string // several methods are separated by spaces
	Path   string
	// Service is the service that the route belongs to; "" for all.
	Service string
	Access  api.Access
	Class   api.Class
	// Scope is what a key with a name needs. With Own, one that submits reaches what it
	// submitted without it.
	Scope store.Scope
	Own   bool
	// Body is how many bytes a body may have. A refused body is read up to this limit, so
	// that the client receives the refusal.
	Body int64
	// Serve runs handle, for example levelled or direct. Streams and polls have their own
	// function and hold no place while only their connection waits.
	Serve  func(c echo.Context, r *Route) error
	Handle Handler
	// Root, unless it is nil, gives a request a trace of its own, to which its client's trace
	// is only linked.
	Root func(ctx context.Context) context.Context
}
