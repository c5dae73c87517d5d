package http

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// tailPage is how many lines are read and written at once, unless they are long.
	tailPage = 500
)

// tails serves logs page by page: either the lines so far, or a stream that continues until
// the build ends.
type tails struct {
	edge     *edge.Server
	builds   *builds
	logs     *followers
	interval time.Duration // see Config.TailInterval
	access   func(c echo.Context) (api.BuildAccess, error)
	lines    func(c echo.Context) (linesIn, error)
}

func newTails(s *edge.Server, builds *builds, logs *followers, cfg Config) *tails {
	return &tails{
		edge: s, builds: builds, logs: logs, interval: cfg.TailInterval,
		access: edge.Reader[api.BuildAccess](), lines: edge.Reader[linesIn](),
	}
}

func (h *tails) routes() []edge.Route {
	r := h.edge.Of(api.ReadLogs.Route)
	r.Serve = h.serve
	return []edge.Route{r}
}

// linesIn is an [api.ReadLogsIn] whose id is checked last.
type linesIn struct {
	After int64 `query:"after" min:"0"`
	Tail  int64 `query:"tail" min:"0"`
	Limit int   `query:"limit" min:"1"`
	api.BuildAccess
}

// serve handles GET /api/builds/:id/logs. A levelled request checks access to the log. A
// stream then runs outside it, and so does a log of more than one page.
func (h *tails) serve(c echo.Context, r *edge.Route) error {
	c.Response().Header().Add("Vary", "Accept")
	if !edge.AcceptsStream(c.Request().Header) {
		return h.serveLines(c, r)
	}
	after, err := tailStart(c)
	if err != nil {
		return err
	}
	in, err := h.access(c)
	if err != nil {
		return err
	}
	var b store.Build
	err = h.edge.Do(c, r, func(ctx context.Context) (err error) {
		b, err = h.builds.find(h.edge.WithCaller(ctx, c), in, store.ScopeRead)
		return err
	})
	if err != nil {
		return err
	}
	leave, err := h.share(c)
	if err != nil {
		return err
	}
	defer leave()
	defer h.logs.follow(b.ID)()
	return h.edge.Stream(c, func(ctx context.Context, st *edge.Stream) error { return h.send(ctx, st, b.ID, after) })
}

// share takes one of the streams that build tokens may use. A client with the API key
// needs none, because the rest is kept for it.
func (h *tails) share(c echo.Context) (leave func(), err error) {
	if h.edge.Keys.Shown(c.Request().Header) {
		return func() {}, nil
	}
	unit, err := h.edge.Limit(edge.RuleTokenStreams).Take(c.Request().Context(), h.edge.ShareOf(c), nil)
	if err != nil {
		return nil, err
	}
	return unit.Release, nil
}

// serveLines answers with the lines so far, page by page. It has no default limit because
// old clients compare the number of lines with the number that they have shown.
func (h *tails) serveLines(c echo.Context, r *edge.Route) error {
	in, err := h.lines(c)
	if err != nil {
		return err
	}
	if in.Tail > 0 {
		in.After = -in.Tail
	}
	left := cmp.Or(in.Limit, math.MaxInt)
	var b store.Build
	var t store.Tail
	err = h.edge.Do(c, r, func(ctx context.Context) (err error) {
		if b, err = h.builds.find(h.edge.WithCaller(ctx, c), in.BuildAccess, store.ScopeRead); err != nil {
			return err
		}
		if t, err = h.read(ctx, b.ID, in.After, min(left, tailPage)); err != nil || t.More && len(t.Lines) < left {
			return err
		}
		return h.edge.Reply(c, api.Logs{BuildID: b.ID, Logs: edge.Each(t.Lines, api.NewLogEntry)})
	})
	if err != nil || c.Response().Committed {
		return err
	}
	leave, err := h.share(c)
	if err != nil {
		return err
	}
	defer leave()
	cut := http.ErrAbortHandler
	err = h.edge.StreamAs(c, "application/json", func(ctx context.Context, st *edge.Stream) (err error) {
		err = h.sendLines(ctx, st, b.ID, t, left)
		if err == nil {
			cut = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return cut // an incomplete reply must not look complete
}

// sendLines sends the lines of t and then the following pages, up to left lines in all.
func (h *tails) sendLines(ctx context.Context, st *edge.Stream, id string, t store.Tail, left int) (err error) {
	frame, err := edge.Marshal(api.Logs{BuildID: id, Logs: []api.LogEntry{}})
	if err != nil {
		return err
	}
	st.Text = bytes.TrimSuffix(frame, []byte("]}"))
	for comma := ""; ; {
		for _, l := range t.Lines {
			line, err := edge.Marshal(api.NewLogEntry(l))
			if err != nil {
				return err
			}
			st.Text = append(append(st.Text, comma...), line...)
			comma = ","
		}
		left -= len(t.Lines)
		if !t.More || left == 0 {
			break
		}
		if err := st.Send(); err != nil {
			return err
		}
		if t, err = h.read(ctx, id, t.Lines[len(t.Lines)-1].Seq, min(left, tailPage)); err != nil {
			return err
		}
	}
	st.Text = append(st.Text, "]}"...)
	return st.Send()
}

// tailStart returns the last line that the client has. It is Last-Event-ID, which a
// browser sends when it reconnects, or else ?after=.
func tailStart(c echo.Context) (int64, error) {
	if v := c.Request().Header.Get("Last-Event-ID"); v != "" {
		return edge.Sequence("Last-Event-ID", v)
	}
	return edge.Sequence("after", c.QueryParam("after"))
}

// send sends the lines after number after, and then the end. It waits while the database
// is unavailable. A stream resumes exactly where it stopped because it reads rows.
func (h *tails) send(ctx context.Context, st *edge.Stream, id string, after int64) error {
	look := time.NewTicker(h.interval)
	defer look.Stop()
	for {
		news := h.logs.news(id)
		t, err := h.read(ctx, id, after, tailPage)
		if err != nil && !store.IsUnavailable(err) {
			return err
		}
		for _, l := range t.Lines {
			after = l.Seq
			if err := st.Add(strconv.FormatInt(l.Seq, 10), "log", api.NewLogEntry(l)); err != nil {
				return err
			}
		}
		ended := t.State.Final() && !t.More
		if ended {
			if err := st.Add("", "end", api.LogEnd{BuildID: id, Status: t.State.Wire(), State: string(t.State)}); err != nil {
				return err
			}
		}
		if err := st.Send(); err != nil || ended {
			return err
		}
		if !t.More && !h.wait(ctx, st, news, look.C, err != nil) {
			return nil
		}
	}
}

// read reads a page.
func (h *tails) read(ctx context.Context, id string, after int64, limit int) (t store.Tail, err error) {
	err = h.edge.Limit(edge.RuleTail).Do(ctx, store.Share{}, func() (err error) {
		t, err = h.builds.store.Tail(ctx, id, after, limit)
		return err
	})
	return t, err
}

// wait waits for news of the build, or for one tick if the last read failed. It reports
// whether the stream continues.
func (h *tails) wait(ctx context.Context, st *edge.Stream, news <-chan struct{}, look <-chan time.Time, failed bool) bool {
	for {
		ticked, ok := st.Wait(news, look)
		if !ok || !ticked || failed {
			return ok
		}
		if err := h.logs.rescan(ctx, h.interval, h.builds.store.LogMarks); err != nil {
			h.edge.Log.Debug().Err(err).Msg("reading followed logs failed")
		}
	}
}

// followers are the streams that follow something by its id, such as the log of a build.
// They wake when this server commits or publishes something. What other controllers write
// is found by reading the marks of all builds at once; one stream does that for all.
type followers struct {
	mu sync.Mutex
	of map[string]*followed

	look   sync.Mutex // held while a stream reads the marks
	looked time.Time  // when the last such read began; guarded by look
}

type followed struct {
	streams int
	news    chan struct{} // closed and replaced when there may be something new
	mark    store.LogMark // from the last such read
}

func newFollowers() *followers { return &followers{of: map[string]*followed{}} }

// follow adds a stream of id; leave removes it.
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

// news returns a channel that is closed at the next wake. Call it before reading rows, so
// that no change is missed.
func (f *followers) news(id string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[id].news
}

// wake makes the streams of id read again. It never blocks.
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

// rescan reads the marks of all followed builds and wakes the streams of those that
// have changed. It does nothing if another stream is reading them, or began to within
// half of interval.
func (f *followers) rescan(ctx context.Context, interval time.Duration, read func(context.Context, []string) (map[string]store.LogMark, error)) error {
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
