package http

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/store"
)

// cutoff watches one run of a request that is told to end while its client is
// still there. What waits for the client's body fails at once. A run that is not
// over after the grace loses its connection: whatever it writes later goes
// nowhere, and nobody else writes.
type cutoff struct {
	c     echo.Context
	body  *body // nil without one
	grace time.Duration
	work  store.Work
	log   zerolog.Logger

	mu    sync.Mutex
	over  bool // the run has ended: its connection is no longer ours
	timer *time.Timer
	// lost: nothing may be written any more, because the grace has passed, or the
	// handler itself has broken off.
	lost bool
}

// run calls fn. ctx is that of the process that runs it; a panic is its business
// too, but for http.ErrAbortHandler, which is no crash.
func (k *cutoff) run(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	stop := context.AfterFunc(ctx, k.begin)
	defer func() { // also after a panic or runtime.Goexit
		stop()
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

// begin is called when the process is told to end, or the client is gone.
func (k *cutoff) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.c.Request().Context().Err() != nil {
		return
	}
	if k.body != nil {
		k.body.cut()
	}
	k.timer = time.AfterFunc(k.grace, k.expire)
}

// expire is called when the grace is over.
func (k *cutoff) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.lost = true
	k.log.Warn().Str("route", k.work.Route).Str("request_id", k.work.ID).Dur("grace", k.grace).
		Msg("request did not end when it was told to: its connection is cut off")
	// HTTP/2 resets the stream by itself.
	_ = http.NewResponseController(k.c.Response().Writer).SetWriteDeadline(longAgo())
	if r := k.c.Request(); r.ProtoMajor < 2 {
		closeConnection(r.Context())
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

// connKey is the context key of a connection.
type connKey struct{}

// closeConnection closes the connection of a request. That of TLS says no
// goodbye, for which it would wait for the client.
func closeConnection(ctx context.Context) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if conn != nil {
		_ = conn.Close()
	}
}
