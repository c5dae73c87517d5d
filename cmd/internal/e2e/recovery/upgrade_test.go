package recovery

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
)

// Two controllers of this release start at once on the database that release 0.1.0 left, where
// one build waits and mac-mini-3 is building another. That worker goes on with its build, by
// requests as it sent them to 0.1.0.
func TestUpgradeFrom010WithBuildsInFlight(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ctx := t.Context()
	owner := env.StartController("owner") // of the server
	db, err := pgx.Connect(ctx, owner.DatabaseURL())
	require.NoError(t, err)
	defer db.Close(ctx) //nolint:errcheck // a test's connection
	_, err = db.Exec(ctx, `CREATE DATABASE old`)
	require.NoError(t, err)
	cfg, err := pgx.ParseConfig(owner.DatabaseURL())
	require.NoError(t, err)
	cfg.Database = "old"
	old, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	defer old.Close(ctx) //nolint:errcheck // a test's connection
	dump, err := os.ReadFile(takttest.File("migrations", "testdata", "0.1.0.sql"))
	require.NoError(t, err)
	_, err = old.Exec(ctx, string(dump))
	require.NoError(t, err)
	_, err = old.Exec(ctx, `DELETE FROM key_check; DELETE FROM oauth_tokens`) // the key of the dump is not kept
	require.NoError(t, err)

	settings := append(owner.Shared(), "TAKT_DATABASE_URL="+strings.Replace(owner.DatabaseURL(), "dbname=takt", "dbname=old", 1))
	type start struct {
		c   *process.Controller
		err error
	}
	other := make(chan start, 1)
	go func() {
		c, err := env.Controller(ctx, "second", settings...)
		other <- start{c, err}
	}()
	first := env.StartController("first", settings...)
	second := <-other
	require.NoError(t, second.err)
	defer func() { require.NoError(t, second.c.Stop(t.Context(), takttest.Patience)) }()

	const held, waiting = "GndwZlIdmYTwMg6ThepPW", "UozDfl6_u_jZivkpV9BgV"
	mac := client.Held{BuildID: held, WorkerID: "mac-mini-3"} // 0.1.0's workers could leave out the attempt
	beat, err := first.Client.Heartbeat(ctx, mac, nil)
	require.NoError(t, err)
	require.Equal(t, "ok", beat.Status)
	_, err = second.c.Client.PostLogs(ctx, mac, []api.LogMessage{{Level: "info", Message: "still compiling"}})
	require.NoError(t, err)

	w := takttest.Register(t, first, 1)
	job := w.Poll(t)
	require.NotNil(t, job)
	require.Equal(t, waiting, job.ID, "what waited is handed out")

	result := client.Bytes([]byte("an app"))
	_, err = second.c.Client.Upload(ctx, client.Upload{Held: mac, Success: true, Result: &result})
	require.NoError(t, err)
	require.Equal(t, "completed", takttest.Status(t, first, held).Status)
	logs, err := second.c.Client.Logs(ctx, held, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	require.Contains(t, takttest.Messages(logs), "compiling", "a line of 0.1.0")
	require.Contains(t, takttest.Messages(logs), "still compiling")

	for _, c := range []*process.Controller{first, second.c} {
		require.Equal(t, "completed", takttest.Status(t, c, "GaK6oUkEJ7DjtFANIRQMJ").Status)
		root, err := c.Client.Tree(ctx, client.TreeOptions{})
		require.NoError(t, err)
		require.Empty(t, takttest.Trouble(&root))
	}
}
