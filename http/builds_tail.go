package http

import (
	"context"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	logsPath = "/api/builds/:id/logs"
	// tailPage is how many lines a stream reads and writes at once.
	tailPage = 500
	// tailReads is how many streams read at once: they are many, connections to
	// the database few.
	tailReads = 4
)

// serveLogs handles GET /api/builds/:id/logs: the lines so far as JSON, or a stream
// of server-sent events that goes on until the build ends. Who may see them is
// found out in a request actor; then the stream leaves it.
func (s *Server) serveLogs(c echo.Context, r route) error {
	h := c.Response().Header()
	h.Add("Vary", "Accept")
	if !acceptsStream(c.Request().Header) {
		return s.serveActor(c, r)
	}
	after, err := tailStart(c)
	if err != nil {
		return err
	}
	leave, err := s.takeStream()
	if err != nil {
		return err
	}
	defer leave()
	var b store.Build
	ctx := c.Request().Context()
	err = s.deps.Requests.Do(ctx, work(c, r), func(ctx context.Context) (err error) {
		b, err = s.build(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	defer s.tails.follow(b.ID)()
	s.runStream(ctx, c, func(st *stream) error { return s.sendTail(ctx, st, b.ID, after) })
	return nil
}

// tailStart is the last line that the client has: of Last-Event-ID, which a browser
// sends when it comes back, or else of ?after=.
func tailStart(c echo.Context) (int64, error) {
	v, name := c.Request().Header.Get("Last-Event-ID"), "Last-Event-ID"
	if v == "" {
		v, name = c.QueryParam("after"), "after"
	}
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid(name + " must be a whole number")
	}
	return n, nil
}

// sendTail sends the lines after number after, and then the end. The rows are the
// truth, so the stream goes on wherever it was broken off. Without a database it
// waits.
func (s *Server) sendTail(ctx context.Context, st *stream, id string, after int64) error {
	for {
		news := s.tails.news(id)
		t, err := s.readTail(ctx, id, after)
		if err != nil && store.CodeOf(err) != store.Unavailable {
			return err
		}
		if n := len(t.Lines); n > 0 {
			after = t.Lines[n-1].Seq
		}
		text, bad := tailText(id, t)
		if bad != nil {
			return bad
		}
		if len(text) > 0 {
			if err := st.write(text); err != nil {
				return err
			}
		}
		switch {
		case len(t.Lines) == tailPage:
			continue
		case t.State.Final():
			return nil
		case !s.awaitTail(ctx, st, news, err != nil):
			return nil
		}
	}
}

func (s *Server) readTail(ctx context.Context, id string, after int64) (store.Tail, error) {
	select {
	case s.tailReads <- struct{}{}:
		defer func() { <-s.tailReads }()
	case <-ctx.Done():
		return store.Tail{}, context.Cause(ctx)
	}
	return s.deps.Builds.Tail(ctx, id, after, tailPage)
}

// tailText is t as it is sent.
func tailText(id string, t store.Tail) (text []byte, err error) {
	event := func(head string, v any) {
		data, merr := marshal(v)
		if merr != nil {
			err = merr
		}
		text = append(append(append(text, head...), data...), "\n\n"...)
	}
	for _, l := range t.Lines {
		event("id: "+strconv.FormatInt(l.Seq, 10)+"\nevent: log\ndata: ", logEntry(l))
	}
	if t.State.Final() && len(t.Lines) < tailPage {
		event("event: end\ndata: ", api.LogEnd{BuildID: id, Status: t.State.Wire(), State: string(t.State)})
	}
	return text, err
}

func logEntry(l store.LogLine) api.LogEntry {
	return api.LogEntry{Timestamp: api.Millis(l.At.UnixMilli()), Level: string(l.Level), Message: l.Message, Seq: l.Seq}
}

// awaitTail waits for news of the build, or a moment if the last read has failed,
// and reports whether the stream goes on.
func (s *Server) awaitTail(ctx context.Context, st *stream, news <-chan struct{}, failed bool) bool {
	look := time.NewTicker(s.cfg.TailInterval)
	defer look.Stop()
	for {
		select {
		case <-news:
			return st.pause(ctx)
		case <-look.C:
			if failed {
				return true
			}
			if err := s.tails.look(ctx, s.cfg.TailInterval, s.deps.Builds.LogMarks); err != nil {
				s.log.Debug().Err(err).Msg("followed logs could not be looked at")
			}
		case <-st.ping.C:
			if st.write([]byte(": ping\n\n")) != nil {
				return false
			}
		case <-ctx.Done():
			return false
		case <-st.stopped.Done():
			return false
		}
	}
}
