package serving

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/settings"
)

// A new installation refuses keys that are easy to guess; one that has them goes on and warns.
func TestGuessableKeysAreRefusedOnce(t *testing.T) {
	t.Parallel()
	random, plain := base64.StdEncoding.EncodeToString([]byte(rand.Text()[:26]+"h7Gk2p")), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("password"), 4))
	for name, c := range map[string]settings.Config{
		"api-key":        {APIKey: "my-secret-api-key-1", AdminKey: rand.Text(), EncryptionKey: random},
		"admin-key":      {APIKey: rand.Text(), AdminKey: "takt-admin-0123456789", EncryptionKey: random},
		"encryption-key": {APIKey: rand.Text(), AdminKey: rand.Text(), EncryptionKey: plain},
	} {
		var log bytes.Buffer
		c.DataDir = t.TempDir()
		err := c.CheckGuessable(zerolog.New(&log))
		require.ErrorContains(t, err, name+": this key is easy to guess", name)
		require.Empty(t, log.String())
		if name == "api-key" {
			c.Listen, c.Log = "127.0.0.1:0", "error"
			require.ErrorContains(t, serve(t.Context(), c, io.Discard), "easy to guess")
		}
		require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, "postgres"), 0o700))
		require.NoError(t, c.CheckGuessable(zerolog.New(&log)))
		require.Contains(t, log.String(), `"key":"`+name+`"`)
		require.NoError(t, os.Remove(filepath.Join(c.DataDir, "postgres")))
		c.DatabaseURL = "postgres://elsewhere"
		require.NoError(t, c.CheckGuessable(zerolog.Nop()), "whose installation may be old")
	}
	c := settings.Config{DataDir: t.TempDir(), APIKey: rand.Text(), AdminKey: rand.Text(), EncryptionKey: random}
	require.NoError(t, c.CheckGuessable(zerolog.Nop()))
}
