package builds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
)

// TestInputsReachTheCommand of a real worker, also of the one after that was killed, or the build says
// why not; how the command ended comes back.
func TestInputsReachTheCommand(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	submit := func(in store.Inputs) string {
		t.Helper()
		b, err := c.Client.Submit(t.Context(), client.Submit{
			Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, map[string]string{"a": "b"})), Labels: store.Labels{"flavour": "free"}, Inputs: in,
		})
		require.NoError(t, err)
		return b.ID
	}
	state := func(id string) string { return takttest.Status(t, c, id).State }
	const command = `case $BUILD_KIND in
		slow) [ "$TAKT_ATTEMPT" != 1 ] || { echo begun; sleep 1000; } ;;
		fails) exit 75 ;;
		long) sleep 1000 ;;
	esac
	{ echo "$BUILD_KIND|$TAKT_LABEL_FLAVOUR|$TAKT_COMMIT|$TAKT_BRANCH"; cat "$TAKT_PARAMS"; } > "$TAKT_OUTPUT"`

	short := env.StartWorker(c, "short", command)
	slow := submit(store.Inputs{Params: store.Params{"BUILD_KIND": "slow", "BUILD_TEXT": "two\nlines"}, Timeout: 90 * time.Minute, Facts: store.Facts{Commit: "0123abcd", Branch: "main"}})
	takttest.Eventually(t, "it runs", func() bool {
		logs, err := c.Client.Logs(t.Context(), slow, client.BuildAuth{}, client.LogsAfter{})
		require.NoError(t, err)
		return strings.Contains(strings.Join(takttest.Messages(logs), "\n"), "begun")
	})
	short.Kill()
	env.StartWorker(c, "short", command)
	takttest.Eventually(t, "the next attempt completes", func() bool { return state(slow) == string(store.Completed) })
	require.Equal(t, 2, takttest.Status(t, c, slow).Attempt)
	require.Equal(t, "slow|free|0123abcd|main\n"+`{"BUILD_KIND":"slow","BUILD_TEXT":"two\nlines"}`, takttest.Download(t, c, slow))

	fails := submit(store.Inputs{Params: store.Params{"BUILD_KIND": "fails"}})
	long := submit(store.Inputs{Params: store.Params{"BUILD_KIND": "long"}, Timeout: time.Second})
	refused := submit(store.Inputs{Params: store.Params{"BUILD_KIND": "x", "API_URL": "x"}})
	optional := submit(store.Inputs{Params: store.Params{"BUILD_KIND": "x", "API_URL": "x"}, ParamsOptional: true})
	for _, id := range []string{fails, long, refused, optional} {
		takttest.Eventually(t, "all end", func() bool { return store.BuildState(state(id)).Final() })
	}
	require.Equal(t, 75, *takttest.Status(t, c, fails).Ended.ExitCode)
	require.True(t, takttest.Status(t, c, long).Ended.TimedOut)
	got := takttest.Status(t, c, refused)
	require.Contains(t, *got.ErrorMessage, "parameter API_URL is not one that this worker's --accept-env takes (BUILD_*,APP_*,EXPO_PUBLIC_*,VERSION*)")
	require.Equal(t, 1, got.Attempt)
	require.Equal(t, string(store.Completed), state(optional))
	takttest.Eventually(t, "nothing of the builds is left", func() bool {
		left, err := os.ReadDir(filepath.Join(env.WorkerState("short"), "builds"))
		require.NoError(t, err)
		return len(left) == 0
	})
}
