package runner

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/store"
)

// slow says the process ids of itself and a child, then waits to be killed.
const slow = `sleep 1000 & echo "pids $$ $!"; wait`

// pids waits for slow's word and returns its process ids.
func (b *bench) pids(t *testing.T, id string) []string {
	t.Helper()
	b.Await(t, "the command runs", b.has(id, "pids "))
	return strings.Fields(b.line(id, "pids "))[1:]
}

func TestBuildNotOursAnyMore(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		lose func(*controllertest.Build)
	}{
		{"cancelled by its owner", func(b *controllertest.Build) { b.State = store.Cancelled }},
		{"given to another worker", func(b *controllertest.Build) { b.WorkerID = "another" }},
		{"a newer attempt elsewhere", func(b *controllertest.Build) { b.Attempt++; b.WorkerID = "another" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, id := building(t, slow)
			pids := b.pids(t, id)
			b.Edit(id, tt.lose)
			awaitDead(t, pids...)
			// The worker is free again, and reports nothing.
			next := b.Submit("ios", source(t), nil)
			b.Await(t, "the next build runs", b.has(next, "pids "))
			require.Zero(t, b.Build(id).Uploads)
			require.NoDirExists(t, b.worker.state.builds()+"/"+id+"-1")
		})
	}
}

// A command that writes is stopped with the next lines, without waiting for a heartbeat.
func TestACancelledBuildThatWritesIsStoppedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo "pids $$"; while :; do echo line; sleep 0.05; done`, func(c *Config) { c.Heartbeat = 1 << 40 })
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	pids := b.pids(t, id)
	heartbeat := "POST /api/builds/" + id + "/heartbeat"
	require.Zero(t, b.Requests(heartbeat))
	b.Edit(id, func(b *controllertest.Build) { b.State = store.Cancelled })
	awaitDead(t, pids...)
	require.Equal(t, 1, b.Requests(heartbeat), "which tells the controller that it was told")
	require.Zero(t, b.Build(id).Uploads)
}

func TestBuildThatTheControllerForgot(t *testing.T) {
	t.Parallel()
	b, id := building(t, slow)
	pids := b.pids(t, id)
	b.refuse("/heartbeat", http.StatusNotFound, store.NotFound, "Build not found")
	awaitDead(t, pids...)
	require.Zero(t, b.Build(id).Uploads)
}

func TestBuildGoesOnWhileTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	gate := t.TempDir() + "/go"
	b, id := building(t, `echo "pids $$"; until [ -e `+gate+` ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`)
	b.pids(t, id)
	b.refuse("", http.StatusForbidden, store.InvalidAPIKey, "Invalid API key")
	heartbeat := "POST /api/builds/" + id + "/heartbeat"
	before := b.Requests(heartbeat)
	b.Await(t, "heartbeats are refused", func() bool { return b.Requests(heartbeat) > before+2 })
	touch(t, gate)
	b.Await(t, "the upload is tried", func() bool { return b.Requests("POST /api/workers/upload") > 2 })
	b.Intercept(nil)
	b.AwaitState(t, id, store.Completed)
}

func TestNewerAttemptOfTheSameBuild(t *testing.T) {
	t.Parallel()
	b, id := building(t, `[ "$TAKT_ATTEMPT" = 1 ] || { cp main.txt "$TAKT_OUTPUT"; exit; }
		`+slow, func(c *Config) { c.Concurrency = 2 })
	pids := b.pids(t, id)
	// The attempt is lost, and the next one is ours again.
	b.Edit(id, func(build *controllertest.Build) { build.State, build.WorkerID = store.Pending, "" })
	got := b.AwaitState(t, id, store.Completed)
	require.Equal(t, 2, got.Attempt)
	require.Equal(t, 1, got.Uploads)
	awaitDead(t, pids...)
}

func TestResultNotWanted(t *testing.T) {
	t.Parallel()
	gate := t.TempDir() + "/go"
	b := newBench(t, `echo "pids $$"; until [ -e `+gate+` ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`,
		func(c *Config) { c.Heartbeat = 1 << 40 }) // the upload is told first
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.pids(t, id)
	b.Edit(id, func(build *controllertest.Build) { build.State = store.Failed })
	touch(t, gate)
	next := b.Submit("ios", source(t), nil)
	b.AwaitState(t, next, store.Completed)
	got := b.Build(id)
	require.Equal(t, 1, got.Uploads)
	require.Equal(t, store.Failed, got.State)
}

func TestResultRefusedForItsSize(t *testing.T) {
	t.Parallel()
	b := newBench(t, `cp main.txt "$TAKT_OUTPUT"`)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/workers/upload" || r.ContentLength < 1400 {
			return false
		}
		controllertest.Problem(w, http.StatusRequestEntityTooLarge, store.TooLarge, "Result too large")
		return true
	})
	id := b.Submit("ios", archive(t, entry{name: "main.txt", content: strings.Repeat("x", 1000)}), nil)
	b.start(t)
	require.Equal(t, "result refused: Result too large", b.AwaitState(t, id, store.Failed).ErrorMessage)
}
