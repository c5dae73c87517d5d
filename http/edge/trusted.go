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

// Within calls f while it holds a unit of a limit for the address of a request. If the unit is taken
// away, the request's context ends and its connection is closed. No unit of a trusted address is
// taken away.
func (s *Server) Within(rule string, c echo.Context, f func() error) error {
	l, addr, req := s.Limit(rule), s.Addr(c), c.Request()
	who := store.Share{Part: addr, Trusted: s.trusted.has(addr, time.Now())}
	if who.Trusted {
		return l.Do(req.Context(), who, f)
	}
	hangUp := hangUp(c)
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	unit, err := l.Take(ctx, who, func(cause error) {
		cancel(cause)
		hangUp()
	})
	if err != nil {
		return err
	}
	defer unit.Release()
	c.SetRequest(req.WithContext(ctx))
	defer c.SetRequest(req)
	if err = f(); err != nil {
		if cut, ok := errors.AsType[*store.Error](context.Cause(ctx)); ok {
			return cut
		}
	}
	return err
}

// hangUp returns a function that closes a request's connection, or with HTTP/2 its stream.
// Any goroutine may call it until the request was answered.
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

// trustedFor is the shortest time for which an address stays trusted; the longest is twice that.
const trustedFor = 5 * time.Minute

// belongsFor is the same for a worker, see [Server.Belongs].
const belongsFor = time.Hour

// trusted remembers who has recently sent a key, session or signature that its route accepts.
// They get more than others. Safe for concurrent use.
type trusted struct {
	mu sync.RWMutex // guards by
	by recent[struct{}]
}

func newTrusted(life time.Duration) *trusted { return &trusted{by: recent[struct{}]{life: life}} }

func (k *trusted) has(who string, now time.Time) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, ok := k.by.get(who, now)
	return ok
}

func (k *trusted) add(who string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by.put(who, struct{}{}, now)
}

// Addr returns the remote address of a request, as limits count it.
func (s *Server) Addr(c echo.Context) string {
	return quotaAddr(Remote(c.Request(), s.Config.TrustedProxies))
}
