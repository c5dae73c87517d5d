package command_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/takttest"
)

func TestUnknownFlagsSayWhichKnownOneIsNearest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	code := cli.Execute(t.Context(), command.New(takttest.Environment()), []string{"serve", "--qeue-limit", "7"}, &out, &out)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, out.String(), "unknown flag: --qeue-limit; did you mean --queue-limit?")
}
