package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/store"
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
	b := newBench(t, tool).start(t)
	b.AwaitState(t, b.Submit("ios", source(t), nil), store.Completed)
	b.Await(t, "it is well", b.fit)
	require.NoError(t, os.Remove(tool))
	id := b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	require.Equal(t, `command "`+tool+`" does not exist`, b.Workers()[0].Report.Checks[0].Message)
	require.Equal(t, store.Pending, b.Build(id).State)
	require.Zero(t, b.Build(id).Uploads)
	install()
	b.AwaitState(t, id, store.Completed)
	b.Await(t, "it is well again", b.fit)
	b.worker.Drain()
	<-b.ended
	require.NoError(t, b.err)
}

func TestPausedWorkerEndsUnfit(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.Symlink("/bin/true", tool))
	b := newBench(t, tool).start(t)
	b.Await(t, "it is well", b.fit)
	require.NoError(t, os.Remove(tool))
	b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	b.worker.Drain()
	<-b.ended
	require.ErrorIs(t, b.err, ErrUnfit)
}

func TestThreeQuickFailuresQuarantineTheWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t, "exit 1")
	var ids []string
	for range 4 {
		ids = append(ids, b.Submit("ios", source(t), nil))
	}
	b.start(t)
	b.Await(t, "the worker says so", b.reports("critical"))
	require.True(t, b.Workers()[0].Draining)
	require.Contains(t, b.Workers()[0].Report.Checks[0].Message, "quarantined: builds "+ids[0]+", "+ids[1]+", "+ids[2])
	require.Equal(t, store.Pending, b.Build(ids[3]).State)
	b.worker.Drain()
	<-b.ended
	require.ErrorIs(t, b.err, ErrUnfit)
}

func TestRestartedWorkerReportsWhatItLost(t *testing.T) {
	t.Parallel()
	b := newBench(t, slow)
	id := b.Submit("ios", source(t), nil)
	require.NoError(t, os.WriteFile(filepath.Join(b.worker.cfg.StateDir, "worker-id"), []byte("w\n"), 0o600))
	// The worker of before was killed while it was building.
	_, err := b.client.Register(t.Context(), api.Register{ID: "w", Name: "w", Capabilities: []byte(`{}`)})
	require.NoError(t, err)
	b.Edit(id, func(build *controllertest.Build) { build.State, build.WorkerID, build.Attempt = store.Building, "w", 1 })
	b.start(t)
	b.pids(t, id)
	require.Equal(t, 2, b.Build(id).Attempt)
	require.Equal(t, store.Building, b.Build(id).State)
}
