package builds

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
)

// A command that ends with exit code 75 the first time runs again when its build is due.
func TestABuildIsTriedAgainAfterItsExitCode(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	b, err := c.Client.Submit(t.Context(), client.Submit{
		Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, map[string]string{"a": "b"})), Inputs: store.Inputs{RetryOn: []int{75}},
	})
	require.NoError(t, err)
	require.Equal(t, []int{75}, b.Inputs.RetryOn)
	env.StartWorker(c, "worker", `[ "$TAKT_ATTEMPT" != 1 ] || exit 75; echo done > "$TAKT_OUTPUT"`)
	takttest.Eventually(t, "it waits for its retry", func() bool {
		s := takttest.Status(t, c, b.ID)
		return s.State == string(store.Pending) && s.Ended != nil
	})
	require.Equal(t, 75, *takttest.Status(t, c, b.ID).Ended.ExitCode)
	why, err := c.Client.Why(t.Context(), b.ID, client.BuildAuth{})
	require.NoError(t, err)
	require.Regexp(t, `^It waits until \d\d:\d\d:\d\d UTC for its retry after exit code 75\.$`, why.Reason)
	require.NotNil(t, why.RetryAt)

	db, err := pgx.Connect(t.Context(), c.DatabaseURL())
	require.NoError(t, err)
	defer func() { _ = db.Close(t.Context()) }()
	_, err = db.Exec(t.Context(), `UPDATE build_inputs SET due_at = now()`)
	require.NoError(t, err)
	takttest.Eventually(t, "it completes", func() bool { return takttest.Status(t, c, b.ID).State == string(store.Completed) })
	got := takttest.Status(t, c, b.ID)
	require.Equal(t, 2, got.Attempt)
	require.Nil(t, got.Ended)
	logs, err := c.Client.Logs(t.Context(), b.ID, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(takttest.Messages(logs), "\n"), "Attempt 1 failed: exit code 75, the build is tried again at ")
}
