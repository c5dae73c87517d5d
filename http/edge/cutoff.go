package edge

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// cutoff ends the run of a request's handler that is told to end while its client is still
// connected. First, reads of the client's body fail. If the handler has not returned after
// the grace period, its connection is closed, so whatever it writes later is discarded.
type cutoff struct {
	server *Server
	c      echo.Context
	body   *Body // nil if there is none
	work   store.Work

	mu    sync.Mutex  // guards what follows
	over  bool        // the handler has returned: its connection must not be touched
	timer *time.Timer // nil until the handler is told to end
	// lost is true if nothing may be written any more, because the grace period is over or the
	// handler itself has aborted.
	lost bool
}

// Do runs fn as a levelled request. http.ErrAbortHandler means that the caller must abort
// the connection.
func (s *Server) Do(c echo.Context, r *Route, fn func(ctx context.Context) error) error {
	req := c.Request()
	k := &cutoff{server: s, c: c, body: Watched(req)}
	k.work = store.Work{Domain: r.Class.String(), Route: r.Path, ID: RequestID(c), Key: req.URL.Path, Limit: limit(r.Class), OnStop: k.begin}
	if r.Class == api.Transfer {
		k.work.Share = s.ShareOf(c)
	}
	err := s.requests.Do(req.Context(), k.work, func(ctx context.Context) error { return k.watch(ctx, fn) })
	if k.lost {
		return http.ErrAbortHandler
	}
	return err
}

// watch calls fn. ctx belongs to the process that runs it. That process also handles
// panics, except http.ErrAbortHandler, which is not a crash.
func (k *cutoff) watch(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	defer func() { // also after a panic or runtime.Goexit
		k.end()
		v := recover()
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			err, k.lost = e, true
		} else if v != nil {
			panic(v)
		}
	}()
	return fn(ctx)
}

// begin is called when the request's process is told to end.
func (k *cutoff) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	if k.body != nil {
		k.body.cut()
	}
	k.timer = time.AfterFunc(k.server.Config.RequestGrace, k.expire)
}

// expire is called when the grace period is over.
func (k *cutoff) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.lost = true
	if k.body != nil {
		k.body.expire()
	}
	k.server.Log.Warn().Str("route", k.work.Route).Str("request_id", k.work.ID).Dur("grace", k.server.Config.RequestGrace).
		Msg("request did not end when cancelled; closing its connection")
	hangUp(k.c)() // HTTP/2 resets the stream by itself
}

// end records that the handler has returned. After it the cutoff does not touch the
// connection.
func (k *cutoff) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	if k.timer != nil {
		k.timer.Stop()
	}
}

// longAgo is a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }
