package http

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// ringSize is how many events are remembered.
	ringSize = 10_000
	// eventBatch is how many events are written at once.
	eventBatch = 256
)

// events serves the streams of events from memory only.
type events struct {
	edge *edge.Server
	ring *edge.Ring
}

// Topics are the topics of GET /api/events.
func Topics() []string {
	return []string{"queue:updated", "job:available", "build:assigned", store.TopicBuildUpdated, store.TopicWorkerUpdated, "supervisor:event"}
}

// Publish adds an event to the streams. It never blocks and may be called at any time,
// even while Serve is not running.
func (s *Server) Publish(e Event) {
	s.ring.Add(e.Topic, e.Data)
	if e.BuildID != "" {
		s.logs.wake(e.BuildID)
	}
}

// LatestEvents returns the data of the last n events of a topic that keep wants, newest first.
func (s *Server) LatestEvents(topic string, n int, keep func(any) bool) []any {
	return s.ring.Latest(topic, n, keep)
}

// DeploymentChanged wakes the streams of a deployment. It never blocks.
func (s *Server) DeploymentChanged(id string) { s.changed.wake(id) }

func (h *events) routes() []edge.Route {
	r := h.edge.Of(api.FollowEvents.Route)
	r.Serve = h.serve
	return []edge.Route{r}
}

func (h *events) serve(c echo.Context, _ *edge.Route) error {
	in, err := edge.Read(c, api.FollowEvents)
	if err != nil {
		return err
	}
	topics, err := topicFilter(in.Topics)
	if err != nil {
		return err
	}
	// A new client starts at the newest event. A client that reconnects resumes after its
	// last event, or gets a reset event if the ring has lost some.
	seq, reset := h.ring.Newest(), false
	if last := in.LastEventID; last != "" {
		known, ok := h.ring.Seq(last)
		if ok {
			_, _, ok = h.ring.After(known, nil, 0)
		}
		if reset = !ok; ok {
			seq = known
		}
	}
	return h.edge.Stream(c, func(_ context.Context, st *edge.Stream) error { return h.send(st, seq, reset, topics) })
}

var errOverrun = errors.New("the client is slower than the events")

// send sends events after seq until the client leaves, falls behind or the server
// closes.
func (h *events) send(st *edge.Stream, seq uint64, reset bool, topics []string) error {
	st.Position = "id: " + h.ring.ID(seq) + "\n"
	st.Text = append(st.Text, st.Position...)
	if reset {
		st.Text = append(st.Text, "event: reset\ndata: {}\n"...)
	}
	st.Text = append(st.Text, '\n')
	var batch []*edge.Past
	for {
		if err := st.Send(); err != nil {
			return err
		}
		events, news, ok := h.ring.After(seq, batch[:0], eventBatch)
		if !ok {
			return errOverrun
		}
		batch = events
		for _, e := range events {
			seq = e.Seq
			if topics == nil || slices.Contains(topics, e.Topic) {
				st.Text = append(st.Text, h.ring.Event(e)...)
			}
		}
		if news == nil {
			continue
		}
		st.Position = "id: " + h.ring.ID(seq) + "\n"
		if _, ok := st.Wait(news, nil); !ok {
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
			return nil, edge.Invalid("topics must be some of " + strings.Join(Topics(), ","))
		}
	}
	return wanted, nil
}

// Event is something that has happened, as GET /api/events shows it.
type Event struct {
	// Topic is a name such as "build:updated". Data is sent as JSON and must not be
	// changed after Publish.
	Topic string
	Data  any
	// BuildID is the event's build. The streams of its log wake.
	BuildID string
}
