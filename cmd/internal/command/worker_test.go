package command_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/store"
	"takt/store/storetest/needs"
)

func TestWorkerCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", []byte("no zip"), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan int, 1)
	go func() {
		code, _, _ := d.takt(ctx, "worker", "--name", "my mac", "--exec", "true", "--platform", "ios,android", "--concurrency", "3", "--json")
		ended <- code
	}()
	require.Equal(t, "source: not a zip archive", d.AwaitState(t, id, store.Failed).ErrorMessage)
	cancel(context.Canceled)
	require.Zero(t, <-ended)
	w := d.Workers()[0]
	require.Equal(t, "my mac", w.Name)
	require.Equal(t, []string{"ios", "android"}, w.Platforms)
	require.Equal(t, 3, w.Slots)
	require.True(t, w.Gone)
	require.FileExists(t, filepath.Join(d.dir, "takt", "workers", "my-mac", "worker-id"))
}

// TestWhatAWorkerAccepts of builds, by its flags.
func TestWhatAWorkerAccepts(t *testing.T) {
	t.Parallel()
	engine := filepath.Join(t.TempDir(), "engine")
	require.NoError(t, os.WriteFile(engine, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	for _, tt := range []struct {
		name       string
		args       []string
		secrets    bool
		maxTimeout time.Duration
	}{
		{"with --exec", []string{"--exec", "true"}, false, 4 * time.Hour},
		{"with --exec, if it says so", []string{"--exec", "true", "--accept-secrets", "--timeout", "6h"}, true, 6 * time.Hour},
		{"with --image", []string{"--image", "x", "--engine", engine, "--max-timeout", "90m"}, true, 90 * time.Minute},
		{"with --image, unless it says so", []string{"--image", "x", "--engine", engine, "--accept-secrets=false"}, false, 4 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newTerminal(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan int, 1)
			go func() {
				code, _, _ := d.takt(ctx, append([]string{"worker", "--name", "w"}, tt.args...)...)
				ended <- code
			}()
			d.Await(t, "it registers", func() bool { return len(d.Workers()) == 1 })
			got := d.Workers()[0].Capabilities
			cancel(context.Canceled)
			require.Zero(t, <-ended)
			require.Equal(t, tt.secrets, slices.Contains(got.Features, store.FeatureSecrets))
			require.Equal(t, int(tt.maxTimeout.Seconds()), got.MaxTimeout)
		})
	}
	for want, args := range map[string][]string{
		"reserved":                    {"--label", "takt.env=1"},
		"less than the time limit 1h": {"--max-timeout", "1m"},
		"not a pattern":               {"--accept-env", "["},
	} {
		d := newTerminal(t)
		code, _, said := d.takt(t.Context(), append([]string{"worker", "--name", "w", "--exec", "true"}, args...)...)
		require.Equal(t, 2, code, said)
		require.Contains(t, said, want)
	}
}

// TestWorkerSignals sends real signals to a real process: the first drains, the
// second kills what runs.
func TestWorkerSignals(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	gate := filepath.Join(d.dir, "gate")
	worker := exec.Command(os.Args[0], "worker", "--name", "w", "--heartbeat", "50ms",
		"--exec", `echo running; until [ -e `+gate+` ]; do sleep 0.02; done; echo x > "$TAKT_OUTPUT"`)
	worker.Env = append(os.Environ(), takttest.Reexec+"=1")
	for name, value := range d.env {
		worker.Env = append(worker.Env, name+"="+value)
	}
	start := func() *exec.Cmd {
		again := *worker
		require.NoError(t, again.Start())
		t.Cleanup(func() {
			if again.ProcessState == nil {
				_ = again.Process.Kill()
				_ = again.Wait()
			}
		})
		return &again
	}
	running := func(id string) func() bool {
		return func() bool {
			return slices.ContainsFunc(d.Build(id).Logs, func(l api.LogMessage) bool { return l.Message == "running" })
		}
	}
	// A signal takes its way while a build goes on.
	beating := func(id string) {
		heartbeats := d.Build(id).Heartbeats
		d.Await(t, "some heartbeats", func() bool { return d.Build(id).Heartbeats > heartbeats+3 })
	}
	first := start()
	one := d.Submit("ios", takttest.Zip(t, nil), nil)
	d.Await(t, "the first build runs", running(one))
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	beating(one)
	two := d.Submit("ios", takttest.Zip(t, nil), nil)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.NoError(t, first.Wait())
	require.Equal(t, store.Completed, d.Build(one).State)
	require.Equal(t, store.Pending, d.Build(two).State)

	require.NoError(t, os.Remove(gate))
	second := start()
	d.Await(t, "the second build runs", running(two))
	require.NoError(t, second.Process.Signal(os.Interrupt))
	beating(two)
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	require.NoError(t, second.Wait())
	require.Equal(t, "worker was stopped", d.Build(two).ErrorMessage)
	require.True(t, d.Workers()[0].Gone)
	require.Len(t, d.Workers(), 1)
}

// TestWorkerHidesItsKeys has a build look at its worker in /proc.
func TestWorkerHidesItsKeys(t *testing.T) {
	t.Parallel()
	const look = `{ tr '\0' '\n' < /proc/$PPID/environ; tr '\0' '\n' < /proc/$PPID/cmdline; cat "$STATE"/worker-id; id -u; ps -o pgid= -p $$ | grep -qw $$ && echo own group; } 2>&1; echo x > "$TAKT_OUTPUT"`
	users := [][]string{nil}
	uid := strconv.Itoa(1<<30 + os.Getpid()) // nobody else has it
	if os.Geteuid() == 0 {
		users = append(users, []string{"--user", uid})
		t.Cleanup(func() { _ = os.Remove("/var/run/takt-user-" + uid + ".lock") })
	}
	for _, user := range users {
		d := newTerminal(t)
		require.NoError(t, os.Chmod(d.dir, 0o711))
		require.NoError(t, os.Chmod(filepath.Dir(d.dir), 0o711))
		worker := exec.Command(os.Args[0], append([]string{
			"worker", "--name", "w", "--api-key", controllertest.APIKey,
			"--env", "STATE=" + filepath.Join(d.dir, "state"), "--state-dir", filepath.Join(d.dir, "state"), "--exec", look,
		}, user...)...)
		worker.Env = append(os.Environ(), takttest.Reexec+"=1", "CONTROLLER_API_KEY="+controllertest.APIKey)
		for name, value := range d.env {
			worker.Env = append(worker.Env, name+"="+value)
		}
		var said bytes.Buffer
		worker.Stderr = io.MultiWriter(&said, t.Output())
		require.NoError(t, worker.Start())
		id := d.Submit("ios", takttest.Zip(t, nil), nil)
		d.AwaitState(t, id, store.Completed)
		require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
		require.NoError(t, worker.Wait())
		require.Equal(t, os.Geteuid() == 0 && user == nil, strings.Contains(said.String(), "builds run as root"), "a warning")
		log := fmt.Sprint(d.Build(id).Logs)
		require.NotContains(t, log, controllertest.APIKey)
		require.Contains(t, log, "--api-key", "it could look at the arguments")
		require.Contains(t, log, "own group")
		if user != nil {
			require.Contains(t, log, "{info "+uid+"}")
			require.Contains(t, log, "environ: Permission denied")
			require.Contains(t, log, "worker-id: Permission denied")
		}
	}
}

// In a container the worker is the first process, and builds have its user.
func TestTheFirstProcessOfAContainerHidesTheKeysOfItsWorker(t *testing.T) {
	t.Parallel()
	needs.Root(t)
	needs.Linux(t)
	uid := strconv.Itoa(1<<30 + 1<<29 + os.Getpid()) // nobody else has it
	d := newTerminal(t)
	state := t.TempDir()
	require.NoError(t, os.Chown(state, 1<<30+1<<29+os.Getpid(), -1))
	for dir := state; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(dir, info.Mode()|0o711))
	}
	const look = `{ for p in 1 $PPID; do tr '\0' '\n' < /proc/$p/environ; tr '\0' '\n' < /proc/$p/cmdline; done; id -u; } 2>&1
		for i in 1 2; do (setsid sleep 0.01 &); done; echo x > "$TAKT_OUTPUT"`
	program, err := os.Open("/proc/self/exe") // which may be in a directory of root's
	require.NoError(t, err)
	defer program.Close()
	worker := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--reuid", uid, "--clear-groups",
		"/proc/self/fd/3", "worker", "--name", "w", "--api-key", controllertest.APIKey, "--state-dir", filepath.Join(state, "w"), "--exec", look)
	worker.ExtraFiles = []*os.File{program}
	worker.Env = append(os.Environ(), takttest.Reexec+"=1", "TAKT_API_KEY="+controllertest.APIKey, "TMPDIR="+state)
	for name, value := range d.env {
		worker.Env = append(worker.Env, name+"="+value)
	}
	worker.Stderr = t.Output()
	needs.Allowed(t, "namespaces of processes", exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").Run())
	require.NoError(t, worker.Start())
	children := func(pid int) (all []int) {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		require.NoError(t, err)
		for _, list := range lists {
			text, _ := os.ReadFile(list) // the thread may have ended
			for child := range strings.FieldsSeq(string(text)) {
				n, err := strconv.Atoi(child)
				require.NoError(t, err)
				all = append(all, n)
			}
		}
		return all
	}
	t.Cleanup(func() {
		for _, first := range children(worker.Process.Pid) { // with it all go that are in its namespace
			_ = syscall.Kill(first, syscall.SIGKILL)
		}
		_ = worker.Wait()
	})
	id := d.Submit("ios", takttest.Zip(t, nil), nil)
	d.AwaitState(t, id, store.Completed)
	log := fmt.Sprint(d.Build(id).Logs)
	require.NotContains(t, log, controllertest.APIKey)
	require.Contains(t, log, "{info "+uid+"}")
	require.Equal(t, 2, strings.Count(log, "environ: Permission denied"), log)
	require.Equal(t, 2, strings.Count(log, "{info --api-key}"), "it could look at the arguments")

	first := children(worker.Process.Pid)[0]
	require.Eventually(t, func() bool { return len(children(first)) == 1 }, 20*time.Second, 10*time.Millisecond, "what the build left behind is gone")
	group, err := syscall.Getpgid(children(first)[0])
	require.NoError(t, err)
	require.Equal(t, children(first)[0], group, "a terminal's signals come through the first process only")
	require.NoError(t, syscall.Kill(first, syscall.SIGTERM))
	require.NoError(t, worker.Wait(), "the worker has left, and its exit code is that of the first process")
	require.True(t, d.Workers()[0].Gone)
}
