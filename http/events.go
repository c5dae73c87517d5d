package http

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

const (
	eventsPath = "/api/events"
	// ringSize is how many events are remembered.
	ringSize = 10_000
	// eventBatch is how many events are written at once.
	eventBatch = 256
)

// Topics are what GET /api/events tells of.
func Topics() []string {
	return []string{"queue:updated", "job:available", "build:assigned", "build:updated", "worker:updated", "supervisor:event"}
}

// Publish tells streams of an event. It never blocks and may be called at any
// time, also while nobody serves.
func (s *Server) Publish(e Event) {
	s.ring.add(e)
	if e.BuildID != "" {
		s.tails.wake(e.BuildID)
	}
}

// serveEvents handles GET /api/events. It asks nobody but memory, so it needs no
// actor.
func (s *Server) serveEvents(c echo.Context, _ route) error {
	topics, err := topicFilter(c.QueryParam("topics"))
	if err != nil {
		return err
	}
	leave, err := s.takeStream()
	if err != nil {
		return err
	}
	defer leave()
	// A client that comes for the first time begins here and now; one that comes
	// back goes on where it was, or hears that it has missed something.
	seq, reset := s.ring.newest(), false
	if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
		known, ok := s.ring.seq(last)
		if ok {
			_, _, ok = s.ring.after(known, nil, 0)
		}
		if reset = !ok; ok {
			seq = known
		}
	}
	ctx := c.Request().Context()
	s.runStream(ctx, c, func(st *stream) error { return s.sendEvents(ctx, st, seq, reset, topics) })
	return nil
}

var errOverrun = errors.New("the client is slower than the events")

// sendEvents sends events after seq until the client leaves, falls behind or the
// server closes.
func (s *Server) sendEvents(ctx context.Context, st *stream, seq uint64, reset bool, topics []string) error {
	// An id alone is no event, but a client that reconnects sends it back.
	position := func() []byte { return []byte("id: " + s.ring.id(seq) + "\n") }
	text := append(position(), '\n')
	if reset {
		text = append(position(), "event: reset\ndata: {}\n\n"...)
	}
	if err := st.write(text); err != nil {
		return err
	}
	var batch []*told
	for {
		events, news, ok := s.ring.after(seq, batch[:0], eventBatch)
		if !ok {
			return errOverrun
		}
		batch, text = events, text[:0]
		for _, e := range events {
			seq = e.seq
			if topics == nil || slices.Contains(topics, e.Topic) {
				text = append(text, s.ring.event(e)...)
			}
		}
		if len(text) > 0 {
			if err := st.write(text); err != nil {
				return err
			}
		}
		if news == nil {
			continue
		}
		select {
		case <-news:
			if !st.pause(ctx) {
				return nil
			}
		case <-st.ping.C:
			if err := st.write(append(position(), ": ping\n\n"...)); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-st.stopped.Done():
			return nil
		}
	}
}

// topicFilter reads a list of topics; nil means all.
func topicFilter(v string) ([]string, error) {
	if v == "" {
		return nil, nil
	}
	wanted := strings.Split(v, ",")
	for _, t := range wanted {
		if !slices.Contains(Topics(), t) {
			return nil, invalid("topics must be some of " + strings.Join(Topics(), ","))
		}
	}
	return wanted, nil
}
