package http

import (
	"context"
	"sync"
	"time"

	"takt/store"
)

// tails are the builds whose logs somebody follows. What this server commits, and
// what is published here, wakes their streams; what other controllers do is found
// by a look at all of them at once, which one of the streams does for the others.
type tails struct {
	mu      sync.Mutex
	builds  map[string]*tail
	looking bool
	looked  time.Time // when the last look began
}

// tail is one such build.
type tail struct {
	streams int
	news    chan struct{} // closed and replaced when there may be something new
	mark    store.LogMark // as the last look found it
}

func newTails() *tails { return &tails{builds: map[string]*tail{}} }

// follow enters a stream; leave takes it out.
func (t *tails) follow(id string) (leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.builds[id]
	if b == nil {
		b = &tail{news: make(chan struct{})}
		t.builds[id] = b
	}
	b.streams++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if b.streams--; b.streams == 0 {
			delete(t.builds, id)
		}
	}
}

// news is closed at the next wake. Ask before reading rows: then nothing is missed.
func (t *tails) news(id string) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.builds[id].news
}

// wake tells the streams of a build to look. It never blocks.
func (t *tails) wake(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.builds[id]; b != nil {
		b.wake()
	}
}

func (b *tail) wake() {
	close(b.news)
	b.news = make(chan struct{})
}

// look asks for the marks of all builds that are followed and wakes the streams of
// those that have moved on, unless somebody else does, or has done within interval.
func (t *tails) look(ctx context.Context, interval time.Duration, marks func(context.Context, []string) (map[string]store.LogMark, error)) error {
	ids := t.begin(interval)
	if ids == nil {
		return nil
	}
	defer t.end()
	found, err := marks(ctx, ids)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, mark := range found {
		if b := t.builds[id]; b != nil && b.mark != mark {
			b.mark = mark
			b.wake()
		}
	}
	return nil
}

// begin returns the builds to look at, nil if there is no need.
func (t *tails) begin(interval time.Duration) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.looking || now.Sub(t.looked) < interval/2 {
		return nil
	}
	t.looking, t.looked = true, now
	for id := range t.builds {
		ids = append(ids, id)
	}
	return ids
}

func (t *tails) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looking = false
}

// followed is a store of builds that wakes the streams of the logs to which it
// writes.
type followed struct {
	Builds
	tails *tails
}

// Touch implements Builds.
func (f followed) Touch(ctx context.Context, sign store.Sign) (store.SignReply, error) {
	r, err := f.Builds.Touch(ctx, sign)
	if len(sign.Logs) > 0 {
		f.tails.wake(sign.BuildID)
	}
	return r, err
}

// Heartbeat implements Builds.
func (f followed) Heartbeat(ctx context.Context, sign store.Sign) (store.SignReply, error) {
	r, err := f.Builds.Heartbeat(ctx, sign)
	if len(sign.Logs) > 0 {
		f.tails.wake(sign.BuildID)
	}
	return r, err
}
