package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/await"
	"takt/cmd/internal/settings"
	"takt/store/postgres"
	"takt/store/storetest/needs"
	"takt/store/storetest/pgtest"
)

// A doctor says what a failover would lose.
func TestDoctorLooksAtReplication(t *testing.T) {
	t.Parallel()
	n := newPostgres(t)
	standby, err := pgtest.New(filepath.Dir(filepath.Dir(n.Dir)))
	require.NoError(t, err)
	require.NoError(t, n.Start("-c", "fsync=off"))
	t.Cleanup(n.Stop)
	both := strings.Replace(n.URL(), fmt.Sprintf(":%d", n.Port), fmt.Sprintf(":%d,127.0.0.1:%d", n.Port, standby.Port), 1)
	look := func(url string) []diagnosis {
		return diagnosed(t, func(d *doctor) {
			d.database(t.Context(), settings.Config{DatabaseURL: url, DatabasePool: 10, DatabaseDirectURL: url}, nil, false)
		})
	}
	answerOf(t, n, "SELECT 'up'")
	all := look(n.URL())
	require.Contains(t, all, diagnosis{Check: "pooler", Result: resultOK, Found: "it answers"})
	requireFound(t, all, "pooler", "lock_timeout of this login is 0")
	require.False(t, slices.ContainsFunc(all, func(g diagnosis) bool { return g.Check == "replication" }))
	all = look(both)
	requireFound(t, all, "replication", "commits wait for no standby")
	requireFound(t, all, "replication", "no standby follows")
	requireFound(t, all, "replication", "pg_rewind can't")

	require.NoError(t, standby.CopyOf(n.Port, "standby"))
	require.NoError(t, standby.Start("-c", "fsync=off"))
	t.Cleanup(standby.Stop)
	eventually(t, "the standby streams", func() bool {
		return answerOf(t, n, "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming' AND application_name = 'standby'") == "1"
	})
	requireFound(t, look(n.URL()), "replication", "names one host")
	set := func(name, value string) {
		require.NoError(t, n.Exec(t.Context(), "ALTER SYSTEM SET "+name+" = '"+value+"'"))
		require.NoError(t, n.Exec(t.Context(), "SELECT pg_reload_conf()"))
		eventually(t, name+" is set", func() bool { return answerOf(t, n, "SHOW "+name) == value })
	}
	set("synchronous_standby_names", "standby")
	set("synchronous_commit", "local")
	requireFound(t, look(both), "replication", "synchronous_commit is local")
	set("synchronous_commit", "on")
	all = look(both)
	requireFound(t, all, "replication", "pg_rewind can't")
	require.Len(t, slices.DeleteFunc(all, func(g diagnosis) bool { return g.Check != "replication" }), 1, "all else is well")
	standby.Kill()
	eventually(t, "the standby is gone", func() bool { return answerOf(t, n, "SELECT count(*)::text FROM pg_stat_replication") == "0" })
	requireFound(t, look(both), "replication", "none follows: takt answers 503")

	requireWell(t, diagnosed(t, func(d *doctor) {
		d.replication(settings.Config{DatabaseURL: both}, postgres.Inspection{Standbys: 2, Settings: map[string]string{
			"synchronous_standby_names": "ANY 1 (*)", "synchronous_commit": "on", "wal_level": "replica", "max_wal_senders": "10", "data_checksums": "on",
		}})
	}), "replication")
	requireFound(t, diagnosed(t, func(d *doctor) {
		d.replication(settings.Config{DatabaseURL: both}, postgres.Inspection{Settings: map[string]string{"wal_level": "minimal", "max_wal_senders": "0", "data_checksums": "on"}})
	}), "replication", "no standby can follow")
}

// newPostgres returns a server of the test's own, not yet started.
func newPostgres(t *testing.T) *pgtest.Node {
	t.Helper()
	needs.Postgres(t)
	needs.Linux(t)
	dir, err := os.MkdirTemp("", "takt-postgres-") // t.TempDir is closed to the server's account
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	n, err := pgtest.New(dir)
	require.NoError(t, err)
	require.NoError(t, n.Init())
	return n
}

func answerOf(t *testing.T, n *pgtest.Node, sql string) string {
	t.Helper()
	result, err := n.Ask(t.Context(), sql)
	require.NoError(t, err)
	return result
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.NoError(t, await.Until(t.Context(), what, nil, func(context.Context) (bool, error) { return cond(), nil }))
}
