package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/await"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

const (
	patience = time.Minute
	tick     = 50 * time.Millisecond // a check is a request or more
)

// site is a directory with the controllers and workers of one test, which are this
// test binary.
type site struct {
	process.Site
	t      *testing.T
	fresh  bool            // controllers make their clusters themselves
	logged map[string]bool // whose last words the failed test has logged
}

// shortDir is t.TempDir for directories with sockets, whose paths must be short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "site-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// sites has the directory of each test's latest site, by the name of the test.
var sites sync.Map

func newSite(t *testing.T) *site {
	t.Helper()
	needs.Postgres(t)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := shortDir(t)
	test, _, _ := strings.Cut(t.Name(), "/")
	sites.Store(test, dir)
	return &site{
		Site: process.Site{Takt: self, Dir: dir, Environ: os.Environ(), Settings: []string{reexec + "=1"}},
		t:    t, logged: map[string]bool{},
	}
}

// controller starts `takt serve`; it is stopped at the end of the test, and has
// to stop cleanly: a data race that the detector found makes it exit non-zero.
func (s *site) controller(name string, settings ...string) *process.Controller {
	s.t.Helper()
	if !s.fresh && !strings.Contains(strings.Join(settings, "\n"), "TAKT_DATABASE_URL=") {
		copyCluster(s.t, filepath.Join(s.Dir, name))
	}
	c, err := s.Controller(s.t.Context(), name, settings...)
	require.NoError(s.t, err)
	if strings.HasPrefix(c.URL, "http://") { // with TLS the client knows its own certificates
		c.Client = checked(s.t, c)
	}
	s.t.Cleanup(func() {
		if c.Alive() {
			require.NoError(s.t, c.Stop(context.WithoutCancel(s.t.Context()), patience))
		}
		s.tellOf(name, c.Process)
	})
	return c
}

// tellOf logs the end of a failed test's log, once for all that ran as name.
func (s *site) tellOf(name string, p *process.Process) {
	s.t.Helper()
	if s.t.Failed() && !s.logged[name] {
		s.logged[name] = true
		s.t.Logf("%s said:%s", name, p.Tail())
	}
}

func (s *site) worker(c *process.Controller, name, command string, settings ...string) *process.Process {
	s.t.Helper()
	p, err := s.Worker(c, name, command, settings, "--heartbeat", "500ms")
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		if p.Alive() {
			require.NoError(s.t, p.Stop(context.WithoutCancel(s.t.Context()), patience))
		}
		s.tellOf(name, p)
	})
	return p
}

// eventually waits for a condition, as long as the processes of the test write into their logs.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	require.NoError(t, await.Until(context.WithoutCancel(t.Context()), what, func() string {
		dir, _ := sites.Load(test)
		logs, _ := filepath.Glob(fmt.Sprint(dir, "/*.log")) // none without a site
		written := int64(0)
		for _, log := range logs {
			if info, err := os.Stat(log); err == nil {
				written += info.Size()
			}
		}
		return fmt.Sprintf("%d bytes of logs", written)
	}, func(context.Context) (bool, error) { return cond(), nil }))
}

func submit(t *testing.T, c *process.Controller, source []byte) string {
	t.Helper()
	sub, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(source)})
	require.NoError(t, err)
	return sub.ID
}

func status(t *testing.T, c *process.Controller, id string) api.BuildStatus {
	t.Helper()
	st, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
	require.NoError(t, err)
	return st
}

func download(t *testing.T, c *process.Controller, id string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "result"))
	require.NoError(t, err)
	defer f.Close()
	got, err := c.Client.Download(t.Context(), id, client.BuildAuth{}, f, client.FetchOptions{})
	require.NoError(t, err)
	require.True(t, got.Verified)
	raw, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return string(raw)
}

// copyOrder is a build command: the result is the source's file.
const copyOrder = `cat order.txt > "$TAKT_OUTPUT" && echo built`

func TestWorkersBuildWhatWasSubmitted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	s.worker(c, "one", copyOrder)
	s.worker(c, "two", copyOrder)
	orders := map[string]string{}
	for i := range 10 {
		order := fmt.Sprintf("order %d", i)
		orders[submit(t, c, zipOf(t, map[string]string{"order.txt": order}))] = order
	}
	for id, order := range orders {
		eventually(t, "build completes", func() bool { return status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, order, download(t, c, id))
		logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
		require.NoError(t, err)
		require.Equal(t, "Build submitted", logs.Logs[0].Message)
		require.Contains(t, messages(logs), "built")
		require.Contains(t, messages(logs), "Build completed successfully")
	}
}

func messages(l api.Logs) []string {
	var out []string
	for _, e := range l.Logs {
		out = append(out, e.Message)
	}
	return out
}

func TestBuildOfAKilledWorkerCompletesElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt", "TAKT_BUILD_TIMEOUT=3s", "TAKT_WORKER_TIMEOUT=3s")
	// The first worker never ends its build.
	victim := s.worker(c, "victim", "echo waiting; exec sleep 300")
	id := submit(t, c, zipOf(t, map[string]string{"order.txt": "precious"}))
	eventually(t, "the victim builds", func() bool { return status(t, c, id).Status == string(store.Building) })
	first := *status(t, c, id).WorkerID
	victim.Kill()

	s.worker(c, "heir", copyOrder)
	eventually(t, "the build completes", func() bool { return status(t, c, id).Status == string(store.Completed) })

	st := status(t, c, id)
	require.Equal(t, 2, st.Attempt)
	require.NotEqual(t, first, *st.WorkerID)
	require.Equal(t, "precious", download(t, c, id))

	ask := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := command.New(cli.Environment(env("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "HOME", t.TempDir())))
		require.Zero(t, cli.Execute(t.Context(), root, args, &out, &out), out.String())
		return out.String()
	}
	const at = `\S+Z? +`
	require.Regexp(t, `AT +WHAT +WORKER +DETAILS
`+at+`Submitted +- +android, priority 0
`+at+`Assigned +victim +after waiting .*
`+at+`Attempt 1 lost +- +no sign of life from worker victim
`+at+`Assigned +heir +attempt 2
`+at+`Uploaded +- +8 B
`+at+`Completed`, ask("explain", id))
	require.Equal(t, id+" does not wait: it is completed. takt explain "+id+" shows what happened\n", ask("why", id))
}

func TestKilledControllerLosesNoAcknowledgedSubmit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	acknowledged := map[string]string{}
	for round := range 3 {
		c := s.controller("takt")
		var mu sync.Mutex
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancelCause(t.Context())
		for i := range 4 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					order := fmt.Sprintf("round %d, submitter %d, order %d", round, i, n)
					sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(zipOf(t, map[string]string{"order.txt": order}))})
					if err != nil {
						return // the kill
					}
					mu.Lock()
					acknowledged[sub.ID] = order
					mu.Unlock()
				}
			})
		}
		eventually(t, "some submits are acknowledged", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) >= 10*(round+1)
		})
		c.Kill()
		cancel(context.Canceled)
		wg.Wait()
	}
	c := s.controller("takt", "TAKT_POLL_RATE=0")
	w := register(t, c, len(acknowledged)+100)
	got := map[string]bool{}
	for {
		job := w.poll(t)
		if job == nil {
			break
		}
		require.False(t, got[job.ID], "handed out twice")
		got[job.ID] = true
		if order, ok := acknowledged[job.ID]; ok {
			require.Contains(t, w.source(t, job.ID), order)
		}
	}
	for id := range acknowledged {
		require.True(t, got[id], "acknowledged build %s is gone", id)
	}
}

// hand is a worker that the test plays itself.
type hand struct {
	c     *process.Controller
	id    string
	token string
}

func register(t *testing.T, c *process.Controller, slots int) *hand {
	t.Helper()
	reg, err := c.Client.Register(t.Context(), api.Register{Name: "hand", Capabilities: fmt.Appendf(nil, `{"maxConcurrentBuilds":%d}`, slots)})
	require.NoError(t, err)
	return &hand{c: c, id: reg.ID, token: reg.AccessToken}
}

func (w *hand) poll(t *testing.T) *api.Job {
	t.Helper()
	reply, err := w.c.Client.Poll(t.Context(), client.Poll{Token: w.token})
	require.NoError(t, err)
	w.token = reply.AccessToken
	return reply.Job
}

// source returns the names and contents of a build's source, unpacked.
func (w *hand) source(t *testing.T, id string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "source.zip"))
	require.NoError(t, err)
	defer f.Close()
	_, err = w.c.Client.Source(t.Context(), client.Held{BuildID: id, WorkerID: w.id}, f, client.FetchOptions{})
	require.NoError(t, err)
	return unzip(t, f.Name())
}

func TestUploadOfOneGibibyteNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var err error
	s.Dir, err = os.MkdirTemp(disk, "takt-upload-") //nolint:usetesting // t.TempDir is in memory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(s.Dir)) })
	c := s.controller("takt")
	id := submit(t, c, zipOf(t, map[string]string{"order.txt": "x"}))
	w := register(t, c, 1)
	require.Equal(t, id, w.poll(t).ID)
	file := filepath.Join(s.Dir, "result.bin")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("takt"), 1<<20), 0o600))
	require.NoError(t, os.Truncate(file, 1<<30))
	content, err := client.File(file)
	require.NoError(t, err)

	_, before, err := c.Resident()
	require.NoError(t, err)
	_, err = c.Client.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: id, WorkerID: w.id, Attempt: 1}, Success: true, Result: &content})
	require.NoError(t, err)

	_, after, err := c.Resident()
	require.NoError(t, err)
	require.Less(t, after-before, 64<<20)
	require.Equal(t, string(store.Completed), status(t, c, id).Status)
	st, err := os.Stat(filepath.Join(c.DataDir, "files", "builds", id, "result.apk"))
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, st.Size())
}

func TestSecondControllerInOneDataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	p, err := s.Launch("intruder", []string{"TAKT_DATA_DIR=" + c.DataDir, "TAKT_LISTEN=127.0.0.1:0"}, "serve")
	require.NoError(t, err)
	<-p.Done()
	require.Error(t, p.Failure())
	require.Contains(t, p.Tail(), "used by another takt")
}

// Who interrupts a follower ends only the command.
func TestAnInterruptedFollowerLeavesTheBuild(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	w := register(t, c, 1)
	id := submit(t, c, zipOf(t, map[string]string{"order.txt": "x"}))
	require.Equal(t, id, w.poll(t).ID)
	p, err := s.Launch("follower", []string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey}, "logs", "-f", id)
	require.NoError(t, err)
	eventually(t, "it follows", func() bool { return strings.Contains(p.Output(), "Assigned to worker") })
	require.NoError(t, p.Signal(os.Interrupt))
	<-p.Done()
	require.Equal(t, cli.ExitInterrupted, p.ExitCode())
	require.Contains(t, p.Output(), "build "+id+" goes on: takt logs -f "+id+" follows it, takt cancel "+id+" cancels it")
	status, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
	require.NoError(t, err)
	require.Equal(t, string(store.Assigned), status.State)
}
