package database

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/store/storetest/needs"
)

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
