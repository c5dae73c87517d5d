package http

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

const (
	// streamRetry is what a client is told to wait that finds all streams taken.
	streamRetry = 5 * time.Second
	// streamGap is how long news are gathered between two writes of a stream.
	streamGap = 50 * time.Millisecond
)

// stream is a reply of server-sent events (WHATWG HTML, section 9.2). It holds no
// slot, no actor and no transaction; only its connection waits. A client that does
// not take what is written in time is cut off.
type stream struct {
	w       http.ResponseWriter
	conn    *http.ResponseController
	limit   time.Duration
	stopped context.Context //nolint:containedctx // lives as long as the request that owns it
	release func() bool
	ping    *time.Ticker
	wrote   time.Time
}

// takeStream takes one of the places for streams; leave gives it back.
func (s *Server) takeStream() (leave func(), err error) {
	select {
	case s.streams <- struct{}{}:
	default:
		return nil, &store.Error{Code: store.Unavailable, Message: "Too many streams, try again later", RetryAfter: streamRetry}
	}
	s.metrics.streams.Inc()
	return func() { <-s.streams; s.metrics.streams.Dec() }, nil
}

// openStream begins the reply. The stream ends with ctx, which has to be the
// request's, and when the server is closing.
func (s *Server) openStream(ctx context.Context, c echo.Context) (*stream, error) {
	if b := watched(c.Request()); b != nil {
		b.finish() // while a body is unread nobody sees the client leave
	}
	w := c.Response()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	stopped := stopping(ctx)
	st := &stream{
		w: w, conn: http.NewResponseController(w.Writer), limit: s.cfg.StreamTimeout,
		stopped: stopped, ping: time.NewTicker(s.cfg.StreamPing),
	}
	// A write that waits for a slow client does not keep the server from ending.
	st.release = context.AfterFunc(stopped, func() { _ = st.conn.SetWriteDeadline(time.Unix(1, 0)) })
	w.WriteHeader(http.StatusOK)
	if err := st.write(nil); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

func (st *stream) close() {
	st.release()
	st.ping.Stop()
}

// write sends text and waits until the connection has taken it.
func (st *stream) write(text []byte) error {
	if err := st.conn.SetWriteDeadline(time.Now().Add(st.limit)); err != nil {
		return err
	}
	if err := context.Cause(st.stopped); err != nil {
		return err
	}
	if _, err := st.w.Write(text); err != nil {
		return err
	}
	st.wrote = time.Now()
	return st.conn.Flush()
}

// pause waits for what is left of streamGap since the last write, so that many
// small news become few writes. It reports whether the stream goes on.
func (st *stream) pause(ctx context.Context) bool {
	wait := streamGap - time.Since(st.wrote)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-st.stopped.Done():
	}
	return false
}

// runStream begins the reply, has run send it, and ends it. What goes wrong then is
// told to nobody but the log: the reply is on its way.
func (s *Server) runStream(ctx context.Context, c echo.Context, run func(st *stream) error) {
	st, err := s.openStream(ctx, c)
	if err == nil {
		err = run(st)
		st.close()
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug().Err(err).Str("route", c.Path()).Str("request_id", requestID(c)).Msg("stream was cut off")
	}
}

// acceptsStream reports whether the client asks for server-sent events.
func acceptsStream(h http.Header) bool {
	for _, line := range h["Accept"] {
		for item := range strings.SplitSeq(line, ",") {
			kind, params, _ := strings.Cut(item, ";")
			if !strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") {
				continue
			}
			q := strings.ReplaceAll(params, " ", "")
			return q != "q=0" && q != "q=0.0" && q != "q=0.00" && q != "q=0.000"
		}
	}
	return false
}
