package runner

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// output is a writer to be read while written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
	// seen is closed when a line has come.
	seen chan struct{}
	once sync.Once
}

func newOutput() *output { return &output{seen: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if bytes.ContainsRune(p, '\n') {
		defer o.once.Do(func() { close(o.seen) })
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func shell(t *testing.T, script string, more ...string) Plan {
	t.Helper()
	env := append([]string{"PATH=" + os.Getenv("PATH")}, more...)
	return Plan{Argv: []string{"/bin/sh", "-c", script}, Env: env, Dir: t.TempDir()}
}

func TestRun(t *testing.T) {
	t.Parallel()
	t.Run("success and both outputs", func(t *testing.T) {
		t.Parallel()
		out, errs := newOutput(), newOutput()
		require.NoError(t, run(t.Context(), shell(t, "echo a; echo b >&2"), out, errs, time.Second))
		require.Equal(t, "a\n", out.String())
		require.Equal(t, "b\n", errs.String())
	})
	t.Run("exit code", func(t *testing.T) {
		t.Parallel()
		err := run(t.Context(), shell(t, "exit 42"), newOutput(), newOutput(), time.Second)
		require.Equal(t, exitError{Code: 42}, err)
	})
	t.Run("no such program", func(t *testing.T) {
		t.Parallel()
		err := run(t.Context(), Plan{Argv: []string{"/no/such/program"}, Dir: "/"}, newOutput(), newOutput(), time.Second)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("all output is read, however much", func(t *testing.T) {
		t.Parallel()
		out := newOutput()
		require.NoError(t, run(t.Context(), shell(t, "i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done"), out, newOutput(), time.Second))
		require.Len(t, out.String(), 220_000)
	})
	t.Run("what is left in the background ends too", func(t *testing.T) {
		t.Parallel()
		out := newOutput()
		require.NoError(t, run(t.Context(), shell(t, "sleep 1000 & echo $!"), out, newOutput(), time.Second))
		awaitDead(t, strings.TrimSpace(out.String()))
	})
	t.Run("a command that has left the group does not hold us up", func(t *testing.T) {
		t.Parallel()
		pid := filepath.Join(t.TempDir(), "pid")
		began := time.Now()
		require.NoError(t, run(t.Context(), shell(t, "setsid sh -c 'echo $$ > "+pid+"; exec sleep 1000' & until [ -s "+pid+" ]; do sleep 0.01; done"), newOutput(), newOutput(), time.Second))
		require.Less(t, time.Since(began), 60*time.Second)
		left := must(os.ReadFile(pid))(t)
		require.NoError(t, kill(strings.TrimSpace(string(left))))
	})
}

func TestRunStopped(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	tests := []struct {
		name, script string
		grace        time.Duration
		said         string
	}{
		{"listens to SIGTERM and cleans up", `trap 'echo cleaned; exit 0' TERM; echo $$; while :; do sleep 0.01; done`, time.Minute, "cleaned"},
		{"a child cleans up although its shell is gone", `sh -c "trap 'sleep 0.1; echo cleaned; exit 0' TERM; echo \$\$; while :; do sleep 0.01; done" & trap 'exit 1' TERM; wait`, time.Minute, "cleaned"},
		{"ignores SIGTERM", `trap '' TERM; echo $$; while :; do sleep 0.01; done`, 50 * time.Millisecond, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			out := newOutput()
			ended := make(chan error, 1)
			go func() { ended <- run(ctx, shell(t, tt.script), out, newOutput(), tt.grace) }()
			<-out.seen
			cancel(cause)
			require.ErrorIs(t, <-ended, cause)
			pid, _, _ := strings.Cut(out.String(), "\n")
			require.False(t, alive(pid))
			require.Contains(t, out.String(), tt.said)
		})
	}
}

func TestRunCleansUpAfterwards(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	plan := shell(t, "[ ! -e "+mark+" ]")
	plan.Cleanup = []string{"touch", mark}
	require.NoError(t, run(t.Context(), plan, newOutput(), newOutput(), time.Second))
	require.FileExists(t, mark)
}

func kill(pid string) error {
	var number int
	for _, c := range pid {
		number = number*10 + int(c-'0')
	}
	p, err := os.FindProcess(number)
	if err != nil {
		return err
	}
	return p.Kill()
}
