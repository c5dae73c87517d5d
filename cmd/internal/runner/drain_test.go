package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/store"
)

func TestDrainFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	gate := t.TempDir() + "/go"
	b := newBench(t, `echo "pids $$"; until [ -e `+gate+` ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`,
		func(c *Config) { c.Concurrency = 2 }) // so that it polls beside the build
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.pids(t, id)
	b.Await(t, "it polls for more", func() bool { return b.Polls() == 1 })
	b.worker.Drain()
	b.worker.Drain() // twice is once
	b.Await(t, "it polls no more", func() bool { return b.Polls() == 0 })
	next := b.Submit("ios", source(t), nil)
	b.Expire() // as after a long build
	touch(t, gate)
	<-b.ended
	require.NoError(t, b.err)
	require.Equal(t, store.Completed, b.Build(id).State)
	require.Equal(t, store.Pending, b.Build(next).State)
	require.True(t, b.Workers()[0].Gone)
}

func TestDrainBeforeTheControllerAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	b.URL = "unused"
	b.worker.Drain()
	b.start(t)
	<-b.ended
	require.NoError(t, b.err)
}

func TestStopKillsAndReports(t *testing.T) {
	t.Parallel()
	b := newBench(t, slow)
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	pids := b.pids(t, id)
	b.end()
	require.NoError(t, b.err)
	for _, pid := range pids {
		require.False(t, alive(pid))
	}
	got := b.Build(id)
	require.Equal(t, store.Failed, got.State)
	require.Equal(t, "worker was stopped", got.ErrorMessage)
	require.True(t, b.Workers()[0].Gone)
}

// TestKilledWorkerLeavesNothingBehind kills a real worker process and looks for
// what it was running, also for what does not listen to SIGTERM.
func TestKilledWorkerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	ctl := controllertest.Start(t)
	state := t.TempDir()
	process := startProcess(t, ctl.URL, state, `trap '' TERM; sleep 1000 & echo "pids $$ $!"; wait; wait`)
	id := ctl.Submit("ios", source(t), archive(t, entry{name: "p.txt", content: "secret"}))
	b := &bench{Controller: ctl}
	pids := b.pids(t, id)
	certs := filepath.Join(state, "builds", id+"-1", "certs")
	require.FileExists(t, filepath.Join(certs, "p.txt"))
	require.NoError(t, process.Process.Kill())
	_ = process.Wait()
	awaitDead(t, pids...)
	awaitGone(t, certs)
	// The next worker in this directory is the same one, finds it clean, and says at once
	// that it lost the build.
	require.DirExists(t, filepath.Join(state, "builds", id+"-1"))
	second := startProcess(t, ctl.URL, state, copyBuild)
	require.Equal(t, 2, ctl.AwaitState(t, id, store.Completed).Attempt)
	require.Len(t, ctl.Workers(), 1)
	require.NoDirExists(t, filepath.Join(state, "builds", id+"-1"))
	require.NoError(t, second.Process.Signal(syscall.SIGINT))
	require.NoError(t, second.Wait())
}

func startProcess(t *testing.T, url, state, script string, edit ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "RUNNER_TEST_URL="+url, "RUNNER_TEST_STATE="+state, "RUNNER_TEST_SCRIPT="+script)
	var said strings.Builder
	cmd.Stderr = &said
	for _, f := range edit {
		f(cmd)
	}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return cmd
}
