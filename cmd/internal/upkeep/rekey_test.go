package upkeep

import (
	"bytes"
	"encoding/base64"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRekeyRefusesAGuessableKey(t *testing.T) {
	t.Parallel()
	cmd := Rekey()
	cmd.SetArgs([]string{"--data-dir", t.TempDir(), "--encryption-key", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("password"), 4))})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "the new key is easy to guess")
}
