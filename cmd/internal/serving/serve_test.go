package serving

import (
	"context"
	"encoding/base64"
	"io"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
)

// TestATreeThatGivesUpIsAFailure takes the listener away for good.
func TestATreeThatGivesUpIsAFailure(t *testing.T) {
	t.Parallel()
	cfg := settings.Default(t.TempDir())
	cfg.Listen, cfg.DatabaseURL = "127.0.0.1:0", "postgres://takt@127.0.0.1:1/takt"
	cfg.EncryptionKey = base64.StdEncoding.EncodeToString(make([]byte, 32))
	_, err := settings.FillKeys(&cfg)
	require.NoError(t, err)
	c := &controller{cfg: cfg, log: zerolog.Nop(), welcome: io.Discard}
	defer func() { _ = c.close(context.WithoutCancel(t.Context())) }() // the listener is closed already
	require.NoError(t, c.open(t.Context()))
	require.NoError(t, c.listener.Close())
	err = c.run(t.Context())
	require.ErrorContains(t, err, "the supervision tree gave up")
	require.Equal(t, cli.ExitFailure, cli.ExitCode(err))
}
