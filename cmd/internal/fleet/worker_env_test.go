package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
)

func TestWorkerEnvironment(t *testing.T) {
	t.Parallel()
	env := cli.Environment(func(name string) (string, bool) {
		value, ok := map[string]string{"A": "1", "EMPTY": ""}[name]
		return value, ok
	})
	got, err := variables([]string{"A", "EMPTY", "UNSET", "B=x=y"}, env)
	require.NoError(t, err)
	require.Equal(t, []string{"A=1", "EMPTY=", "B=x=y"}, got)
	for _, bad := range []string{"", "=x", "TAKT_API_KEY", "TAKT_ADMIN_KEY=x", "CONTROLLER_API_KEY"} {
		_, err := variables([]string{bad}, env)
		require.Error(t, err, bad)
	}
}
