package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

func TestConnectionsFitTheFileDescriptors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		need  int
		files uint64
		want  int
	}{
		{40_000, 1 << 20, 40_000}, {40_000, 20_000, 18_976}, {40_000, 1024, 768}, {1024, 4096, 1024}, {1024, 256, 192},
	} {
		require.Equal(t, c.want, connectionsFor(c.need, c.files), "%d of %d", c.need, c.files)
	}
}

// TestServeRaisesAndTellsTheLimitOfFiles starts takt with a soft limit that would
// not do for its database.
func TestServeRaisesAndTellsTheLimitOfFiles(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096)
	s := newSite(t)
	dir := filepath.Join(s.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -n 4096; ulimit -Sn 256; exec "$0" serve`, s.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = s.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=20000")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	cancel(nil)
	_ = wait() // it says that the context ended
	require.True(t, cmd.ProcessState.Success(), out.String())
	require.Regexp(t, `"file_descriptors":409[56],"connections":3072,"needed":40000`, out.String()) // Go leaves one out
}

// TestATreeThatGivesUpIsAFailure takes the listener away for good.
func TestATreeThatGivesUpIsAFailure(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig(t.TempDir())
	cfg.Listen, cfg.DatabaseURL = "127.0.0.1:0", "postgres://takt@127.0.0.1:1/takt"
	cfg.EncryptionKey = base64.StdEncoding.EncodeToString(make([]byte, 32))
	_, err := fillKeys(&cfg)
	require.NoError(t, err)
	c := &controller{cfg: cfg, log: zerolog.Nop(), welcome: io.Discard}
	defer func() { _ = c.close(context.WithoutCancel(t.Context())) }() // the listener is closed already
	require.NoError(t, c.open(t.Context()))
	require.NoError(t, c.listener.Close())
	err = c.run(t.Context())
	require.ErrorContains(t, err, "the supervision tree gave up")
	require.Equal(t, cli.ExitFailure, cli.ExitCode(err))
}
