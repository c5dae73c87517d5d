package http

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

const (
	// streamRetry is the Retry-After of a client that finds all streams taken.
	streamRetry = 5 * time.Second
	// streamGap is the least time between two writes of news.
	streamGap = 50 * time.Millisecond
)

// stream is a reply of server-sent events (WHATWG HTML, section 9.2). It holds no
// place and no transaction; only its connection waits. A client that does not
// take what is written in time is cut off. Its owner adds events, sends them, and
// waits for news.
type stream struct {
	w       http.ResponseWriter
	conn    *http.ResponseController
	limit   time.Duration
	gone    <-chan struct{} // the client has left
	stopped context.Context //nolint:containedctx // the server's, which outlives the request
	ping    *time.Ticker
	wrote   time.Time
	text    []byte // what is sent next
	// position stands before each ping. An id alone is no event, but a client that
	// reconnects sends it back.
	position string
}

func errTooManyStreams() error {
	return &store.Error{Code: store.Unavailable, Message: "Too many streams, try again later", RetryAfter: streamRetry}
}

// stream begins the reply, has run send it, and ends it, also when the client
// leaves or the server closes. Errors after the reply has begun are only logged.
func (s *shared) stream(c echo.Context, run func(ctx context.Context, st *stream) error) error {
	return s.streamAs(c, "text/event-stream", run)
}

// streamAs is stream for another type of content.
func (s *shared) streamAs(c echo.Context, contentType string, run func(ctx context.Context, st *stream) error) error {
	select {
	case s.streams <- struct{}{}:
	default:
		return errTooManyStreams()
	}
	s.metrics.streams.Inc()
	defer func() { <-s.streams; s.metrics.streams.Dec() }()
	if b := watched(c.Request()); b != nil {
		b.finish() // while a body is unread nobody sees the client leave
	}
	ctx, w := c.Request().Context(), c.Response()
	st := &stream{
		w: w, conn: http.NewResponseController(w.Writer), limit: s.cfg.StreamTimeout,
		gone: ctx.Done(), stopped: stopping(ctx), ping: time.NewTicker(s.cfg.StreamPing),
	}
	defer st.ping.Stop()
	// A write that waits for a slow client does not keep the server from ending.
	interrupted := make(chan struct{})
	release := context.AfterFunc(st.stopped, func() {
		defer close(interrupted)
		_ = st.conn.SetWriteDeadline(longAgo())
	})
	defer func() {
		if !release() {
			<-interrupted // nothing touches the connection after this
		}
	}()
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	err := st.write(nil)
	if err == nil {
		err = run(ctx, st)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Debug().Err(err).Str("route", c.Path()).Str("request_id", requestID(c)).Msg("stream was cut off")
	}
	return nil
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

// appendEvent adds an event to text; without an id if that is "".
func appendEvent(text []byte, id, name string, v any) ([]byte, error) {
	data, err := marshal(v)
	if err != nil {
		return text, err
	}
	if id != "" {
		text = fmt.Appendf(text, "id: %s\n", id)
	}
	return fmt.Appendf(text, "event: %s\ndata: %s\n\n", name, data), nil
}

// add adds an event to what is sent next.
func (st *stream) add(id, name string, v any) (err error) {
	st.text, err = appendEvent(st.text, id, name, v)
	return err
}

// send writes what was added, if anything was.
func (st *stream) send() error {
	if len(st.text) == 0 {
		return nil
	}
	err := st.write(st.text)
	st.text = st.text[:0]
	return err
}

// wait returns when there is news, but some time after the last write, so that
// many small news become few writes; or at a tick. Meanwhile it sends pings. It
// reports which of the two it was, and whether the stream goes on.
func (st *stream) wait(news <-chan struct{}, tick <-chan time.Time) (ticked, ok bool) {
	var gap <-chan time.Time // not nil once there was news
	for {
		select {
		case <-news:
			news, tick, gap = nil, nil, time.After(streamGap-time.Since(st.wrote))
		case <-gap:
			return false, true
		case <-tick:
			return true, true
		case <-st.ping.C:
			if st.write([]byte(st.position+": ping\n\n")) != nil {
				return false, false
			}
		case <-st.gone:
			return false, false
		case <-st.stopped.Done():
			return false, false
		}
	}
}

// acceptsStream reports whether the client asks for server-sent events.
func acceptsStream(h http.Header) bool {
	for _, line := range h["Accept"] {
		for item := range strings.SplitSeq(line, ",") {
			kind, params, err := mime.ParseMediaType(item)
			if err != nil || kind != "text/event-stream" {
				continue
			}
			q, err := strconv.ParseFloat(params["q"], 64)
			return err != nil || q > 0
		}
	}
	return false
}
