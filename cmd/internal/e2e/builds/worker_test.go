package builds

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// A worker that is killed while it waits is back with its token, and gets a build without
// registering.
func TestKilledWorkerComesBackWithItsToken(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	const name, command = "forge", `cp order.txt "$TAKT_OUTPUT"`
	session := filepath.Join(env.WorkerState(name), "session")
	registered := func() string {
		list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(list.Workers) != 1 || list.Workers[0].Diagnostics == nil {
			return ""
		}
		return list.Workers[0].ID
	}
	first := env.StartWorker(c, name, command)
	takttest.Eventually(t, "it registers", func() bool { return registered() != "" })
	id := registered()
	first.Kill()
	require.FileExists(t, session)

	second := env.StartWorker(c, name, command)
	build := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, build).Status == string(store.Completed) })
	require.Contains(t, second.Output(), "previous session resumed")
	require.NotContains(t, second.Output(), "registered\"")
	require.Equal(t, id, registered())
	require.NoError(t, second.Stop(t.Context(), takttest.Patience))
	require.NoFileExists(t, session)
}

// Two workers have the content of one state directory. The second waits while the first
// builds; when the first stands still it takes over; when the first goes on again, it
// drops its build.
func TestTwoWorkersWithOneStateDirectory(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	gate := filepath.Join(env.Dir, "gate")
	command := `until [ -e ` + gate + ` ]; do sleep 0.1; done; cp order.txt "$TAKT_OUTPUT"`
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	first := env.StartWorker(c, "first", command)
	attempt := func(id string, n int) func() bool {
		return func() bool {
			now := takttest.Status(t, c, id)
			return now.Status == "building" && now.Attempt == n
		}
	}
	build := takttest.Submit(t, c, source)
	takttest.Eventually(t, "the first builds", attempt(build, 1))

	require.NoError(t, os.CopyFS(env.WorkerState("second"), os.DirFS(env.WorkerState("first"))))
	second := env.StartWorker(c, "second", command)
	takttest.Eventually(t, "the second says why it waits", func() bool { return strings.Contains(second.Output(), "another process uses this worker id") })
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	more := []string{build, takttest.Submit(t, c, source), takttest.Submit(t, c, source)}
	for _, id := range more {
		takttest.Eventually(t, "the first completes its builds", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, 1, takttest.Status(t, c, id).Attempt)
	}
	list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Len(t, list.Workers, 1)
	require.NotNil(t, list.Workers[0].Conflict)
	require.Equal(t, 1, strings.Count(c.Output(), "worker registered"))

	require.NoError(t, os.Remove(gate))
	build = takttest.Submit(t, c, source)
	takttest.Eventually(t, "the first builds", attempt(build, 1))
	require.NoError(t, first.Signal(syscall.SIGSTOP))
	defer first.Signal(syscall.SIGCONT) //nolint:errcheck // it may have ended
	require.Eventually(t, attempt(build, 2), 2*takttest.Patience, takttest.Tick, "the second takes over")
	require.NoError(t, first.Signal(syscall.SIGCONT))
	takttest.Eventually(t, "the first drops its build", func() bool { return strings.Contains(first.Output(), "build given up") })
	takttest.Eventually(t, "the first says why it waits", func() bool { return strings.Contains(first.Output(), "another process uses this worker id") })
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	takttest.Eventually(t, "the second completes it", func() bool { return takttest.Status(t, c, build).Status == string(store.Completed) })
	require.Equal(t, 2, takttest.Status(t, c, build).Attempt)
	require.NoError(t, second.Stop(t.Context(), takttest.Patience))
	build = takttest.Submit(t, c, source)
	takttest.Eventually(t, "the first has its id back", func() bool { return takttest.Status(t, c, build).Status == string(store.Completed) })
}

// A proxy holds a worker's registration up and delivers it although the worker has given it up.
// By then the worker has registered again and builds: it keeps its build and its token.
func TestARegistrationThatIsDeliveredLateTakesNoBuild(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	target, err := url.Parse(c.URL)
	require.NoError(t, err)
	pass := httputil.NewSingleHostReverseProxy(target)
	held := make(chan *http.Request, 1)
	var registrations atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == api.RegisterWorker.Path && registrations.Add(1) == 1 {
			body, _ := io.ReadAll(r.Body) // less of it is refused
			late, _ := http.NewRequestWithContext(t.Context(), r.Method, c.URL+r.URL.Path, bytes.NewReader(body))
			late.Header = r.Header.Clone()
			held <- late
			panic(http.ErrAbortHandler) // the worker's connection breaks
		}
		pass.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	defer proxy.CloseClientConnections()

	gate := filepath.Join(env.Dir, "gate")
	behind := *c
	behind.URL = proxy.URL
	worker := env.StartWorker(&behind, "forge", `until [ -e `+gate+` ]; do sleep 0.1; done; cp order.txt "$TAKT_OUTPUT"`)
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	build := takttest.Submit(t, c, source)
	takttest.Eventually(t, "the worker builds", func() bool { return takttest.Status(t, c, build).Status == "building" })
	require.EqualValues(t, 2, registrations.Load())

	reply, err := http.DefaultClient.Do(<-held)
	require.NoError(t, err)
	defer reply.Body.Close()
	answer, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.Equal(t, http.StatusConflict, reply.StatusCode, "%s", answer)
	require.Contains(t, string(answer), `"code":"late_registration"`)
	for _, id := range []string{build, takttest.Submit(t, c, source)} {
		takttest.Eventually(t, "the worker completes its builds", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, 1, takttest.Status(t, c, id).Attempt)
	}
	require.EqualValues(t, 2, registrations.Load(), "its token is valid")
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
}
