package runner

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// TestMain lets the test binary be a worker process too, to be killed.
func TestMain(m *testing.M) {
	if code, ran := Helper(os.Args); ran {
		os.Exit(code)
	}
	if url := os.Getenv("RUNNER_TEST_URL"); url != "" {
		os.Exit(workerProcess(url, os.Getenv("RUNNER_TEST_STATE"), os.Getenv("RUNNER_TEST_SCRIPT")))
	}
	goleak.VerifyTestMain(m)
}

func workerProcess(url, state, script string) int {
	c, err := client.New(client.Config{BaseURL: url, APIKey: controllertest.APIKey})
	if err != nil {
		return 2
	}
	var command Command = &Exec{Script: script, Env: []string{"PATH=" + os.Getenv("PATH")}}
	if image := os.Getenv("RUNNER_TEST_IMAGE"); image != "" {
		command = &Image{Engine: "podman", Image: image, Script: script, Network: "none", HostEnv: os.Environ()}
	}
	var owners []*Owner
	if name := os.Getenv("RUNNER_TEST_USER"); name != "" {
		owner, err := FindOwner(name)
		if err != nil {
			return 2
		}
		owners = append(owners, owner)
	}
	memory, _ := strconv.ParseInt(os.Getenv("RUNNER_TEST_MEMORY"), 10, 64)
	w, err := New(c, zerolog.New(os.Stderr), Config{
		Resources: Resources{Memory: memory, CPUs: float64(memory) / (128 << 20)},
		Name:      "process", StateDir: state, Command: command, AcceptSecrets: true,
		Owners: owners, Heartbeat: 10 * time.Millisecond, PollWait: time.Second,
	})
	if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer stop()
	if w.Run(ctx) != nil {
		return 1
	}
	return 0
}

// bench is a worker on a controller.
type bench struct {
	*controllertest.Controller
	worker *Worker
	client *client.Client
	// stop ends the worker at once.
	stop func()
	// ended is closed when Run has returned err.
	ended chan struct{}
	err   error
}

// newBench makes a worker that runs script, not yet started.
func newBench(t *testing.T, script string, edit ...func(*Config)) *bench {
	t.Helper()
	b := &bench{Controller: controllertest.Start(t), ended: make(chan struct{})}
	c := must(client.New(client.Config{BaseURL: b.URL, APIKey: controllertest.APIKey, HTTPClient: &http.Client{Transport: client.NewTransport()}}))(t)
	cfg := Config{
		Name: "bench", StateDir: t.TempDir(),
		Command:   &Exec{Script: script, Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere"}},
		Heartbeat: 10 * time.Millisecond, KillGrace: 5 * time.Second,
		Backoff: backoff.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		Logs:    LogConfig{Every: time.Millisecond},
	}
	for _, f := range edit {
		f(&cfg)
	}
	b.client = c
	b.worker = must(New(c, zerolog.New(zerolog.NewTestWriter(t)), cfg))(t)
	return b
}

// start runs the worker until the test ends.
func (b *bench) start(t *testing.T) *bench {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	b.stop = func() { cancel(errStopped) }
	go func() {
		defer close(b.ended)
		b.err = b.worker.Run(ctx)
	}()
	t.Cleanup(func() {
		b.stop()
		<-b.ended
		b.client.CloseIdle()
	})
	return b
}

// building starts a worker that runs script for a build.
func building(t *testing.T, script string, edit ...func(*Config)) (b *bench, id string) {
	t.Helper()
	b = newBench(t, script, edit...)
	id = b.Submit("ios", source(t), nil)
	return b.start(t), id
}

// completes has the worker complete another build.
func (b *bench) completes(t *testing.T) {
	t.Helper()
	b.AwaitState(t, b.Submit("ios", source(t), nil), store.Completed)
}

// drain and end return when the worker has ended.
func (b *bench) drain() { b.worker.Drain(); <-b.ended }
func (b *bench) end()   { b.stop(); <-b.ended }

// refuse answers requests whose paths end so with a problem.
func (b *bench) refuse(suffix string, status int, code store.Code, detail string) {
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, suffix) {
			return false
		}
		controllertest.Problem(w, status, code, detail)
		return true
	})
}

// has reports whether a build's log has a line that contains text.
func (b *bench) has(id, text string) func() bool {
	return func() bool { return b.line(id, text) != "" }
}

func (b *bench) line(id, text string) string {
	logs := b.Build(id).Logs
	at := slices.IndexFunc(logs, func(l api.LogMessage) bool { return strings.Contains(l.Message, text) })
	if at < 0 {
		return ""
	}
	return logs[at].Message
}

// reports tells whether the last diagnostic report has a status.
func (b *bench) reports(status string) func() bool {
	return func() bool { workers := b.Workers(); return len(workers) == 1 && workers[0].Report.Status == status }
}

// fit tells whether the last diagnostic report is that builds can be run, on a machine
// that may be busy.
func (b *bench) fit() bool { return b.reports("healthy")() || b.reports("warning")() }

// file is an entry of a test archive.
type entry struct {
	name, content string
	mode          fs.FileMode
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		if e.mode == 0 {
			e.mode = 0o644
		}
		header.SetMode(e.mode)
		w := must(z.CreateHeader(header))(t)
		if !strings.HasSuffix(e.name, "/") { // a directory has no content
			must(w.Write([]byte(e.content)))(t)
		}
	}
	require.NoError(t, z.Close())
	return out.Bytes()
}

func source(t *testing.T) []byte {
	t.Helper()
	return archive(t, entry{name: "main.txt", content: "hello"})
}

// awaitDead waits until processes are gone, or zombies that only wait for a parent that
// does not care.
func awaitDead(t *testing.T, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		await(t, "process "+pid+" is dead", func() bool { return !alive(pid) })
	}
}

func awaitGone(t *testing.T, path string) {
	t.Helper()
	await(t, path+" is gone", func() bool { _, err := os.Stat(path); return errors.Is(err, fs.ErrNotExist) })
}

// await looks again and again, because nothing can wake it.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-limit.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func alive(pid string) bool {
	if runtime.GOOS != "linux" {
		n, err := strconv.Atoi(pid)
		return err == nil && syscall.Kill(n, 0) == nil
	}
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

// program returns the path of one that every system has.
func program(name string) string {
	path, _ := exec.LookPath(name)
	return path
}

func containsAll(s string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
