package operating

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

// TestServeRaisesAndTellsTheLimitOfFiles starts takt with a soft limit that would
// not do for its database.
func TestServeRaisesAndTellsTheLimitOfFiles(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096)
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -n 4096; ulimit -Sn 256; exec "$0" serve`, env.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=20000")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	cancel(nil)
	_ = wait() // it says that the context ended
	require.True(t, cmd.ProcessState.Success(), out.String())
	require.Regexp(t, `"file_descriptors":409[56],"connections":3072,"needed":40000`, out.String()) // Go leaves one out
}
