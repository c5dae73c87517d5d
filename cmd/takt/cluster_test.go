package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/migrations"
	"takt/store/postgres"
)

// madeCluster is a data directory with a migrated cluster. Most controllers start with a copy
// of it, because initdb and the migrations take longer than many tests. Its server does not
// sync: these tests kill processes, not the machine.
var madeCluster struct { // made once for all tests
	once sync.Once
	dir  string
	err  error
}

// copyCluster gives the data directory the database of a first start, unless it has one.
func copyCluster(t *testing.T, dataDir string) {
	t.Helper()
	madeCluster.once.Do(func() { madeCluster.dir, madeCluster.err = makeCluster(context.WithoutCancel(t.Context()), t) })
	require.NoError(t, madeCluster.err)
	if _, err := os.Stat(filepath.Join(dataDir, "postgres")); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	require.NoError(t, os.MkdirAll(dataDir, 0o700))
	for _, name := range []string{"postgres", "postgres.password"} {
		out, err := exec.CommandContext(t.Context(), "cp", "-Rp", filepath.Join(madeCluster.dir, name), dataDir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

func makeCluster(ctx context.Context, t *testing.T) (dir string, err error) {
	t.Helper()
	if dir, err = os.MkdirTemp("", "takt-cluster-"); err != nil {
		return "", err
	}
	server := database.NewPostgres(database.PostgresConfig{DataDir: dir, SearchPath: os.Getenv("PATH")})
	stop, err := startDatabase(ctx, t.Output(), database.NewPool(database.PoolConfig{
		Source: server.ConnConfig, Sinks: []database.Sink{postgres.New()}, Size: 1, Migrate: migrations.Up,
	}), server)
	if err == nil {
		err = stop()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "postgres", "postgresql.auto.conf"), []byte("fsync = off\n"), 0o600)
	}
	return dir, err
}
