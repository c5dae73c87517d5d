package operating

import (
	"bufio"
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

// TestServeOnATerminal starts takt as a person does, and stops it as one does.
func TestServeOnATerminal(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	cmd := exec.Command(env.Takt, "serve")
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=info", "TERM=dumb")
	terminal, err := pty.Start(cmd)
	require.NoError(t, err)
	defer func() { _ = terminal.Close() }()
	var text, address string
	for lines := bufio.NewReader(terminal); err == nil; { // the last read fails: takt is gone
		var line string
		line, err = lines.ReadString('\n')
		text += line
		if strings.Contains(line, "export TAKT_URL=") {
			address = process.ReadWord(filepath.Join(dir, "address"))
			_, err = terminal.Write([]byte{3}) // Ctrl-C
		}
	}
	require.NoError(t, cmd.Wait(), text)
	require.NotContains(t, text, `{"level"`)
	require.Contains(t, text, "tls=false")
	require.Contains(t, text, "takt serves at http://"+address)
	require.Contains(t, text, "API key    "+filepath.Join(dir, "api-key"))
	require.Contains(t, text, "export TAKT_URL=http://"+address+" TAKT_API_KEY=$(cat "+filepath.Join(dir, "api-key")+")")
}

// TestANormalStopLogsNoError looks at all that takt says from its start to its end.
func TestANormalStopLogsNoError(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096) // with fewer it warns
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	cmd := exec.Command(env.Takt, "serve")
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=100")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, wait(), out.String())
	// PostgreSQL tells what took it a second, as it may on a busy machine.
	slow := regexp.MustCompile(`(?m)^.*"from":"postgres".*"message":"duration: \d{4,}\.\d+ ms  .*\n`)
	require.Empty(t, slow.ReplaceAllString(out.String(), ""))
}
