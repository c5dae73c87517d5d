package process_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/await"
	"takt/cmd/internal/process"
)

// launch runs a script of the shell until the end of the test.
func launch(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Site{Takt: "/bin/sh", Dir: t.TempDir(), Environ: os.Environ()}.Launch("sh", nil, "-c", script)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	return p
}

// What a process writes and what its commands compute is progress, but not its own work:
// that may be to answer the one who waits.
func TestProgressIsOfCommands(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("processor times are read from /proc")
	}
	const (
		work = `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`
		stay = `; echo done; exec sleep 1000`
	)
	done := func(p *process.Process) {
		require.NoError(t, await.Until(t.Context(), "the work", p.Progress, func(context.Context) (bool, error) {
			return strings.Contains(p.Output(), "done"), nil
		}))
	}
	own, command := launch(t, work+stay), launch(t, "( "+work+" )"+stay)
	done(own)
	done(command)
	require.Equal(t, "sh wrote 5 bytes, its commands worked 0s", own.Progress())
	require.Zero(t, own.Worked())
	require.Positive(t, command.Worked())
}

func TestAwaitEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "there")
	p := launch(t, "echo wrong; exit 3")
	never := func(context.Context) (bool, error) {
		_, err := os.Stat(file)
		return err == nil, nil
	}
	require.EqualError(t, p.Await(t.Context(), "a file", nil, never), "sh ended while waiting for a file: exit status 3\nwrong\n")
	require.NoError(t, p.Await(t.Context(), "nothing", nil, func(context.Context) (bool, error) { return true, nil }), "what holds, holds")
}
