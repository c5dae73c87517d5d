package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/store"
	"takt/store/storetest/needs"
)

func TestCommandThatIsNotThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := filepath.Join(dir, "tool")
	require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o700))
	env := []string{"PATH=" + dir + ":/bin:/usr/bin"}
	for script, want := range map[string]string{
		"tool --fast": "", tool + " x": "", "cd x && y": "", "./build.sh": "", "FAST=1 nothing": "", "if true; then x; fi": "", `"$X"`: "", "": "",
		"no-such-tool --fast": `command "no-such-tool" does not exist`, "/no/tool": `command "/no/tool" does not exist`,
	} {
		err := (&Exec{Script: script, Env: env}).Check(t.Context(), "")
		if want == "" {
			require.NoError(t, err, script)
		} else {
			require.EqualError(t, err, want, script)
		}
	}
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	engine := filepath.Join(t.TempDir(), "docker")
	write := func(script string) { require.NoError(t, os.WriteFile(engine, []byte(script), 0o700)) }
	write("#!/bin/sh\necho cannot connect to the daemon >&2; exit 1\n")
	image := &Image{Engine: engine, Image: "i", HostEnv: []string{"PATH=/bin:/usr/bin"}}
	require.EqualError(t, image.Check(t.Context(), ""), "container engine "+engine+" can't be reached: exit status 1: cannot connect to the daemon")
	write("#!/bin/sh\nexit 0\n")
	require.NoError(t, image.Check(t.Context(), ""))
}

func TestUnfitWorkerDoesNotRegister(t *testing.T) {
	t.Parallel()
	b := newBench(t, "no-such-tool")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("it works"))
	defer cancel()
	require.ErrorIs(t, b.worker.Run(ctx), ErrUnfit)
	require.Empty(t, b.Workers())
}

func TestCommandThatVanishesPausesTheWorker(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(t.TempDir(), "tool")
	install := func() {
		require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\ncp main.txt \"$TAKT_OUTPUT\"\n"), 0o700))
	}
	install()
	b := newBench(t, tool, func(c *Config) { c.ReportAgain = 50 * time.Millisecond }).start(t)
	b.completes(t)
	b.Await(t, "it is well", b.fit)
	require.NoError(t, os.Remove(tool))
	id := b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	first := b.Workers()[0].Report
	require.Equal(t, `command "`+tool+`" does not exist`, first.Checks[0].Message)
	b.Await(t, "it says so again", func() bool { return b.reports("critical")() && b.Workers()[0].Report.RunAt != first.RunAt })
	require.Equal(t, store.Pending, b.Build(id).State)
	require.Zero(t, b.Build(id).Uploads)
	install()
	b.AwaitState(t, id, store.Completed)
	b.Await(t, "it is well again", b.fit)
	b.drain()
	require.NoError(t, b.err)
}

func TestPausedWorkerEndsUnfit(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.Symlink(program("true"), tool))
	b := newBench(t, tool).start(t)
	b.Await(t, "it is well", b.fit)
	require.NoError(t, os.Remove(tool))
	b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	b.drain()
	require.ErrorIs(t, b.err, ErrUnfit)
}

// Whatever exit code the build command ends with, the worker could run it.
func TestBuildsThatFailStopNoWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t, `exit "$(cat main.txt)"`).start(t)
	for _, code := range []string{"1", "2", "125", "126", "127", "1", "1", "1", "1", "1", "1", "1"} {
		id := b.Submit("ios", archive(t, entry{name: "main.txt", content: code}), nil)
		require.Equal(t, "build command failed: exit code "+code, b.AwaitState(t, id, store.Failed).ErrorMessage)
		require.Equal(t, store.FaultBuild, b.Build(id).Fault)
	}
	b.AwaitState(t, b.Submit("ios", archive(t, entry{name: "main.txt", content: "0"}), nil), store.Failed) // no result
	require.False(t, b.Workers()[0].Draining)
	b.drain()
	require.NoError(t, b.err)
}

// shellless is a command whose shell is not there.
type shellless struct{ *Exec }

func (s shellless) Plan(w Workspace) Plan {
	p := s.Exec.Plan(w)
	p.Argv[0] = "/no/such/shell"
	return p
}

func TestFaultsOfTheWorkersOwnAreReportedAsSuch(t *testing.T) {
	t.Parallel()
	t.Run("a command that can't be started", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, "true", func(c *Config) { c.Command = shellless{&Exec{Script: "true"}} }).start(t)
		failed := b.AwaitState(t, b.Submit("ios", source(t), nil), store.Failed)
		require.Equal(t, store.FaultCommand, failed.Fault)
		require.Equal(t, "build command could not be started: fork/exec /no/such/shell: no such file or directory", failed.ErrorMessage)
	})
	t.Run("a directory that can't be made", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, "true").start(t)
		b.Await(t, "it polls", func() bool { return b.Polls() > 0 })
		builds := filepath.Join(b.worker.cfg.StateDir, "builds")
		require.NoError(t, os.Remove(builds))
		require.NoError(t, os.WriteFile(builds, nil, 0o600))
		require.Equal(t, store.FaultDisk, b.AwaitState(t, b.Submit("ios", source(t), nil), store.Failed).Fault)
	})
	t.Run("a disk that is full", func(t *testing.T) {
		t.Parallel()
		needs.Linux(t)
		full := must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
		defer full.Close()
		_, err := full.WriteString("x")
		require.Equal(t, store.FaultDisk, faultOf(fmt.Errorf("source: %w", diskFault(err))))
		_, err = os.Open(filepath.Join(t.TempDir(), "none"))
		require.Equal(t, store.FaultBuild, faultOf(diskFault(err)))
	})
}

func TestRestartedWorkerReportsWhatItLost(t *testing.T) {
	t.Parallel()
	b := newBench(t, slow)
	id := b.Submit("ios", source(t), nil)
	require.NoError(t, os.WriteFile(filepath.Join(b.worker.cfg.StateDir, "worker-id"), []byte("w\n"), 0o600))
	// The worker of before was killed while it was building.
	must(b.client.Register(t.Context(), api.Register{ID: "w", Name: "w", Capabilities: []byte(`{}`)}))(t)
	b.Edit(id, func(build *controllertest.Build) { build.State, build.WorkerID, build.Attempt = store.Building, "w", 1 })
	b.start(t)
	b.pids(t, id)
	require.Equal(t, 2, b.Build(id).Attempt)
	require.Equal(t, store.Building, b.Build(id).State)
}
