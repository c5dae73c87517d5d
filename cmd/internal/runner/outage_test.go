package runner

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func touch(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, nil, 0o600))
}

// each counts requests per route, for tests that treat the first ones badly.
type each struct {
	mu   sync.Mutex
	seen map[string]int
}

func (e *each) next(r *http.Request) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen = map[string]int{}
	}
	e.seen[r.URL.Path]++
	return e.seen[r.URL.Path]
}

const copyBuild = `cp main.txt "$TAKT_OUTPUT"; echo done`

func TestEveryRouteFailsAtFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	var requests each
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch requests.next(r) {
		case 1:
			controllertest.Problem(w, http.StatusServiceUnavailable, store.Unavailable, "Database away")
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("<html>"))
		default:
			return false
		}
		return true
	})
	id := b.Submit("ios", source(t), archive(t, entry{name: "p.txt", content: "x"}))
	b.start(t)
	got := b.AwaitState(t, id, store.Completed)
	require.Equal(t, "hello", string(got.Result))
	require.True(t, b.has(id, "done")())
	require.Equal(t, 1, got.Attempt)
}

// TestEveryReplyIsLostOnce lets the controller do what it is asked and cuts the
// connection instead of answering.
func TestEveryReplyIsLostOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	var requests each
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if requests.next(r) > 1 {
			return false
		}
		b.Answer(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.AwaitState(t, id, store.Completed)
	b.Await(t, "the upload was repeated", func() bool { return b.Build(id).Uploads == 2 })
	require.Equal(t, 1, b.Build(id).Attempt)
	require.Len(t, b.Workers(), 1, "a lost registration leaves no second worker")
	require.Equal(t, 2, b.Workers()[0].Registrations)
}

func TestControllerNotThereAtTheStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	b.Intercept(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	b.start(t)
	b.Await(t, "some tries", func() bool { return b.Requests("POST /api/workers/register") > 3 })
	b.Intercept(nil)
	b.completes(t)
}

func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	b.refuse("", http.StatusForbidden, store.InvalidAPIKey, "Invalid API key")
	b.start(t)
	<-b.ended
	require.Equal(t, store.InvalidAPIKey, store.CodeOf(b.err))
}

func TestControllerForgotTheWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	b.start(t)
	b.completes(t)
	before := b.Workers()[0].ID
	var requests each
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/workers/poll" || requests.next(r) > 1 {
			return false
		}
		controllertest.Problem(w, http.StatusNotFound, store.NotFound, "Worker not found")
		return true
	})
	b.Expire() // ends the parked poll
	b.Await(t, "a new worker", func() bool { return len(b.Workers()) == 2 })
	b.completes(t)
	kept := must(os.ReadFile(filepath.Join(b.worker.cfg.StateDir, "worker-id")))(t)
	require.NotEqual(t, before, strings.TrimSpace(string(kept)))
}

func TestSecondWorkerInOneStateDirectory(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	b.start(t)
	b.completes(t)
	require.ErrorContains(t, must(New(b.client, b.worker.log, b.worker.cfg))(t).Run(t.Context()), ": another worker uses it")
}

// A worker without a controller says in a sentence which address does not answer, as commands do.
func TestAnAbsentControllerIsNamedInASentence(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	b := newBench(t, copyBuild)
	b.worker.log = zerolog.New(&logged)
	away := httptest.NewServer(nil)
	away.Close()
	c := must(client.New(client.Config{BaseURL: away.URL, APIKey: controllertest.APIKey}))(t)
	_, failed := c.Register(t.Context(), api.Register{Name: "bench"})
	b.worker.waiting("register")(failed, 3_749_330_600)
	require.JSONEq(t, `{"level":"warn","error":"`+away.URL+` does not answer. Is takt serve running? TAKT_URL or --url sets the address","again_in":"3.7s","message":"register failed"}`, logged.String())
}
