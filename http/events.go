package http

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

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
	*shared
	ring *ring
}

// Topics are the topics of GET /api/events.
func Topics() []string {
	return []string{"queue:updated", "job:available", "build:assigned", store.TopicBuildUpdated, store.TopicWorkerUpdated, "supervisor:event"}
}

// Publish adds an event to the streams. It never blocks and may be called at any time,
// even while Serve is not running.
func (s *Server) Publish(e Event) {
	s.ring.add(e)
	if e.BuildID != "" {
		s.logs.wake(e.BuildID)
	}
}

// DeploymentChanged wakes the streams of a deployment. It never blocks.
func (s *Server) DeploymentChanged(id string) { s.changed.wake(id) }

func (h *events) serve(c echo.Context, _ *route) error {
	topics, err := topicFilter(c.QueryParam("topics"))
	if err != nil {
		return err
	}
	// A new client starts at the newest event. A client that reconnects resumes after its
	// last event, or gets a reset event if the ring has lost some.
	seq, reset := h.ring.newest(), false
	if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
		known, ok := h.ring.seq(last)
		if ok {
			_, _, ok = h.ring.after(known, nil, 0)
		}
		if reset = !ok; ok {
			seq = known
		}
	}
	return h.stream(c, func(_ context.Context, st *stream) error { return h.send(st, seq, reset, topics) })
}

var errOverrun = errors.New("the client is slower than the events")

// send sends events after seq until the client leaves, falls behind or the server
// closes.
func (h *events) send(st *stream, seq uint64, reset bool, topics []string) error {
	st.position = "id: " + h.ring.id(seq) + "\n"
	st.text = append(st.text, st.position...)
	if reset {
		st.text = append(st.text, "event: reset\ndata: {}\n"...)
	}
	st.text = append(st.text, '\n')
	var batch []*past
	for {
		if err := st.send(); err != nil {
			return err
		}
		events, news, ok := h.ring.after(seq, batch[:0], eventBatch)
		if !ok {
			return errOverrun
		}
		batch = events
		for _, e := range events {
			seq = e.seq
			if topics == nil || slices.Contains(topics, e.Topic) {
				st.text = append(st.text, h.ring.event(e)...)
			}
		}
		if news == nil {
			continue
		}
		st.position = "id: " + h.ring.id(seq) + "\n"
		if _, ok := st.wait(news, nil); !ok {
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

// Event is something that has happened, as GET /api/events shows it.
type Event struct {
	// Topic is a name such as "build:updated". Data is sent as JSON and must not be
	// changed after Publish.
	Topic string
	Data  any
	// BuildID is the event's build. The streams of its log wake.
	BuildID string
}

// past is an event in the ring.
type past struct {
	Event
	seq  uint64
	once sync.Once
	text []byte // the encoded event, made on first use
}

// ring holds the last events. They are numbered from 1; start distinguishes the rings of
// two processes. Publishers never wait for readers. The ring belongs to the Server, so
// that it outlives restarts of the endpoint.
type ring struct {
	start string

	mu     sync.Mutex
	events []*past // the event with number n is at (n-1) % len
	last   uint64  // the newest one's number
	news   chan struct{}
}

func newRing(size int) *ring { return &ring{start: rand.Text()[:10], events: make([]*past, size)} }

// add adds e as the newest event. It never blocks.
func (r *ring) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.events[(r.last-1)%uint64(len(r.events))] = &past{Event: e, seq: r.last}
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// after appends up to limit events after number seq to buf. If there are none, news is
// closed when the next one is added. ok is false if the ring no longer has some of them.
func (r *ring) after(seq uint64, buf []*past, limit int) (events []*past, news <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq > r.last || r.last-seq > uint64(len(r.events)) {
		return buf, nil, false
	}
	if seq == r.last {
		if r.news == nil {
			r.news = make(chan struct{})
		}
		return buf, r.news, true
	}
	for n := seq; n < r.last && len(buf) < limit; n++ {
		buf = append(buf, r.events[n%uint64(len(r.events))])
	}
	return buf, nil, true
}

// newest is the number of the newest event.
func (r *ring) newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// id is the event id that clients see for number seq.
func (r *ring) id(seq uint64) string { return r.start + "-" + strconv.FormatUint(seq, 10) }

// seq reads an id of this ring.
func (r *ring) seq(id string) (seq uint64, ok bool) {
	number, ours := strings.CutPrefix(id, r.start+"-")
	if !ours {
		return 0, false
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	return seq, err == nil
}

// event returns e as it is sent.
func (r *ring) event(e *past) []byte {
	e.once.Do(func() {
		var err error
		if e.text, err = appendEvent(nil, r.id(e.seq), e.Topic, e.Data); err != nil {
			e.text, _ = appendEvent(nil, r.id(e.seq), e.Topic, nil) // every type that is published can be encoded
		}
	})
	return e.text
}
