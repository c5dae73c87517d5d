package http

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// cutoff watches one run of a request that is told to end while its client is
// still there. What waits for the client's body fails at once. A run that is not
// over after the grace loses its connection: whatever it writes later goes
// nowhere, and nobody else writes.
type cutoff struct {
	*shared
	c    echo.Context
	body *body // nil without one
	work store.Work

	mu    sync.Mutex  // guards what follows
	over  bool        // the run has ended: its connection is no longer ours
	timer *time.Timer // nil until the run is told to end
	// lost: nothing may be written any more, because the grace has passed, or the
	// handler itself has broken off.
	lost bool
}

// do runs fn as a levelled request. http.ErrAbortHandler means: the connection is
// to be aborted.
func (s *shared) do(c echo.Context, r *route, fn func(ctx context.Context) error) error {
	req := c.Request()
	k := &cutoff{shared: s, c: c, body: watched(req)}
	k.work = store.Work{Domain: r.domain.String(), Route: r.path, ID: requestID(c), Key: req.URL.Path, Limit: r.domain.limit(), Told: k.begin}
	err := s.requests.Do(req.Context(), k.work, func(ctx context.Context) error { return k.watch(ctx, fn) })
	if k.lost {
		return http.ErrAbortHandler
	}
	return err
}

// watch calls fn. ctx is that of the process that runs it; a panic is its business
// too, but for http.ErrAbortHandler, which is no crash.
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

// begin is called when the process is told to end.
func (k *cutoff) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	if k.body != nil {
		k.body.cut()
	}
	k.timer = time.AfterFunc(k.cfg.RequestGrace, k.expire)
}

// expire is called when the grace is over.
func (k *cutoff) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.lost = true
	k.log.Warn().Str("route", k.work.Route).Str("request_id", k.work.ID).Dur("grace", k.cfg.RequestGrace).
		Msg("request did not end when it was told to: its connection is cut off")
	// HTTP/2 resets the stream by itself.
	_ = http.NewResponseController(k.c.Response().Writer).SetWriteDeadline(longAgo())
	if r := k.c.Request(); r.ProtoMajor < 2 {
		connOf(r.Context()).cut()
	}
}

// end takes the hook away: from here on nothing touches the connection.
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
