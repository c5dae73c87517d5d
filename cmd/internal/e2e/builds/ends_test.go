package builds

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// A build that writes is cancelled for a reason: its command ends long before the next heartbeat, and
// everyone who looks at the build, or at its retry, sees why and what belongs together.
func TestACancelIsToldToTheWorkerAndToPeople(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	w, err := env.Worker(c, "worker", `[ ! -e order.txt ] || exec sh -c '`+takttest.CopyOrder+`'; while :; do echo compiling; sleep 0.1; done`, nil, "--heartbeat", "1h")
	require.NoError(t, err)
	t.Cleanup(func() { w.Kill() })
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"a": "b"}))
	log := func() []api.LogEntry {
		l, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
		require.NoError(t, err)
		return l.Logs
	}
	takttest.Eventually(t, "it writes", func() bool {
		return slices.ContainsFunc(log(), func(l api.LogEntry) bool { return l.Message == "compiling" })
	})
	user := []string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey}
	env.MustRun(user, "cancel", id, "--reason", "superseded by 772")
	next := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "next"}))
	takttest.Eventually(t, "its only slot is free", func() bool { return takttest.Status(t, c, next).State == string(store.Completed) })
	n, err := c.Metric(t.Context(), "takt_build_cancel_seconds_count")
	require.NoError(t, err)
	require.InDelta(t, 1, n, 0)

	lines := log()
	at := slices.IndexFunc(lines, func(l api.LogEntry) bool { return l.By != "" })
	require.Equal(t, []string{"Build cancelled", "api", "superseded by 772"}, []string{lines[at].Message, lines[at].By, lines[at].Why})
	require.Equal(t, api.Ended{Cause: "cancelled", By: "api", Why: "superseded by 772"}, *takttest.Status(t, c, id).Ended)
	require.Contains(t, env.MustRun(user, "logs", id), "Build cancelled by api: superseded by 772")
	require.Regexp(t, `Cancelled by api +- +superseded by 772`, env.MustRun(user, "explain", id))

	said := env.MustRun(user, "retry", id)
	require.Len(t, takttest.Status(t, c, id).Retries, 1)
	again := takttest.Status(t, c, id).Retries[0]
	require.Contains(t, said, c.URL+"/builds/"+again)
	require.Contains(t, env.MustRun(user, "list"), "(retry of "+id+")")
	require.Regexp(t, `retry of +`+id, env.MustRun(user, "status", again))
}
