package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/migrations"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// readEncryptionKey takes the key of the data directory, unless one is set. It
// makes none: without the right one nothing could be read.
func readEncryptionKey(cfg *Config) error {
	if cfg.EncryptionKey != "" {
		return nil
	}
	path := filepath.Join(cfg.DataDir, "encryption-key")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data-dir: %s is no data directory of takt: it has no encryption-key", cfg.DataDir)
	}
	if err != nil {
		return fmt.Errorf("encryption-key: %w", err)
	}
	cfg.EncryptionKey = strings.TrimSpace(string(raw))
	return nil
}

// openDatabase reaches the database of the settings: the external one, the
// embedded one of a takt that runs, or else the embedded one, which it runs
// itself meanwhile.
func openDatabase(ctx context.Context, cfg Config, keys *seal.Ring, out io.Writer) (db *postgres.DB, closeDB func() error, err error) {
	log, err := newLogger(out, "error,console")
	if err != nil {
		return nil, nil, err
	}
	db = postgres.New()
	pool := database.PoolConfig{Size: 4, Sinks: []database.Sink{db}, Migrate: postgres.WithKeyCheck(keys)}
	if cfg.DatabaseURL != "" {
		if pool.Source, err = database.URL(cfg.DatabaseURL); err != nil {
			return nil, nil, err
		}
		closeDB, err = startDatabase(ctx, log, database.NewPool(pool), nil)
		return db, closeDB, err
	}
	lock, err := database.LockDataDir(cfg.DataDir)
	if err != nil { // a takt runs there
		beside, err := database.OpenBeside(cfg.DataDir)
		if err != nil {
			return nil, nil, err
		}
		pool.Source = beside.ConnConfig
		stop, err := startDatabase(ctx, log, database.NewPool(pool), nil)
		if err != nil {
			beside.Close()
			return nil, nil, err
		}
		return db, func() error { defer beside.Close(); return stop() }, nil
	}
	server := database.NewPostgres(database.PostgresConfig{DataDir: cfg.DataDir, SearchPath: os.Getenv("PATH")})
	pool.Source, pool.Migrate = server.ConnConfig, postgres.WithKeyCheck(keys, migrations.Up)
	stop, err := startDatabase(ctx, log, database.NewPool(pool), server)
	if err != nil {
		return nil, nil, errors.Join(err, lock.Release())
	}
	return db, func() error { return errors.Join(stop(), lock.Release()) }, nil
}

// startDatabase starts what the tree calls repo, on its own.
func startDatabase(ctx context.Context, log zerolog.Logger, pool *database.Pool, server *database.Postgres) (stop func() error, err error) {
	sys := otp.New(otp.Options{Logger: log})
	spec := otp.SupSpec{Strategy: otp.RestForOne, Children: []otp.ChildSpec{pool.Spec()}}
	if server != nil {
		spec.Children = append([]otp.ChildSpec{server.Spec()}, spec.Children...)
	}
	stop = func() error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopLimit, errors.New("stop limit"))
		defer cancel()
		if report := sys.Shutdown(ctx); !report.Clean() {
			return fmt.Errorf("%d processes did not end", len(report.Leaked))
		}
		return nil
	}
	if _, err := sys.StartRoot(ctx, "database", spec); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	if !pool.Ready() {
		return nil, errors.Join(store.NewError(store.Unavailable, "The database does not answer"), stop())
	}
	return stop, nil
}
