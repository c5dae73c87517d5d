package runner

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// The routes that bring builds.
const (
	pollRoute   = "POST /api/workers/poll"
	uploadRoute = "POST /api/workers/upload"
)

// submits queues n builds, of which every third fails.
func (b *bench) submits(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		content := "good"
		if i%3 == 1 {
			content = "bad"
		}
		ids = append(ids, b.Submit("ios", archive(t, entry{name: "main.txt", content: content}), nil))
	}
	return ids
}

// sometimesBad is a script for submits.
const sometimesBad = `grep -q good main.txt && cp main.txt "$TAKT_OUTPUT"`

// allEnd waits for builds and checks that each was given once.
func (b *bench) allEnd(t *testing.T, ids []string) {
	t.Helper()
	for i, id := range ids {
		want := store.Completed
		if i%3 == 1 {
			want = store.Failed
		}
		require.Equal(t, 1, b.AwaitState(t, id, want).Attempt)
	}
}

// A worker with one slot needs no poll for a build, after the first.
func TestTheEndOfABuildBringsTheNextOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, sometimesBad)
	var tokens sync.Map
	var reused atomic.Bool
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/upload") || strings.HasSuffix(r.URL.Path, "/poll") {
			_, used := tokens.LoadOrStore(r.Header.Get(api.HeaderWorkerToken), true)
			reused.CompareAndSwap(false, used)
		}
		return false
	})
	ids := b.submits(t, 6)
	b.start(t)
	b.allEnd(t, ids)
	b.Await(t, "it polls", func() bool { return b.Polls() == 1 })
	require.Equal(t, 2, b.Requests(pollRoute), "the first, and the one that is open")
	require.Equal(t, 6, b.Requests(uploadRoute))
	require.Equal(t, 1, b.Workers()[0].Registrations)
	require.False(t, reused.Load(), "each reply has a token for the next request")
}

func TestAnEarlierControllerBringsNoNextBuild(t *testing.T) {
	t.Parallel()
	b := newBench(t, sometimesBad)
	b.Earlier()
	ids := b.submits(t, 4)
	b.start(t)
	b.allEnd(t, ids)
	b.Await(t, "it polls", func() bool { return b.Polls() == 1 })
	require.Equal(t, 5, b.Requests(pollRoute))
	require.Equal(t, 4, b.Requests(uploadRoute))
}

// The build in a reply that is lost comes with the repeat, or with a poll.
func TestLostRepliesWithTheNextBuild(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2} {
		b := newBench(t, sometimesBad, func(c *Config) { c.Concurrency = slots })
		var seen each
		b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/upload") && seen.next(r)%2 == 1 {
				b.Answer(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			return false
		})
		ids := b.submits(t, 6)
		b.start(t)
		b.allEnd(t, ids)
		b.Intercept(nil)
		require.Equal(t, 1, b.Workers()[0].Registrations, "no token was lost")
		b.drain()
	}
}

// A build that came with the end of another one is given back by a worker that leaves before it
// has begun.
func TestANextBuildIsGivenBackByAWorkerThatLeaves(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(b *bench){
		"drains": func(b *bench) { b.worker.Drain() },
		"stops":  func(b *bench) { b.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sometimesBad)
			ids := b.submits(t, 2)
			b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/upload") {
					return false
				}
				leave(b)
				b.Answer(w, r)
				return true
			})
			b.start(t)
			<-b.ended
			require.NoError(t, b.err)
			require.Equal(t, store.Completed, b.Build(ids[0]).State)
			require.Equal(t, store.Pending, b.Build(ids[1]).State, b.Build(ids[1]).ErrorMessage)
		})
	}
}

// Of polls and requests for the next build at most one is on its way.
func TestTheTokenIsInOneRequestAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t, sometimesBad, func(c *Config) { c.Concurrency = 3 })
	var mu sync.Mutex
	var under, most int
	var asked atomic.Int32
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		next := r.URL.Query().Get("next") != ""
		if !next && !strings.HasSuffix(r.URL.Path, "/poll") {
			return false
		}
		if next {
			asked.Add(1)
		}
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			under += n
			most = max(most, under)
		}
		count(1)
		defer count(-1)
		b.Answer(w, r)
		return true
	})
	ids := b.submits(t, 24)
	b.start(t)
	b.allEnd(t, ids)
	b.drain()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, most)
	require.Positive(t, asked.Load())
	require.Less(t, b.Requests(pollRoute), 24)
	require.Equal(t, 1, b.Workers()[0].Registrations)
}

// A worker with several free slots gets a build for each with one poll, also if its reply is lost.
func TestAPollFillsTheFreeSlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disk  int64
		lost  bool
		first []string // how many builds the first polls ask for
	}{
		"one poll":     {first: []string{"4"}},
		"a lost reply": {lost: true, first: []string{"4", "4"}},
		"out of disk":  {disk: 1 << 58, first: []string{"", "", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, slow, func(cfg *Config) { cfg.Concurrency, cfg.Resources.Disk = 4, c.disk })
			var mu sync.Mutex
			var asked []string
			b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/poll") {
					return false
				}
				mu.Lock()
				asked = append(asked, r.URL.Query().Get("max"))
				first := len(asked) == 1
				mu.Unlock()
				if first && c.lost {
					b.Answer(httptest.NewRecorder(), r)
					panic(http.ErrAbortHandler)
				}
				return false
			})
			ids := b.submits(t, 4)
			b.start(t)
			for _, id := range ids {
				b.pids(t, id)
				require.Equal(t, 1, b.Build(id).Attempt)
			}
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, c.first, asked, "with all slots taken it does not poll")
		})
	}
}

// A worker asks for a next build only if nothing speaks against it.
func TestWhoAsksForTheNextBuild(t *testing.T) {
	t.Parallel()
	result := func(size int64) client.Upload { return client.Upload{Result: &client.Content{Size: size}} }
	for name, c := range map[string]struct {
		slots  int
		upload client.Upload
		change func(w *Worker)
		asks   bool
	}{
		"one slot":                   {slots: 1, upload: result(1 << 30), asks: true},
		"a small result":             {slots: 2, upload: result(maxNext), asks: true},
		"a failure":                  {slots: 2, asks: true},
		"a long upload":              {slots: 2, upload: result(maxNext + 1)},
		"a fault of its own":         {slots: 1, upload: client.Upload{Fault: store.FaultEngine}},
		"draining":                   {slots: 1, change: func(w *Worker) { w.Drain() }},
		"unfit":                      {slots: 1, change: func(w *Worker) { w.health.unfit = errStopped }},
		"processes that can't end":   {slots: 2, change: func(w *Worker) { w.stuck[nil] = errStopped }},
		"a full disk":                {slots: 1, change: func(w *Worker) { w.cfg.Resources.Disk = 1 << 60 }},
		"an open poll":               {slots: 2, change: func(w *Worker) { w.asking <- struct{}{} }},
		"an unanswered registration": {slots: 1, change: func(w *Worker) { w.unanswered = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "true", func(cfg *Config) { cfg.Concurrency = c.slots })
			w := b.worker
			w.state = must(openState(w.cfg.StateDir, ""))(t)
			defer w.state.close()
			w.show("token")
			a := w.accept(t.Context(), api.Job{ID: "b1", Attempt: 1})
			if c.change != nil {
				c.change(w)
			}
			held := len(w.asking)
			c.upload.Next.Token = "of the try before"
			require.Equal(t, c.asks, w.askNext(t.Context(), a, &c.upload))
			want := client.Poll{}
			if c.asks {
				want = client.Poll{Token: "token", Active: []string{"b1"}}
				held++
			}
			require.Equal(t, want, c.upload.Next)
			require.Len(t, w.asking, held)
			w.release(a)
		})
	}
}
