package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
)

// TestServeOnATerminal starts takt as a person does, and stops it as one does.
func TestServeOnATerminal(t *testing.T) {
	t.Parallel()
	script, err := exec.LookPath("script")
	require.NoError(t, err, "bsdutils has it, which every Debian has")
	s := newSite(t)
	dir := filepath.Join(s.Dir, "data")
	cmd := exec.Command(script, "-qefc", "exec "+s.Takt+" serve", "/dev/null")
	cmd.Env = s.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=info", "TERM=dumb", "SHELL=/bin/sh")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	address := process.ReadWord(filepath.Join(dir, "address"))
	require.NoError(t, cmd.Process.Signal(os.Interrupt)) // script passes it on
	require.NoError(t, cmd.Wait(), out.String())
	text := out.String()
	require.NotContains(t, text, `{"level"`)
	require.Contains(t, text, "takt serves at http://"+address)
	require.Contains(t, text, "API key    "+filepath.Join(dir, "api-key"))
	require.Contains(t, text, "export TAKT_URL=http://"+address+" TAKT_API_KEY=$(cat "+filepath.Join(dir, "api-key")+")")
}

// TestANormalStopLogsNoError looks at all that takt says from its start to its end.
func TestANormalStopLogsNoError(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := filepath.Join(s.Dir, "data")
	cmd := exec.Command(s.Takt, "serve")
	cmd.Env = s.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=100")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), out.String())
	require.Empty(t, out.String())
}
