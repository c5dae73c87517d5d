package takttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/cmd/internal/upkeep"
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
	out, err := exec.CommandContext(t.Context(), "tar", "-xpf", filepath.Join(madeCluster.dir, "made.tar"), "-C", dataDir).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func makeCluster(ctx context.Context, t *testing.T) (dir string, err error) {
	t.Helper()
	if dir, err = os.MkdirTemp("", "takt-cluster-"); err != nil {
		return "", err
	}
	server := database.NewPostgres(database.PostgresConfig{DataDir: dir, SearchPath: os.Getenv("PATH")})
	stop, err := upkeep.StartDatabase(ctx, t.Output(), database.NewPool(database.PoolConfig{
		Source: server.ConnConfig, Sinks: []database.PoolUser{postgres.New()}, Size: 1, Migrate: migrations.Up,
	}), server)
	if err == nil {
		err = stop()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "postgres", "postgresql.auto.conf"), []byte("fsync = off\n"), 0o600)
	}
	if err != nil {
		return dir, err
	}
	// cp takes five times as long on ext4.
	out, err := exec.CommandContext(ctx, "tar", "-C", dir, "-cf", filepath.Join(dir, "made.tar"), "postgres", "postgres.password").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return dir, err
}
