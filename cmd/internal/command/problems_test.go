package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/command"
	"takt/cmd/internal/takttest"
	"takt/http/attention"
)

// What takt says to do about a problem is a command that exists, with flags that it has.
func TestCommandsOfProblemsExist(t *testing.T) {
	t.Parallel()
	root := command.New(takttest.Environment())
	for kind, line := range attention.Kinds() {
		words := strings.Fields(line)[1:] // without takt
		cmd, rest, err := root.Find(words)
		require.NoError(t, err, kind)
		require.True(t, cmd.Runnable() && cmd != root, "%s: %s", kind, line)
		require.False(t, cmd.HasSubCommands() && len(rest) > 0, "%s: %s", kind, line)
		for _, word := range words {
			if name, ok := strings.CutPrefix(word, "--"); ok {
				require.NotNil(t, cmd.Flags().Lookup(name), "%s: %s", kind, line)
			}
		}
	}
}
