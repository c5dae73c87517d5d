package database

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/store/storetest/needs"
)

// busySQL keeps a backend computing, so that it does not notice by itself that
// its postmaster is gone.
const busySQL = "SELECT count(*) FROM generate_series(1, 100000000000)"

func TestPostgresKilledUnderLoad(t *testing.T) {
	t.Parallel()
	dir := made(t)
	sink := &fakeSink{}
	b := serve(t, config(dir), func(pg *Postgres) otp.ChildSpec {
		return NewPool(PoolConfig{Source: pg.ConnConfig, Sinks: []Sink{sink}}).Spec()
	})
	cfg := must(b.pg.ConnConfig(t.Context()))(t)
	conn := must(pgx.ConnectConfig(t.Context(), cfg))(t)
	failed := make(chan error, 1)
	go func() { _, err := conn.Exec(t.Context(), busySQL); failed <- err }()
	eventually(t, "the busy backend", func() error {
		if query(t, b.pg, "SELECT count(*)::text FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(1, 1000%' AND pid <> pg_backend_pid()") != "1" {
			return errSilent
		}
		return nil
	})
	begun, old := time.Now(), sink.current()
	killServer(t, dir)
	soon(t, "the pool to follow", func() bool {
		pool := sink.current()
		return pool != nil && pool != old && pool.Ping(t.Context()) == nil
	})
	t.Logf("the pool answers %s after kill -9 of the server", time.Since(begun).Round(time.Millisecond))
	require.Error(t, <-failed)
	require.True(t, conn.IsClosed())
}

func TestPostgresBackendKilled(t *testing.T) {
	t.Parallel()
	dir := made(t)
	b := serve(t, config(dir))
	pool := startPool(t, PoolConfig{Source: b.pg.ConnConfig})
	postmaster := serverPID(t, dir)
	for _, pid := range serversIn(clusterInfo(t, dir)) {
		if pid != postmaster {
			_ = syscall.Kill(pid, syscall.SIGKILL) // one of them is enough for the server to reset itself
			break
		}
	}
	soon(t, "the pool", func() bool {
		p := pool.sink.current()
		return p != nil && p.Ping(t.Context()) == nil
	})
	require.Equal(t, postmaster, serverPID(t, dir), "the server mends itself")
	_, restarts := pool.outages.seen()
	require.Zero(t, restarts)
}

func TestPostgresStopWhileStarting(t *testing.T) {
	t.Parallel()
	needs.Postgres(t)
	dir := t.TempDir()
	b := &fixture{sys: newSystem(t), pg: NewPostgres(config(dir)), dir: dir}
	ctx, cancel := context.WithCancelCause(t.Context())
	started := make(chan error, 1)
	go func() {
		_, err := b.sys.StartRoot(ctx, "database", otp.SupSpec{Children: []otp.ChildSpec{b.pg.Spec()}})
		started <- err
	}()
	soon(t, "initdb to be at work", func() bool {
		drafts, _ := filepath.Glob(filepath.Join(dir, draftPrefix+"*", "base"))
		return len(drafts) > 0
	})
	begun := time.Now()
	cancel(errSilent)
	require.ErrorIs(t, <-started, errSilent)
	require.Less(t, time.Since(begun), 15*time.Second)
	soon(t, "the abandoned start to return", func() bool { return b.sys.Leaked() == 0 })
	require.NoDirExists(t, filepath.Join(dir, clusterName))

	again := serve(t, config(dir))
	require.Equal(t, "1", query(t, again.pg, "SELECT '1'"))
}

func TestClusterElsewhere(t *testing.T) {
	t.Parallel()
	dir, disk := made(t), directory(t)
	require.NoError(t, os.Rename(filepath.Join(dir, clusterName), filepath.Join(disk, "moved")))
	require.NoError(t, os.Symlink(filepath.Join(disk, "moved"), filepath.Join(dir, clusterName)))
	b := serve(t, config(dir))
	require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
	b.stop(t)

	require.NoError(t, os.Rename(filepath.Join(disk, "moved"), filepath.Join(disk, "away")))
	b = &fixture{sys: newSystem(t), pg: NewPostgres(config(dir)), dir: dir}
	require.ErrorContains(t, b.start(t), "is its disk mounted?")
	require.NoDirExists(t, filepath.Join(disk, "moved"))
}

func TestPasswordReplaced(t *testing.T) {
	t.Parallel()
	dir := made(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, passwordFileName), []byte("guessed\n"), 0o644))
	b := &fixture{sys: newSystem(t), pg: NewPostgres(config(dir)), dir: dir}
	require.ErrorContains(t, b.start(t), "without that file a new one is made")
	require.Empty(t, serversIn(clusterInfo(t, dir)))
	info := must(os.Stat(filepath.Join(dir, passwordFileName)))(t)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestPoolKilled(t *testing.T) {
	t.Parallel()
	server := serve(t, config(made(t)))
	b := startPool(t, PoolConfig{Source: server.pg.ConnConfig})
	old := b.sink.current()
	b.sys.Whereis("database/pool").Kill()
	soon(t, "the next incarnation", func() bool { p := b.sink.current(); return p != nil && p != old })
	require.Len(t, b.sink.drops, 1)
	require.ErrorIs(t, b.sink.drops[0], otp.ErrKilled)
	soon(t, "the old pool to be closed", func() bool { return old.Ping(t.Context()) != nil })
	require.NoError(t, b.sink.current().Ping(t.Context()))
}
