package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"takt/migrations"
	"takt/store/storetest"
)

func connect(t *testing.T, cfg *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func TestUpDownUpEndsWhereUpEnds(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	conn := connect(t, cfg)
	require.NoError(t, migrations.Up(t.Context(), cfg))
	first := describe(t, conn)
	require.Contains(t, fmt.Sprint(first), "builds_in_order")
	require.Contains(t, fmt.Sprint(first), "river_job_kind")
	require.NoError(t, migrations.Up(t.Context(), cfg), "nothing to do is no error")

	require.NoError(t, migrations.Down(t.Context(), cfg))
	require.Empty(t, describe(t, conn), "down leaves nothing behind")

	require.NoError(t, migrations.Up(t.Context(), cfg))
	require.Equal(t, first, describe(t, conn))
}

// A process that is killed while file N runs leaves the version N, dirty, and
// either all of N or nothing.
func TestAMigrationThatWasKilledIsRunAgain(t *testing.T) {
	t.Parallel()
	ups, err := fs.Glob(migrations.Files(), "*.up.sql")
	require.NoError(t, err)
	require.NotEmpty(t, ups)
	for n := range len(ups) {
		for name, applied := range map[string]bool{"before its commit": false, "after its commit": true} {
			t.Run(strings.TrimSuffix(ups[n], ".up.sql")+" killed "+name, func(t *testing.T) {
				t.Parallel()
				cfg := storetest.Config(t)
				conn := connect(t, cfg)
				_, err := river(t, cfg).Migrate(t.Context(), rivermigrate.DirectionUp, nil) // always first
				require.NoError(t, err)
				_, err = conn.Exec(t.Context(), `CREATE TABLE takt_migrations (version bigint PRIMARY KEY, dirty boolean NOT NULL)`)
				require.NoError(t, err)
				for i, file := range ups[:n+1] {
					if i < n || applied {
						text, err := fs.ReadFile(migrations.Files(), file)
						require.NoError(t, err)
						_, err = conn.Exec(t.Context(), string(text))
						require.NoError(t, err)
					}
				}
				_, err = conn.Exec(t.Context(), `INSERT INTO takt_migrations VALUES ($1, true)`, n+1)
				require.NoError(t, err)

				require.NoError(t, migrations.Up(t.Context(), cfg))

				var version int
				var dirty bool
				require.NoError(t, conn.QueryRow(t.Context(), `SELECT version, dirty FROM takt_migrations`).Scan(&version, &dirty))
				require.Equal(t, len(ups), version)
				require.False(t, dirty)
				fresh := storetest.New(t)
				require.Equal(t, describe(t, connect(t, fresh.Config)), describe(t, conn), "same as never killed")
			})
		}
	}
}

func TestEveryFileIsIdempotent(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	conn := connect(t, cfg)
	_, err := river(t, cfg).Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)
	ups, err := fs.Glob(migrations.Files(), "*.up.sql")
	require.NoError(t, err)
	for _, file := range ups {
		text, err := fs.ReadFile(migrations.Files(), file)
		require.NoError(t, err)
		for range 2 {
			_, err = conn.Exec(t.Context(), string(text))
			require.NoError(t, err, file)
		}
		_, err = fs.Stat(migrations.Files(), strings.Replace(file, ".up.", ".down.", 1))
		require.NoError(t, err, "every step has a way back")
	}
}

// Builds that were never released numbered their files otherwise, from the first
// one on, and kept the version in schema_migrations.
func TestADatabaseOfAnEarlierBuildIsRefused(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	conn := connect(t, cfg)
	_, err := conn.Exec(t.Context(), `
		CREATE TABLE schema_migrations (version bigint PRIMARY KEY, dirty boolean NOT NULL);
		INSERT INTO schema_migrations VALUES (6, false);
		CREATE TABLE workers (id text PRIMARY KEY);
		CREATE TABLE worker_details (worker_id text PRIMARY KEY REFERENCES workers (id))`)
	require.NoError(t, err)
	before := describe(t, conn)
	for _, migrate := range []func(context.Context, *pgx.ConnConfig) error{migrations.Up, migrations.Down} {
		err := migrate(t.Context(), cfg)
		require.ErrorIs(t, err, migrations.ErrEarlierBuild)
		require.ErrorContains(t, err, "use an empty database")
	}
	require.Equal(t, before, describe(t, conn), "nothing is touched")
}

// Another program's version table is not ours.
func TestADatabaseMayBeShared(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	_, err := connect(t, cfg).Exec(t.Context(), `CREATE TABLE schema_migrations (version text PRIMARY KEY)`)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), cfg))
	require.NoError(t, migrations.Up(t.Context(), cfg), "again")
}

// A second process must not take the dirty mark of one at work for that of a dead
// one, and must not wait longer than its context.
func TestUpEndsWithItsContextWhileAnotherMigrates(t *testing.T) {
	t.Parallel()
	cfg := storetest.Config(t)
	other := connect(t, cfg)
	const key = 0x74616b74_6d696772 // the lock of package migrations
	_, err := other.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, int64(key))
	require.NoError(t, err)

	gaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- migrations.Up(ctx, cfg) }()
	awaitLock(t, connect(t, cfg))
	cancel(gaveUp)
	require.ErrorIs(t, <-done, gaveUp)
}
