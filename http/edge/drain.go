package edge

import (
	"context"
	"errors"
	"time"

	"takt/store"
	"takt/store/backoff"
)

// ErrServerClosed is the cause of contexts that end because a Serve ends or the server drains.
var ErrServerClosed = errors.New("the server is closing")

// ErrDraining is the answer of a draining server.
func ErrDraining() error {
	return store.NewError(store.Unavailable, "The controller is shutting down")
}

// stoppingKey is the context key of the context that ends when its Serve ends or the
// server drains.
type stoppingKey struct{}

// Stopping returns a context that ends before ctx when the server is closing.
func Stopping(ctx context.Context) context.Context {
	if c, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		return c
	}
	return ctx
}

// Drain prepares the end of the process. From now on new requests are answered 503 with
// Connection: close, except for /livez and /readyz; what waits is answered at once. Drain
// returns when the requests under way have ended, of all calls of Serve, or after
// ShutdownTimeout. Serve goes on and may be called again, so that probes are answered
// until the process ends.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	if release := s.release.Load(); release != nil {
		(*release)(ErrServerClosed)
	}
	limit := time.NewTimer(s.Config.ShutdownTimeout)
	defer limit.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-s.idle:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// HandOver prepares the end of a process whose listener stays open in another process. From
// now on nothing is accepted: new connections wait for the process that comes next. What waits
// is answered at once, and the other requests are served, also those that still arrive on open
// connections. HandOver returns when all connections have closed, or after ShutdownTimeout.
func (s *Server) HandOver(ctx context.Context) {
	s.left.Store(true)
	if leave := s.leave.Load(); leave != nil {
		(*leave)()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Config.ShutdownTimeout, ErrServerClosed)
	defer cancel()
	for s.conns.any() && backoff.Pause(ctx, 10*time.Millisecond) == nil {
	}
}

// Wait returns when the requests of all calls of Serve that have returned have ended, and what
// they began.
func (s *Server) Wait() {
	s.ended.Wait()
	s.detached.wait()
}

// patience is how long the requests of a Serve that returns may take to end. When the
// server drains, that time is over.
func (s *Server) patience() time.Duration {
	if s.draining.Load() || s.left.Load() {
		return s.Config.RequestGrace
	}
	return s.Config.ShutdownTimeout
}

// lastRequests is how long open connections may send a last request after a Serve has ended.
const lastRequests = 2 * time.Second

// awaitLast returns when connections of a Serve that has ended may be closed. An operator's browser
// asks for the next page just when the endpoint restarts, perhaps on a connection that it opened
// in advance. If that is closed meanwhile it shows an error, because it repeats a request only on
// a connection that has answered one. When the process ends there is no next page.
func (s *Server) awaitLast(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, lastRequests, ErrServerClosed)
	defer cancel()
	for s.conns.any() && !s.draining.Load() && !s.left.Load() && backoff.Pause(ctx, 10*time.Millisecond) == nil {
	}
}

// drainPath reports whether a route is served while the server drains. Its requests are
// not waited for.
func drainPath(path string) bool { return path == "/livez" || path == "/readyz" || path == "/healthz" }

// Running is how many requests are under way, parked polls included.
func (s *Server) Running() int { return int(s.inFlight.Load()) }

// begin counts a request as under way. It returns false if the server drains.
func (s *Server) begin() bool {
	s.inFlight.Add(1)
	if s.draining.Load() {
		s.end()
		return false
	}
	return true
}

// end counts a request as ended.
func (s *Server) end() {
	if s.inFlight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default: // Drain has not seen the one before
		}
	}
}
