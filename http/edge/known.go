package edge

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// Within calls f while it holds one unit of l, in which known addresses have no limit of
// their own. If the unit is taken away, the context of c's request ends and the client loses
// its connection.
func (s *Server) Within(l *Limiter, c echo.Context, f func() error) error {
	who, req := s.Addr(c), c.Request()
	if s.known.has(who, time.Now()) {
		return l.Do(req.Context(), "", f)
	}
	hangUp := hangUp(c)
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	release, err := l.Take(ctx, who, func(cause error) {
		cancel(cause)
		hangUp()
	})
	if err != nil {
		return err
	}
	defer release()
	c.SetRequest(req.WithContext(ctx))
	defer c.SetRequest(req)
	if err = f(); err != nil {
		if cut, ok := errors.AsType[*store.Error](context.Cause(ctx)); ok {
			return cut
		}
	}
	return err
}

// hangUp returns a function that ends a request's connection, or with HTTP/2 its stream.
// Any goroutine may call it until the request has been answered.
func hangUp(c echo.Context) func() {
	r, reply := c.Request(), http.NewResponseController(c.Response().Writer)
	body, conn := Watched(r), connOf(r.Context())
	return func() {
		if body != nil {
			body.cut()
		}
		_ = reply.SetWriteDeadline(longAgo())
		if r.ProtoMajor < 2 {
			conn.cut()
		}
	}
}

// knownFor is for how long at least an address stays known; at most it is twice as long.
const knownFor = 5 * time.Minute

// known remembers the addresses that have shown a right key, session or signature lately.
// Limits for strangers don't apply to them. Requests without a key add nothing.
type known struct {
	mu sync.RWMutex // guards by
	by recent[struct{}]
}

func newKnown() *known { return &known{by: recent[struct{}]{life: knownFor}} }

func (k *known) has(who string, now time.Time) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, ok := k.by.get(who, now)
	return ok
}

func (k *known) add(who string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by.put(who, struct{}{}, now)
}

// Trust notes that a request has shown a right key, session or signature.
func (s *Server) Trust(c echo.Context, now time.Time) {
	connOf(c.Request().Context()).trust(now)
	if len(s.Config.TrustedProxies) == 0 {
		return
	}
	if who := s.Addr(c); !s.known.has(who, now) { // the connection may be a proxy's
		s.known.add(who, now)
	}
}

// Addr is the remote address of a request as limits count it.
func (s *Server) Addr(c echo.Context) string {
	return quotaAddr(Remote(c.Request(), s.Config.TrustedProxies))
}
