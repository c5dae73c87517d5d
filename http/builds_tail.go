package http

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	// tailPage is how many lines a stream reads and writes at once.
	tailPage = 500
	// tailReads is how many streams read at once: they are many, connections to
	// the database few.
	tailReads = 4
)

// tails serves logs: the lines so far, or a stream that goes on until the build
// ends.
type tails struct {
	*shared
	builds *builds
	logs   *followers
	reads  chan struct{} // a place for each stream that reads rows
}

// serve handles GET /api/builds/:id/logs. A levelled request checks who may see the
// stream; then the stream leaves it.
func (h *tails) serve(c echo.Context, r *route) error {
	c.Response().Header().Add("Vary", "Accept")
	if !acceptsStream(c.Request().Header) {
		return h.levelled(c, r)
	}
	after, err := tailStart(c)
	if err != nil {
		return err
	}
	var b store.Build
	err = h.do(c, r, func(ctx context.Context) (err error) {
		b, err = h.builds.find(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	defer h.logs.follow(b.ID)()
	return h.stream(c, func(ctx context.Context, st *stream) error { return h.send(ctx, st, b.ID, after) })
}

// tailStart is the last line that the client has: Last-Event-ID, which a browser
// sends when it comes back, or else ?after=.
func tailStart(c echo.Context) (int64, error) {
	if v := c.Request().Header.Get("Last-Event-ID"); v != "" {
		return sequence("Last-Event-ID", v)
	}
	return sequence("after", c.QueryParam("after"))
}

// send sends the lines after number after, and then the end. It waits while the
// database is away. It reads rows, so a stream goes on where it broke off.
func (h *tails) send(ctx context.Context, st *stream, id string, after int64) error {
	look := time.NewTicker(h.cfg.TailInterval)
	defer look.Stop()
	for {
		news := h.logs.news(id)
		t, err := h.read(ctx, id, after)
		if err != nil && !store.IsUnavailable(err) {
			return err
		}
		for _, l := range t.Lines {
			after = l.Seq
			if err := st.add(strconv.FormatInt(l.Seq, 10), "log", api.NewLogEntry(l)); err != nil {
				return err
			}
		}
		more := len(t.Lines) == tailPage
		ended := t.State.Final() && !more
		if ended {
			if err := st.add("", "end", api.LogEnd{BuildID: id, Status: t.State.Wire(), State: string(t.State)}); err != nil {
				return err
			}
		}
		if err := st.send(); err != nil || ended {
			return err
		}
		if !more && !h.wait(ctx, st, news, look.C, err != nil) {
			return nil
		}
	}
}

func (h *tails) read(ctx context.Context, id string, after int64) (store.Tail, error) {
	select {
	case h.reads <- struct{}{}:
		defer func() { <-h.reads }()
	case <-ctx.Done():
		return store.Tail{}, context.Cause(ctx)
	}
	return h.builds.store.Tail(ctx, id, after, tailPage)
}

// wait waits for news of the build, or a moment if the last read has failed, and
// reports whether the stream goes on.
func (h *tails) wait(ctx context.Context, st *stream, news <-chan struct{}, look <-chan time.Time, failed bool) bool {
	for {
		ticked, ok := st.wait(news, look)
		if !ok || !ticked || failed {
			return ok
		}
		if err := h.logs.lookAround(ctx, h.cfg.TailInterval, h.builds.store.LogMarks); err != nil {
			h.log.Debug().Err(err).Msg("followed logs could not be looked at")
		}
	}
}

// followers are the streams that follow something by its id, such as the log of a
// build. They wake when this server commits or publishes something. What other
// controllers write is found by a look at all logs at once, which one stream does
// for the others.
type followers struct {
	mu sync.Mutex
	of map[string]*followed

	look   sync.Mutex // held while somebody looks
	looked time.Time  // when the last look began; guarded by look
}

type followed struct {
	streams int
	news    chan struct{} // closed and replaced when there may be something new
	mark    store.LogMark // as the last look found it
}

func newFollowers() *followers { return &followers{of: map[string]*followed{}} }

// follow enters a stream; leave takes it out.
func (f *followers) follow(id string) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.of[id]
	if b == nil {
		b = &followed{news: make(chan struct{})}
		f.of[id] = b
	}
	b.streams++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if b.streams--; b.streams == 0 {
			delete(f.of, id)
		}
	}
}

// news is closed at the next wake. Ask before reading rows: then nothing is missed.
func (f *followers) news(id string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[id].news
}

// wake makes the streams of id look. It never blocks.
func (f *followers) wake(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.of[id]; b != nil {
		b.wake()
	}
}

func (b *followed) wake() {
	close(b.news)
	b.news = make(chan struct{})
}

// lookAround asks for the marks of all builds that are followed and wakes the
// streams of those that have moved on, unless somebody else does, or has done
// within half of interval.
func (f *followers) lookAround(ctx context.Context, interval time.Duration, read func(context.Context, []string) (map[string]store.LogMark, error)) error {
	if !f.look.TryLock() {
		return nil
	}
	defer f.look.Unlock()
	now := time.Now()
	if now.Sub(f.looked) < interval/2 {
		return nil
	}
	f.looked = now
	f.mu.Lock()
	ids := slices.Collect(maps.Keys(f.of))
	f.mu.Unlock()
	found, err := read(ctx, ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, mark := range found {
		if b := f.of[id]; b != nil && b.mark != mark {
			b.mark = mark
			b.wake()
		}
	}
	return err
}
