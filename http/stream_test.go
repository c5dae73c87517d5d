package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// sse is one event as a browser would see it; comments have no name.
type sse struct{ id, name, data, comment string }

// listener reads a stream in the background.
type listener struct {
	*testing.T
	resp   *http.Response
	events chan sse // closed at the stream's end
	cancel func()
}

// tune opens a stream that must begin.
func tune(t *testing.T, c *http.Client, url string, header map[string]string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.Do(req) //nolint:bodyclose // by the goroutine below
	require.NoError(t, err)
	l := &listener{t, resp, make(chan sse, 1000), func() { cancel(nil) }}
	done := make(chan struct{})
	t.Cleanup(func() { l.cancel(); <-done })
	go func() {
		defer close(done)
		defer close(l.events)
		defer resp.Body.Close()
		var e sse
		lines := bufio.NewScanner(resp.Body)
		for lines.Buffer(nil, 4<<20); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
				if lines.Text() == "" {
					select {
					case l.events <- e:
					case <-ctx.Done():
						return
					}
					e = sse{}
					continue
				}
				e.comment = value
			}
		}
	}()
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-cache", resp.Header.Get("Cache-Control"))
	require.Equal(t, "no", resp.Header.Get("X-Accel-Buffering"))
	return l
}

// next returns the next event that has a name.
func (l *listener) next() sse {
	l.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case e, ok := <-l.events:
			require.True(l, ok, "the stream has ended")
			if e.name == "" {
				continue
			}
			if path := l.resp.Request.URL.Path; strings.HasPrefix(path, "/api/") && e.name != "reset" {
				require.NoError(l, checker(l.T).Event(path, []byte(e.data)))
			}
			return e
		case <-limit.C:
			require.Fail(l, "no event")
		}
	}
}

// ends waits for the stream's end and returns what came before.
func (l *listener) ends() (rest []sse) {
	l.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case e, ok := <-l.events:
			if !ok {
				return rest
			}
			rest = append(rest, e)
		case <-limit.C:
			require.Fail(l, "the stream does not end")
		}
	}
}

func (l *listener) line() api.LogEntry {
	l.Helper()
	e := l.next()
	require.Equal(l, "log", e.name)
	var line api.LogEntry
	require.NoError(l, json.Unmarshal([]byte(e.data), &line))
	require.Equal(l, fmt.Sprint(line.Seq), e.id)
	return line
}

func (b *fixture) tail(id string, header map[string]string) *listener {
	b.t.Helper()
	return tune(b.t, b.client, b.url+"/api/builds/"+id+"/logs", header)
}

// says lets the holder of a build write to its log.
func (b *fixture) says(build, worker, message string) {
	b.t.Helper()
	r := b.json("POST", "/api/builds/"+build+"/logs", key("X-Worker-Id", worker), `{"level":"info","message":"`+message+`"}`)
	require.Equal(b.t, 200, r.status, r.body)
}

// never is an interval that does not pass in a test.
const never = 24 * time.Hour

func TestLogsAreFollowedToTheEnd(t *testing.T) {
	t.Parallel()
	// Without looks, so that each line comes because its writer says so.
	b := setup(t, func(c *takthttp.Config) { c.TailInterval = never })
	build, worker := b.assigned()
	l := b.tail(build.ID, map[string]string{"X-Build-Token": build.AccessToken})
	require.Equal(t, "Accept", l.resp.Header.Get("Vary"))
	require.Equal(t, "Build submitted", l.line().Message)
	l.line() // assigned
	for _, message := range []string{"one", "two", "three"} {
		b.says(build.ID, worker.ID, message)
		require.Equal(t, message, l.line().Message)
	}
	require.Equal(t, 200, b.finish(build.ID, worker.ID, "app").status)
	b.server.Publish(takthttp.Event{Topic: "build:updated", BuildID: build.ID}) // as the bus does
	require.Equal(t, "Build completed successfully", l.line().Message)
	require.Equal(t, sse{name: "end", data: `{"build_id":"` + build.ID + `","status":"completed","state":"completed"}`}, l.next())
	require.Empty(t, l.ends())
}

func TestLogsGoOnWhereTheClientWas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, worker := b.assigned()
	b.says(build.ID, worker.ID, "one")
	b.says(build.ID, worker.ID, "two")
	first := b.tail(build.ID, key())
	first.line()
	last := first.line()
	first.cancel()
	again := b.tail(build.ID, key("Last-Event-ID", fmt.Sprint(last.Seq)))
	require.Equal(t, "one", again.line().Message)
	seq := again.line().Seq
	b.says(build.ID, worker.ID, "three")
	require.Equal(t, "three", again.line().Message)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+build.ID+"/cancel", key(), "").status)
	query := tune(t, b.client, fmt.Sprintf("%s/api/builds/%s/logs?after=%d", b.url, build.ID, seq), key())
	require.Equal(t, "three", query.line().Message)
	require.Equal(t, "Build cancelled", query.line().Message)
	require.Contains(t, query.next().data, `"status":"failed","state":"cancelled"`)
	query.ends()
	over := b.tail(build.ID, key("Last-Event-ID", "9999999"))
	require.Equal(t, "end", over.next().name)
	over.ends()
}

func TestLogsOfOtherControllersAreFollowed(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.TailInterval = 50 * time.Millisecond })
	build, worker := b.assigned()
	streams := []*listener{b.tail(build.ID, key()), b.tail(build.ID, key())}
	for _, l := range streams {
		l.line()
		l.line()
	}
	for i := range 3 {
		_, err := storeBuilds(b).RecordHeartbeat(t.Context(), store.Heartbeat{BuildID: build.ID, WorkerID: worker.ID, Logs: []store.LogLine{
			{Level: store.Info, Message: fmt.Sprint("line ", i)},
		}})
		require.NoError(t, err)
		for _, l := range streams {
			require.Equal(t, fmt.Sprint("line ", i), l.line().Message)
		}
	}
	require.NoError(t, storeBuilds(b).Cancel(t.Context(), build.ID, "", ""))
	for _, l := range streams {
		l.line()
		require.Equal(t, "end", l.next().name)
	}
}

func TestFollowedLogsOutlastTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.TailInterval, c.StreamPing = 20*time.Millisecond, 20*time.Millisecond })
	build, worker := b.assigned()
	l := b.tail(build.ID, key())
	l.line()
	l.line()
	b.db.Drop(context.DeadlineExceeded)
	b.server.Publish(takthttp.Event{Topic: "build:updated", BuildID: build.ID})
	for range 3 {
		require.Equal(t, "ping", (<-l.events).comment)
	}
	b.db.Use(b.pool)
	b.says(build.ID, worker.ID, "back")
	require.Equal(t, "back", l.line().Message)
}

// deafened is a store whose next read of a log fails, and that tells no marks.
type deafened struct {
	takthttp.Builds
	fail   atomic.Bool
	failAt atomic.Int64 // or the one after so many
}

func (d *deafened) Tail(ctx context.Context, id string, after int64, limit int) (store.Tail, error) {
	if d.fail.CompareAndSwap(true, false) || d.failAt.Add(-1) == 0 {
		return store.Tail{}, store.NewError(store.Unavailable, "away for a moment")
	}
	return d.Builds.Tail(ctx, id, after, limit)
}

func (d *deafened) LogMarks(context.Context, []string) (map[string]store.LogMark, error) {
	return map[string]store.LogMark{}, nil
}

func TestStreamsOfLogsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, _ := b.assigned()
	path := "/api/builds/" + build.ID + "/logs"
	const accept = "text/event-stream"
	require.Equal(t, 401, b.send("GET", path, map[string]string{"Accept": accept}, "").status)
	require.Equal(t, 403, b.send("GET", path, map[string]string{"Accept": accept, "X-Build-Token": "wrong"}, "").status)
	require.Equal(t, 404, b.send("GET", "/api/builds/none/logs", key("Accept", accept), "").status)
	for _, bad := range []string{"x", "-1", "1.5", "9999999999999999999"} {
		require.Equal(t, 400, b.send("GET", path, key("Accept", accept, "Last-Event-ID", bad), "").status, bad)
		require.Equal(t, 400, b.send("GET", path+"?after="+bad, key("Accept", accept), "").status, bad)
	}
	for _, other := range []string{"application/json", "*/*", "text/event-stream;q=0", "text/event-streams", ""} {
		r := b.send("GET", path, key("Accept", other), "")
		require.Equal(t, "application/json", r.header.Get("Content-Type"), other)
	}
	b.db.Drop(context.DeadlineExceeded)
	require.Equal(t, 503, b.send("GET", path, key("Accept", accept), "").status)
}

// A key, and all build tokens together, leave streams to others; what is not a stream is answered.
func TestStreamsHaveALimitAndEachCallerAShare(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxStreams = 8 })
	build, _ := b.assigned()
	token := map[string]string{"X-Build-Token": build.AccessToken, "Accept": "text/event-stream"}
	reader := map[string]string{"X-API-Key": b.named("reader", store.ScopeRead).Key, "Accept": "text/event-stream"}
	logs := "/api/builds/" + build.ID + "/logs"
	refused := func(path string, header map[string]string) {
		t.Helper()
		r := b.send("GET", path, header, "")
		require.Equal(t, 503, r.status)
		requireProblem(t, r, "Too many streams, try again later", "unavailable")
		require.Equal(t, "5", r.header.Get("Retry-After"))
	}
	first, second := b.tail(build.ID, token), b.tail(build.ID, token)
	refused(logs, token)
	for range 5 {
		tune(t, b.client, b.url+"/api/events", reader)
	}
	refused("/api/events", reader)
	refused(logs, reader)
	tune(t, b.client, b.url+"/api/events", key())
	require.Equal(t, 200, b.send("GET", logs, key(), "").status)
	first.cancel()
	second.cancel()
	require.Eventually(t, func() bool { return openStreams(t, b.server) == 6 }, waitFor, tick)
	b.tail(build.ID, token).line()
}

// A log is read and sent page by page: the reply is complete, or breaks off.
func TestLogsThatAreLongAreAnsweredInPages(t *testing.T) {
	t.Parallel()
	d := &deafened{}
	b := setupWith(t, func(deps *takthttp.Deps) { d.Builds = deps.Builds; deps.Builds = d })
	build, worker := b.assigned()
	lines := make([]store.LogLine, 1300)
	for i := range lines {
		lines[i] = store.LogLine{Level: store.Warn, Message: fmt.Sprint("line \u96ea <&> ", i)}
	}
	lines[7].Message = strings.Repeat("long", 1<<18)
	_, err := storeBuilds(b).RecordHeartbeat(t.Context(), store.Heartbeat{BuildID: build.ID, WorkerID: worker.ID, Logs: lines})
	require.NoError(t, err)
	path := "/api/builds/" + build.ID + "/logs"
	ask := func(query string, want ...store.LogLine) {
		t.Helper()
		r := b.send("GET", path+query, key(), "")
		require.Equal(t, 200, r.status)
		require.Equal(t, "application/json", r.header.Get("Content-Type"))
		require.Equal(t, len(want) <= 2, r.header.Get("Content-Length") != "", "more than a page is not gathered first")
		got := decode[api.Logs](t, r)
		require.Equal(t, build.ID, got.BuildID)
		require.Len(t, got.Logs, len(want))
		for i, l := range got.Logs {
			if want[i].Message != "" {
				require.Equal(t, want[i].Message, l.Message)
			}
		}
	}
	two := make([]store.LogLine, 2) // takt's own
	l := b.tail(build.ID, key())
	l.line()
	l.line()
	for i := range lines {
		require.Equal(t, lines[i].Message, l.line().Message, i)
	}
	ask("", append(two, lines...)...)
	ask("?limit=1001", append(two, lines[:999]...)...)
	ask("?limit=2", two...)

	for _, at := range []int64{1, 2} { // the read that fails
		d.failAt.Store(at)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-API-Key", apiKey)
		r, err := b.client.Do(req)
		require.NoError(t, err)
		if at == 1 {
			require.Equal(t, 503, r.StatusCode)
		} else {
			_, err = io.ReadAll(r.Body)
			require.Error(t, err, "a cut log must not look whole")
		}
		require.NoError(t, r.Body.Close())
	}
}
