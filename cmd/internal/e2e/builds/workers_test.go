package builds

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/runner"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

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
	defer first.Signal(syscall.SIGCONT) // it may have ended
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

// looksForKeys is a build that prints what it can read of its worker.
const looksForKeys = `{ env; tr '\0' '\n' <"/proc/$PPID/environ"; cat "$STATE"/*; } >"$TAKT_OUTPUT" 2>/dev/null || true`

// enrollKey gives a worker a key in an environment file, and returns the key.
func enrollKey(env *takttest.Env, c *process.Controller, file string) string {
	env.T.Helper()
	token := env.Client(c, "keys", "enroll")
	said := env.Client(c, "worker", "enroll", "--url", c.URL, "--name", "forge", "--env-file", file, token)
	require.Regexp(env.T, `key forge-[a-z0-9]{8} is in `+file, said)
	info, err := os.Stat(file)
	require.NoError(env.T, err)
	require.EqualValues(env.T, 0o600, info.Mode())
	text, err := os.ReadFile(file)
	require.NoError(env.T, err)
	_, err = env.TryClient(c, "worker", "enroll", "--env-file", file, token)
	require.Equal(env.T, store.InvalidAPIKey, store.CodeOf(err), "a token is good for one key")
	again, err := os.ReadFile(file)
	require.NoError(env.T, err)
	require.Equal(env.T, string(text), string(again), "nothing is lost when it fails")
	key := regexp.MustCompile(`(?m)^TAKT_API_KEY=(.*)$`).FindSubmatch(text)
	require.NotNil(env.T, key)
	return string(key[1])
}

// A worker with its key in the environment file of its unit: no build can read the key.
func TestWorkerEnroll(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	file := filepath.Join(t.TempDir(), "worker.env")
	require.NoError(t, os.WriteFile(file, []byte("# comment\nTAKT_URL=http://127.0.0.1:1\nTAKT_API_KEY=\nWORKER_FLAGS=\"-c 2\"\n"), 0o644))
	key := enrollKey(env, c, file)
	require.Regexp(t, `^takt_`, key)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "# comment\nTAKT_URL="+c.URL+"\nTAKT_API_KEY="+key+"\nWORKER_FLAGS=\"-c 2\"\n", string(text))

	worker, err := env.Worker(c, "forge", looksForKeys, []string{"TAKT_API_KEY=" + key}, "--env", "STATE="+env.WorkerState("forge"))
	require.NoError(t, err)
	t.Cleanup(func() { env.LogOnFailure("forge", worker) })
	build, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"}))})
	require.NoError(t, err)
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, build.ID).Status == string(store.Completed) })
	out := filepath.Join(t.TempDir(), "out")
	env.Client(c, "download", build.ID, "--output", out)
	seen, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(seen), "TAKT_BUILD_ID=")
	require.NotContains(t, string(seen), key)
	list := env.Client(c, "keys", "list")
	all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Regexp(t, `(?m)^forge-[a-z0-9]{8} .* `+all.Workers[0].ID+` `, list)
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
}

// A worker that keeps its key in its state directory says that its builds can read it.
func TestAWorkerWhoseBuildsCanReadItsKey(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	token := env.Client(c, "keys", "enroll")
	worker, err := env.Worker(c, "forge", "true", nil, "--enroll", token)
	require.NoError(t, err)
	t.Cleanup(func() { env.LogOnFailure("forge", worker) })
	var said string
	takttest.Eventually(t, "it reports", func() bool {
		all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(all.Workers) == 0 || all.Workers[0].Diagnostics == nil {
			return false
		}
		said = all.Workers[0].Diagnostics.Message
		return true
	})
	require.Contains(t, said, api.KeyExposed+": "+runner.MendKey[:40]) // lists cut it off
	found, _ := env.TryClient(c, "doctor", "--url", c.URL, "--poll-wait", "1s")
	require.Contains(t, found, "forge: "+api.KeyExposed)
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
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

// A worker that is told to end while it builds is shown as leaving at once, and its other slot is
// promised to nobody.
func TestALeavingWorkerOffersNoSlot(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	ctx, goes := t.Context(), filepath.Join(t.TempDir(), "on")
	p, err := env.Worker(c, "w", `while ! [ -e `+goes+` ]; do sleep 0.05; done; echo > "$TAKT_OUTPUT"`, nil, "--heartbeat", "500ms", "-c", "2")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Stop(context.WithoutCancel(ctx), takttest.Patience))
		env.LogOnFailure("w", p)
	})
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	why := func(id string) api.BuildWhy {
		why, err := c.Client.Why(ctx, id, client.BuildAuth{})
		require.NoError(t, err)
		return why
	}
	first := takttest.Submit(t, c, source)
	takttest.Eventually(t, "it builds", func() bool { return takttest.Status(t, c, first).State == string(store.Building) })
	require.NoError(t, p.Signal(syscall.SIGTERM))
	takttest.Eventually(t, "it leaves", func() bool { return takttest.Fleet(t, c)["w"].State == store.WorkerLeaving })
	second := takttest.Submit(t, c, source)
	takttest.Eventually(t, "that is said", func() bool { return why(second).Reason == "No worker for android gets builds: 1 leaving." })
	require.Empty(t, why(second).Start)
	require.NoError(t, os.WriteFile(goes, nil, 0o600))
	<-p.Done()
	require.Zero(t, p.ExitCode())
	require.Equal(t, string(store.Completed), takttest.Status(t, c, first).State)
	require.Equal(t, string(store.Pending), takttest.Status(t, c, second).State)
}
