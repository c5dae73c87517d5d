package http

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
)

// Event is something that has happened, as GET /api/events tells it.
type Event struct {
	// Topic is a name such as "build:updated"; Data is what is sent as JSON. It is
	// never changed.
	Topic string
	Data  any
	// BuildID is the build that it is about: streams of its log look for news.
	BuildID string
}

// told is an event in the ring.
type told struct {
	Event
	seq  uint64
	once sync.Once
	text []byte // as it is sent, once somebody asks
}

// ring remembers the last events. Their numbers begin with 1; start tells the ring
// of one process from that of the next. Whoever publishes never waits for whoever
// reads. It belongs to the Server, so that it outlives restarts of the endpoint.
type ring struct {
	start string

	mu     sync.Mutex
	events []*told // the event with number n is at (n-1) % len
	last   uint64  // the newest one's number
	news   chan struct{}
}

func newRing(size int) *ring { return &ring{start: rand.Text()[:10], events: make([]*told, size)} }

// add never blocks.
func (r *ring) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.events[(r.last-1)%uint64(len(r.events))] = &told{Event: e, seq: r.last}
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// after appends up to limit events after number seq to buf. If there are none,
// news is closed with the next. ok is false if the ring has forgotten some.
func (r *ring) after(seq uint64, buf []*told, limit int) (events []*told, news <-chan struct{}, ok bool) {
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

// newest is the number of the last event.
func (r *ring) newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// id is how the event with number seq is called outside.
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

// event is e as it is sent.
func (r *ring) event(e *told) []byte {
	e.once.Do(func() {
		data, err := marshal(e.Data)
		if err != nil {
			data = []byte("null") // no type that is published fails
		}
		e.text = append([]byte("id: "+r.id(e.seq)+"\nevent: "+e.Topic+"\ndata: "), data...)
		e.text = append(e.text, "\n\n"...)
	})
	return e.text
}
