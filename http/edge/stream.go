package edge

import (
	"context"
	"errors"
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
	// streamGap is the shortest time between two writes of news.
	streamGap = 50 * time.Millisecond
)

// Stream is a reply of server-sent events (WHATWG HTML, section 9.2). While it waits, it holds
// only its connection, no place and no transaction. The connection of a client that reads too
// slowly is closed. The owner of a stream adds events, sends them, and waits for news. Not
// safe for concurrent use.
type Stream struct {
	w       http.ResponseWriter
	conn    *http.ResponseController
	limit   time.Duration
	gone    <-chan struct{} // the client has left
	stopped context.Context // the server's, which outlives the request
	ping    *time.Ticker
	wrote   time.Time
	revoked func() bool // whether the named key of the request was revoked
	Text    []byte      // what Send writes
	// Position is written before each ping: an "id:" line or "". An id alone is no event, but
	// clients send it when they reconnect.
	Position string
}

var errRevoked = errors.New("the key was revoked")

// ErrTooManyStreams returns the error for a client when there are too many streams.
func ErrTooManyStreams() *store.Error {
	return &store.Error{Code: store.Unavailable, Message: "Too many streams, try again later", RetryAfter: streamRetry}
}

// Stream begins the reply and calls run, which sends events until it returns; it must return
// when ctx ends or Wait returns false. Errors after the reply has begun are only logged.
func (s *Server) Stream(c echo.Context, run func(ctx context.Context, st *Stream) error) error {
	return s.StreamAs(c, "text/event-stream", run)
}

// StreamAs is like Stream, with another content type.
func (s *Server) StreamAs(c echo.Context, contentType string, run func(ctx context.Context, st *Stream) error) error {
	place, err := s.Limit(RuleStreams).Take(c.Request().Context(), s.ShareOf(c), nil)
	if err != nil {
		return err
	}
	defer place.Release()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	if b := Watched(c.Request()); b != nil {
		b.Finish() // net/http notices that the client leaves only after the body was read
	}
	ctx, w := c.Request().Context(), c.Response()
	st := &Stream{
		w: w, conn: http.NewResponseController(w.Writer), limit: s.Config.StreamTimeout,
		revoked: func() bool { return KeyOf(c) != nil && s.Keys.ring.Named(KeyOf(c).Name) == nil },
		gone:    ctx.Done(), stopped: Stopping(ctx), ping: time.NewTicker(s.Config.StreamPing),
	}
	defer st.ping.Stop()
	// A write to a slow client must not delay the end of the server.
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
	err = st.Write(nil)
	if err == nil {
		err = run(ctx, st)
	}
	if err != nil && ctx.Err() == nil {
		s.Log.Debug().Err(err).Str("route", c.Path()).Str("request_id", RequestID(c)).Msg("stream was cut off")
	}
	return nil
}

// Write sends text. It fails if the client takes longer than Config.StreamTimeout to read, the
// server stops, or the request's key was revoked.
func (st *Stream) Write(text []byte) error {
	if err := st.conn.SetWriteDeadline(time.Now().Add(st.limit)); err != nil {
		return err
	}
	if err := context.Cause(st.stopped); err != nil {
		return err
	}
	if st.revoked() {
		return errRevoked
	}
	if _, err := st.w.Write(text); err != nil {
		return err
	}
	st.wrote = time.Now()
	return st.conn.Flush()
}

// AppendEvent appends an event with v as JSON to text. If id is "", the event has none.
func AppendEvent(text []byte, id, name string, v any) ([]byte, error) {
	data, err := Marshal(v)
	if err != nil {
		return text, err
	}
	if id != "" {
		text = fmt.Appendf(text, "id: %s\n", id)
	}
	return fmt.Appendf(text, "event: %s\ndata: %s\n\n", name, data), nil
}

// Add adds an event to the text that is sent next.
func (st *Stream) Add(id, name string, v any) (err error) {
	st.Text, err = AppendEvent(st.Text, id, name, v)
	return err
}

// Send writes the added text, if there is any.
func (st *Stream) Send() error {
	if len(st.Text) == 0 {
		return nil
	}
	err := st.Write(st.Text)
	st.Text = st.Text[:0]
	return err
}

// Wait waits for a tick or for news. After news it waits until streamGap has passed since the
// last write, so that many small events share one write. Meanwhile it sends pings. It returns
// whether there was a tick, and false for ok if the stream is over.
func (st *Stream) Wait(news <-chan struct{}, tick <-chan time.Time) (ticked, ok bool) {
	var gap <-chan time.Time // set once there was news
	for {
		select {
		case <-news:
			news, tick, gap = nil, nil, time.After(streamGap-time.Since(st.wrote))
		case <-gap:
			return false, true
		case <-tick:
			return true, true
		case <-st.ping.C:
			if st.Write([]byte(st.Position+": ping\n\n")) != nil {
				return false, false
			}
		case <-st.gone:
			return false, false
		case <-st.stopped.Done():
			return false, false
		}
	}
}

// AcceptsStream reports whether the client asks for server-sent events.
func AcceptsStream(h http.Header) bool {
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
