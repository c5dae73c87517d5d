package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRestartedWorkerGoesOnWithItsToken kills a worker that has no build.
func TestRestartedWorkerGoesOnWithItsToken(t *testing.T) {
	t.Parallel()
	b := newBench(t, "cp main.txt \"$TAKT_OUTPUT\"", func(c *Config) { c.Version = "v1" })
	kill := func() {
		process := startProcess(t, b.URL, b.worker.cfg.StateDir, "true")
		b.Await(t, "it polls", func() bool { return b.Polls() > 0 })
		require.NoError(t, process.Process.Kill())
		require.Error(t, process.Wait())
		b.Await(t, "it polls no more", func() bool { return b.Polls() == 0 })
	}
	kill()
	require.Equal(t, 1, b.Workers()[0].Registrations)
	kill()
	require.Equal(t, 1, b.Workers()[0].Registrations, "the second has the token of the first")
	info := must(os.Stat(filepath.Join(b.worker.cfg.StateDir, "session")))(t)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	// This one has another name and version, which the controller has to hear of.
	b.start(t)
	b.completes(t)
	require.Len(t, b.Workers(), 1)
	require.Equal(t, 2, b.Workers()[0].Registrations)
	b.drain()
	require.NoFileExists(t, filepath.Join(b.worker.cfg.StateDir, "session"), "an orderly end makes it void")
}

func TestRefusedTokenLeadsToOneRegistration(t *testing.T) {
	t.Parallel()
	b := newBench(t, "true")
	s := must(openState(b.worker.cfg.StateDir, ""))(t)
	must(s.identify(thisMachine(t.Context())))(t)
	b.worker.state, b.worker.id = s, s.id
	require.NoError(t, s.keepToken("expired", b.worker.registration()))
	s.close()
	b.start(t)
	b.Await(t, "it polls", func() bool { return b.Polls() > 0 && len(b.Workers()) > 0 })
	require.Equal(t, 2, b.Requests("POST /api/workers/poll"))
	require.Equal(t, 1, b.Workers()[0].Registrations)
}
