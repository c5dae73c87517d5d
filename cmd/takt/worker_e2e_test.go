package main

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

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// A worker that is killed while it waits is back with its token, and gets a build without
// registering.
func TestKilledWorkerComesBackWithItsToken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	const name, command = "forge", `cp order.txt "$TAKT_OUTPUT"`
	session := filepath.Join(s.WorkerState(name), "session")
	registered := func() string {
		list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(list.Workers) != 1 || list.Workers[0].Diagnostics == nil {
			return ""
		}
		return list.Workers[0].ID
	}
	first := s.worker(c, name, command)
	eventually(t, "it registers", func() bool { return registered() != "" })
	id := registered()
	first.Kill()
	require.FileExists(t, session)

	second := s.worker(c, name, command)
	build := submit(t, c, zipOf(t, map[string]string{"order.txt": "x"}))
	eventually(t, "the build completes", func() bool { return status(t, c, build).Status == string(store.Completed) })
	require.Contains(t, second.Output(), "previous session resumed")
	require.NotContains(t, second.Output(), "registered\"")
	require.Equal(t, id, registered())
	require.NoError(t, second.Stop(t.Context(), patience))
	require.NoFileExists(t, session)
}

// Two workers have the content of one state directory. The second waits while the first
// builds; when the first stands still it takes over; when the first goes on again, it
// drops its build.
func TestTwoWorkersWithOneStateDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	gate := filepath.Join(s.Dir, "gate")
	command := `until [ -e ` + gate + ` ]; do sleep 0.1; done; cp order.txt "$TAKT_OUTPUT"`
	source := zipOf(t, map[string]string{"order.txt": "x"})
	first := s.worker(c, "first", command)
	attempt := func(id string, n int) func() bool {
		return func() bool {
			now := status(t, c, id)
			return now.Status == "building" && now.Attempt == n
		}
	}
	build := submit(t, c, source)
	eventually(t, "the first builds", attempt(build, 1))

	require.NoError(t, os.CopyFS(s.WorkerState("second"), os.DirFS(s.WorkerState("first"))))
	second := s.worker(c, "second", command)
	eventually(t, "the second says why it waits", func() bool { return strings.Contains(second.Output(), "another process uses this worker id") })
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	more := []string{build, submit(t, c, source), submit(t, c, source)}
	for _, id := range more {
		eventually(t, "the first completes its builds", func() bool { return status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, 1, status(t, c, id).Attempt)
	}
	list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Len(t, list.Workers, 1)
	require.NotNil(t, list.Workers[0].Conflict)
	require.Equal(t, 1, strings.Count(c.Output(), "worker registered"))

	require.NoError(t, os.Remove(gate))
	build = submit(t, c, source)
	eventually(t, "the first builds", attempt(build, 1))
	require.NoError(t, first.Signal(syscall.SIGSTOP))
	defer first.Signal(syscall.SIGCONT) //nolint:errcheck // it may have ended
	require.Eventually(t, attempt(build, 2), 2*patience, tick, "the second takes over")
	require.NoError(t, first.Signal(syscall.SIGCONT))
	eventually(t, "the first drops its build", func() bool { return strings.Contains(first.Output(), "build given up") })
	eventually(t, "the first says why it waits", func() bool { return strings.Contains(first.Output(), "another process uses this worker id") })
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	eventually(t, "the second completes it", func() bool { return status(t, c, build).Status == string(store.Completed) })
	require.Equal(t, 2, status(t, c, build).Attempt)
	require.NoError(t, second.Stop(t.Context(), patience))
	build = submit(t, c, source)
	eventually(t, "the first has its id back", func() bool { return status(t, c, build).Status == string(store.Completed) })
}

// A proxy holds a worker's registration up and delivers it although the worker has given it up.
// By then the worker has registered again and builds: it keeps its build and its token.
func TestARegistrationThatIsDeliveredLateTakesNoBuild(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
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

	gate := filepath.Join(s.Dir, "gate")
	behind := *c
	behind.URL = proxy.URL
	worker := s.worker(&behind, "forge", `until [ -e `+gate+` ]; do sleep 0.1; done; cp order.txt "$TAKT_OUTPUT"`)
	source := zipOf(t, map[string]string{"order.txt": "x"})
	build := submit(t, c, source)
	eventually(t, "the worker builds", func() bool { return status(t, c, build).Status == "building" })
	require.EqualValues(t, 2, registrations.Load())

	reply, err := http.DefaultClient.Do(<-held)
	require.NoError(t, err)
	defer reply.Body.Close()
	answer, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.Equal(t, http.StatusConflict, reply.StatusCode, "%s", answer)
	require.Contains(t, string(answer), `"code":"late_registration"`)
	for _, id := range []string{build, submit(t, c, source)} {
		eventually(t, "the worker completes its builds", func() bool { return status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, 1, status(t, c, id).Attempt)
	}
	require.EqualValues(t, 2, registrations.Load(), "its token is valid")
	require.NoError(t, worker.Stop(t.Context(), patience))
}
