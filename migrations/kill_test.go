package migrations_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"takt/migrations"
	"takt/store/storetest"
)

// helperEnv makes the test binary a process that migrates the database that it
// names and ends.
const helperEnv = "TAKT_MIGRATIONS_TEST_UP"

func TestMain(m *testing.M) {
	if url := os.Getenv(helperEnv); url != "" {
		cfg, err := pgx.ParseConfig(url)
		if err == nil {
			err = migrations.Up(context.Background(), cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	storetest.Main(m)
}

// process starts a process that migrates.
func process(t *testing.T, cfg *pgx.ConnConfig) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), helperEnv+"="+cfg.ConnString())
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())
	return cmd
}

// river is River's own migrator, of the version that this build links.
func river(t *testing.T, cfg *pgx.ConnConfig) *rivermigrate.Migrator[pgx.Tx] {
	t.Helper()
	pc, err := pgxpool.ParseConfig(cfg.ConnString())
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	require.NoError(t, err)
	return m
}

func requireComplete(t *testing.T, cfg *pgx.ConnConfig) {
	t.Helper()
	valid, err := river(t, cfg).Validate(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, valid.OK, valid.Messages)
	fresh := storetest.New(t)
	require.Equal(t, describe(t, connect(t, fresh.Config)), describe(t, connect(t, cfg)), "same as never disturbed")
}

func TestProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	var all []*exec.Cmd
	for range 3 {
		all = append(all, process(t, cfg))
	}
	for _, one := range all {
		require.NoError(t, one.Wait())
	}
	requireComplete(t, cfg)
}

// A process is killed in the middle of each of River's migrations, and after the
// last, before ours. What keeps it there is a lock that its next statement needs.
func TestAProcessThatIsKilledInRiversMigrations(t *testing.T) {
	t.Parallel()
	versions := len(river(t, storetest.Config(t)).AllVersions())
	require.Positive(t, versions)
	for done := range versions + 1 {
		hold, name := `LOCK TABLE river_migration IN SHARE MODE`, fmt.Sprintf("in version %d", done+1)
		switch done {
		case 0:
			hold = `CREATE TABLE river_migration ()`
		case versions:
			hold, name = `CREATE TABLE takt_migrations ()`, "between River's and ours"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := storetest.Config(t)
			if done > 0 {
				_, err := river(t, cfg).Migrate(t.Context(), rivermigrate.DirectionUp, &rivermigrate.MigrateOpts{TargetVersion: done})
				require.NoError(t, err)
			}
			obstacle, err := connect(t, cfg).Begin(t.Context())
			require.NoError(t, err)
			_, err = obstacle.Exec(t.Context(), hold)
			require.NoError(t, err)

			victim := process(t, cfg)
			watch := connect(t, cfg)
			awaitLock(t, watch)
			var ours bool
			require.NoError(t, watch.QueryRow(t.Context(), `SELECT to_regclass('workers') IS NOT NULL`).Scan(&ours))
			require.False(t, ours, "River's come first")
			require.NoError(t, victim.Process.Kill())
			require.Error(t, victim.Wait(), "killed")
			require.NoError(t, obstacle.Rollback(t.Context()))

			require.NoError(t, migrations.Up(t.Context(), cfg))
			requireComplete(t, cfg)
		})
	}
}

// awaitLock waits until somebody in the database waits for a lock.
func awaitLock(t *testing.T, watch *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting bool
		err := watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		return err == nil && waiting
	}, 30e9, 10e6)
}
