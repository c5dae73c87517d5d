package edge

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
)

// Past is an event in a Ring.
type Past struct {
	Topic string
	Data  any
	Seq   uint64
	once  sync.Once
	text  []byte // the encoded event, made on first use
}

// Ring has the last events, numbered from 1. Publishers never wait for readers. A Ring outlives
// restarts of the endpoint. Safe for concurrent use.
type Ring struct {
	start string // begins the ids of events, so that those of another process are recognized

	mu     sync.Mutex    // guards what follows
	events []*Past       // the event with number n has index (n-1) % len
	last   uint64        // the newest one's number
	news   chan struct{} // closed by the next Add; nil if nobody waits
}

// NewRing returns a Ring of the last size events.
func NewRing(size int) *Ring { return &Ring{start: rand.Text()[:10], events: make([]*Past, size)} }

// Add adds an event as the newest one. It never blocks. data is sent as JSON and must not be
// changed any more.
func (r *Ring) Add(topic string, data any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.events[(r.last-1)%uint64(len(r.events))] = &Past{Topic: topic, Data: data, Seq: r.last}
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// After appends up to limit events after number seq to buf. If there are none, news is
// closed when the next one is added. ok is false if the ring no longer has some of them.
func (r *Ring) After(seq uint64, buf []*Past, limit int) (events []*Past, news <-chan struct{}, ok bool) {
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

// Newest returns the number of the newest event.
func (r *Ring) Newest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// ID is the event id that clients see for number seq.
func (r *Ring) ID(seq uint64) string { return r.start + "-" + strconv.FormatUint(seq, 10) }

// Seq reads an id of this ring.
func (r *Ring) Seq(id string) (seq uint64, ok bool) {
	number, ours := strings.CutPrefix(id, r.start+"-")
	if !ours {
		return 0, false
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	return seq, err == nil
}

// Event returns e as it is sent.
func (r *Ring) Event(e *Past) []byte {
	e.once.Do(func() {
		var err error
		if e.text, err = AppendEvent(nil, r.ID(e.Seq), e.Topic, e.Data); err != nil {
			e.text, _ = AppendEvent(nil, r.ID(e.Seq), e.Topic, nil) // every type that is published can be encoded
		}
	})
	return e.text
}

// latestDepth is how many events Latest searches.
const latestDepth = 2000

// Latest returns the data of the last n events of a topic that keep wants, newest
// first.
func (r *Ring) Latest(topic string, n int, keep func(any) bool) (data []any) {
	r.mu.Lock()
	recent := make([]*Past, 0, latestDepth)
	for seq := r.last; seq > 0 && r.last-seq < min(latestDepth, uint64(len(r.events))); seq-- {
		recent = append(recent, r.events[(seq-1)%uint64(len(r.events))])
	}
	r.mu.Unlock()
	for _, e := range recent {
		if len(data) < n && e.Topic == topic && keep(e.Data) {
			data = append(data, e.Data)
		}
	}
	return data
}
