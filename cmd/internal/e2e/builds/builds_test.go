package builds

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/takttest"
	takthttp "takt/http"
	"takt/http/api"
	"takt/http/client"
	"takt/http/openapitest"
	"takt/http/tlstest"
	"takt/store"
)

func TestWorkersBuildWhatWasSubmitted(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	env.StartWorker(c, "one", takttest.CopyOrder)
	env.StartWorker(c, "two", takttest.CopyOrder)
	orders := map[string]string{}
	for i := range 10 {
		order := fmt.Sprintf("order %d", i)
		orders[takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": order}))] = order
	}
	for id, order := range orders {
		takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, order, takttest.Download(t, c, id))
		logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
		require.NoError(t, err)
		require.Equal(t, "Build submitted", logs.Logs[0].Message)
		require.Contains(t, takttest.Messages(logs), "built")
		require.Contains(t, takttest.Messages(logs), "Build completed successfully")
	}
}

func TestUploadOfOneGibibyteNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	var err error
	env.Dir, err = os.MkdirTemp(takttest.Disk, "takt-upload-") // t.TempDir is in memory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(env.Dir)) })
	c := env.StartController("takt")
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	w := takttest.Register(t, c, 1)
	require.Equal(t, id, w.Poll(t).ID)
	file := filepath.Join(env.Dir, "result.bin")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("takt"), 1<<20), 0o600))
	require.NoError(t, os.Truncate(file, 1<<30))
	content, err := client.File(file)
	require.NoError(t, err)

	_, before, err := c.Resident()
	require.NoError(t, err)
	_, err = c.Client.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: id, WorkerID: w.ID, Attempt: 1}, Success: true, Result: &content})
	require.NoError(t, err)

	_, after, err := c.Resident()
	require.NoError(t, err)
	require.Less(t, after-before, 64<<20)
	require.Equal(t, string(store.Completed), takttest.Status(t, c, id).Status)
	st, err := os.Stat(filepath.Join(c.DataDir, "files", "builds", id, "result.apk"))
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, st.Size())
}

// Who interrupts a follower ends only the command.
func TestAnInterruptedFollowerLeavesTheBuild(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	w := takttest.Register(t, c, 1)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	require.Equal(t, id, w.Poll(t).ID)
	p, err := env.Launch("follower", []string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey}, "logs", "-f", id)
	require.NoError(t, err)
	takttest.Eventually(t, "it follows", func() bool { return strings.Contains(p.Output(), "Assigned to worker") })
	require.NoError(t, p.Signal(os.Interrupt))
	<-p.Done()
	require.Equal(t, cli.ExitInterrupted, p.ExitCode())
	require.Contains(t, p.Output(), "build "+id+" goes on: takt logs -f "+id+" follows it, takt cancel "+id+" cancels it")
	status, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
	require.NoError(t, err)
	require.Equal(t, string(store.Assigned), status.State)
}

// A build goes to the worker whose labels meet what it requires, and says so while there is
// none. One that nobody could ever take fails after its time.
func TestBuildsAreRoutedByPlatformAndLabels(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_PLATFORMS=android,linux", "TAKT_UNMATCHED_TTL=2s", "TAKT_BUILD_TIMEOUT=3s", "TAKT_CHECK_INTERVAL=1s")
	ctx, source := t.Context(), client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"}))
	send := func(p store.Platform, require string) (string, error) {
		sub, err := c.Client.Submit(ctx, client.Submit{Platform: p, Source: source, Require: require})
		return sub.ID, err
	}
	_, err := send(store.IOS, "")
	require.ErrorContains(t, err, "Valid platform required (android|linux)")

	env.StartWorker(c, "plain", `cp order.txt "$TAKT_OUTPUT"`)
	p, err := env.Worker(c, "deb", `cp order.txt "$TAKT_OUTPUT.deb"`, nil, "--heartbeat", "500ms", "--platform", "linux", "--label", "go=1.26", "--label", "arch=arm64")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Stop(context.WithoutCancel(ctx), takttest.Patience))
		env.LogOnFailure("deb", p)
	})
	takttest.Eventually(t, "both have registered", func() bool { return len(takttest.Fleet(t, c)) == 2 })
	require.Equal(t, map[string]string{"go": "1.26", "arch": "arm64"}, takttest.Fleet(t, c)["deb"].Labels)

	debian, err := send("linux", "go>=1.9, arch in (arm64,amd64)")
	require.NoError(t, err)
	takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, debian).State == string(store.Completed) })
	require.Equal(t, takttest.Fleet(t, c)["deb"].ID, *takttest.Status(t, c, debian).WorkerID)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/builds/"+debian+"/download", nil)
	require.NoError(t, err)
	req.Header.Set("X-API-Key", c.APIKey)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, resp.Header.Get("Content-Disposition"), debian+".deb")

	never, err := send("linux", "go>=2")
	require.NoError(t, err)
	why, err := c.Client.Why(ctx, never, client.BuildAuth{})
	require.NoError(t, err)
	require.True(t, why.Unmatched)
	require.Equal(t, "There is no worker for linux with go>=2.", why.Reason)
	takttest.Eventually(t, "it fails", func() bool { return takttest.Status(t, c, never).State == string(store.Failed) })
	require.Equal(t, "No worker can take this build: it needs linux with go>=2", *takttest.Status(t, c, never).ErrorMessage)
	plain := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	takttest.Eventually(t, "others go on", func() bool { return takttest.Status(t, c, plain).State == string(store.Completed) })
}

// A worker whose container engine fails gives its build back. It is quarantined until an
// operator resumes it, and another one runs the build.
func TestAWorkerWithABrokenEngineIsQuarantined(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_QUARANTINE=1/10")
	engine := filepath.Join(t.TempDir(), "podman")
	repair := func(run string) {
		script := "#!/bin/sh\ncase $1 in\nrun) " + run + " ;;\ncontainer) exit 125 ;;\nesac\n"
		require.NoError(t, os.WriteFile(engine+".new", []byte(script), 0o700))
		require.NoError(t, os.Rename(engine+".new", engine))
	}
	repair("echo 'Error: OCI runtime error' >&2; exit 126")
	p, err := env.Worker(c, "broken", "true", nil, "--image", "img", "--engine", engine)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Stop(context.WithoutCancel(t.Context()), takttest.Patience))
		env.LogOnFailure("broken", p)
	})
	first := takttest.Submit(t, c, takttest.Zip(t, nil))
	takttest.Eventually(t, "it is quarantined", func() bool { return takttest.Fleet(t, c)["broken"].State == "quarantined" })
	broken := takttest.Fleet(t, c)["broken"]
	require.Equal(t, "1 of the last 1 attempts ended by this worker's own fault. The last one (engine): "+
		"container engine failed: exit code 126 Error: OCI runtime error", broken.Quarantine.Reason)
	require.Equal(t, "idle", broken.Status)
	require.Equal(t, "pending", takttest.Status(t, c, first).State)
	takttest.Eventually(t, "its log line", func() bool { return strings.Contains(c.Output(), `"message":"worker quarantined"`) })
	for _, line := range []string{`takt_workers{state="quarantined"} 1`, `takt_build_attempts_lost_total{reason="engine"} 1`, `takt_worker_steps_total{step="quarantined"} 1`} {
		takttest.Eventually(t, line, func() bool {
			text, err := c.Client.Metrics(t.Context())
			return err == nil && strings.Contains(text, "\n"+line+"\n")
		})
	}

	env.StartWorker(c, "healthy", `cp order.txt "$TAKT_OUTPUT"`)
	second := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	takttest.Eventually(t, "the others go on", func() bool { return takttest.Status(t, c, second).State == string(store.Completed) })
	require.Equal(t, 2, takttest.Status(t, c, first).Attempt, "the second worker had it")
	require.Equal(t, "quarantined", takttest.Fleet(t, c)["broken"].State)

	takttest.Call(t, c, api.DrainWorker, api.WorkerOrder{ID: api.WorkerID(takttest.Fleet(t, c)["healthy"].ID)})
	repair(`for arg; do case $arg in *:/takt/out) cp "$0" "${arg%:*}/result" ;; esac; done`)
	takttest.Call(t, c, api.ResumeWorker, api.WorkerOrder{ID: api.WorkerID(broken.ID)})
	third := takttest.Submit(t, c, takttest.Zip(t, nil))
	takttest.Eventually(t, "it builds again", func() bool { return takttest.Status(t, c, third).State == string(store.Completed) })
	require.Equal(t, "idle", takttest.Fleet(t, c)["broken"].State)
}

// A build's life, and a restart in the tree, as they are published. Each
// event is as the OpenAPI document describes it.
func TestWhatHappensIsTold(t *testing.T) {
	t.Parallel()
	document, err := openapitest.Load(t.Context(), takthttp.OpenAPI())
	require.NoError(t, err)
	schemas := map[string]string{
		"queue:updated": "QueueUpdated", "job:available": "JobAvailable", "build:assigned": "BuildAssigned",
		"build:updated": "BuildUpdated", "worker:updated": "WorkerUpdated", "supervisor:event": "SupervisorEvent",
	}
	require.ElementsMatch(t, takthttp.Topics(), slices.Collect(maps.Keys(schemas)))

	c := takttest.NewEnv(t).StartController("takt")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/api/events", nil)
	require.NoError(t, err)
	req.Header.Set("X-API-Key", c.APIKey)
	resp, err := (&http.Client{Transport: client.NewTransport()}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)

	w := takttest.Register(t, c, 1)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"x": "y"}))
	require.Equal(t, id, w.Poll(t).ID)
	takttest.Cancel(t, c, id)
	takttest.Order(t, c, client.Order{Action: "restart", Path: "takt/orchestration/heartbeat_monitor", Reason: "to see it published"})

	topic, published := "", map[string]string{}
	for lines := bufio.NewScanner(resp.Body); len(published) < len(schemas) && lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			topic = value
		case "data":
			require.NoError(t, document.Schema(schemas[topic], []byte(value)), topic)
			require.NoError(t, document.Event("/api/events", []byte(value)), topic)
			published[topic] += value
		}
	}
	require.Len(t, published, len(schemas))
	require.Contains(t, published["build:assigned"], id)
	require.JSONEq(t, `{"platform":"android"}`, published["job:available"], "once")
}

func TestFleetWorksOverTLS(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ca := tlstest.NewAuthority(t)
	cert, key := ca.Issue(t, env.Dir, 1)
	caFile := filepath.Join(env.Dir, "ca.pem")
	require.NoError(t, os.WriteFile(caFile, ca.PEM, 0o600))
	c := env.StartController("takt", "TAKT_TLS_CERT="+cert, "TAKT_TLS_KEY="+key, "TAKT_CA_FILE="+caFile)
	require.True(t, strings.HasPrefix(c.URL, "https://"))
	env.StartWorker(c, "one", takttest.CopyOrder, "TAKT_CA_FILE="+caFile)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "over TLS"}))
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
	require.Equal(t, "over TLS", takttest.Download(t, c, id))

	list := func(args ...string) (string, int) {
		var out bytes.Buffer
		root := command.New(takttest.Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey))
		code := cli.Execute(t.Context(), root, append([]string{"list"}, args...), &out, &out)
		return out.String(), code
	}
	out, code := list("--ca-file", caFile)
	require.Zero(t, code, out)
	require.Contains(t, out, id)
	out, code = list("--ca-file", key)
	require.Equal(t, 2, code, out)
	require.NotContains(t, out, "PRIVATE KEY")
	out, code = list("--ca-file", filepath.Join(env.Dir, "none"))
	require.Equal(t, 2, code, out)
}

func TestServeCheckTriesTheCertificate(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	cert, key := tlstest.NewAuthority(t).Issue(t, env.Dir, 1)
	check := func(cert, key string) (string, error) {
		p, err := env.Launch("check", []string{"TAKT_TLS_CERT=" + cert, "TAKT_TLS_KEY=" + key}, "serve", "--check")
		require.NoError(t, err)
		<-p.Done()
		return p.Output(), p.Failure()
	}
	out, err := check(cert, key)
	require.NoError(t, err, out)
	require.Contains(t, out, cert)
	for _, files := range [][2]string{{cert, ""}, {"", key}, {key, cert}, {cert, filepath.Join(env.Dir, "none")}} {
		out, err = check(files[0], files[1])
		require.Error(t, err, out)
		require.Contains(t, strings.ToLower(out), "tls")
	}
}
