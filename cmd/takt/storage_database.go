package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/migrations"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// readEncryptionKey reads the key from the data directory unless one is set. It makes no
// new key, because a new one could not decrypt anything.
func readEncryptionKey(cfg *Config) (err error) {
	if cfg.EncryptionKey != "" {
		return nil
	}
	cfg.EncryptionKey, err = readSecret("encryption-key", filepath.Join(cfg.DataDir, "encryption-key"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data-dir: %s is no data directory of takt: it has no encryption-key", cfg.DataDir)
	}
	return err
}

// openDatabase opens the database of the settings: the external one, or the embedded one.
// If no running takt serves the embedded database, openDatabase runs it until closeDB.
func openDatabase(ctx context.Context, cfg Config, keys *seal.Ring, out io.Writer) (db *postgres.DB, closeDB func() error, err error) {
	log, err := newLogger(out, "error,console")
	if err != nil {
		return nil, nil, err
	}
	db = postgres.New()
	pool := database.PoolConfig{Size: 4, Sinks: []database.Sink{db}, Migrate: postgres.WithKeyCheck(keys)}
	release := func() error { return nil }
	var server *database.Postgres
	if cfg.DatabaseURL != "" {
		pool.Source, pool.Direct, err = cfg.externalDatabase()
	} else if lock, locked := database.LockDataDir(cfg.DataDir); locked == nil {
		server = database.NewPostgres(database.PostgresConfig{DataDir: cfg.DataDir, SearchPath: os.Getenv("PATH")})
		pool.Source, pool.Migrate, release = server.ConnConfig, postgres.WithKeyCheck(keys, migrations.Up), lock.Release
	} else { // a running takt holds the lock
		var beside *database.Beside
		if beside, err = database.OpenBeside(cfg.DataDir); err == nil {
			pool.Source = beside.ConnConfig
			release = func() error { //nolint:unparam // as that of the lock
				beside.Close()
				return nil
			}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	stop, err := startDatabase(ctx, log, database.NewPool(pool), server)
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return db, func() error { return errors.Join(stop(), release()) }, nil
}

// externalDatabase returns how to reach the external database, and how to reach it past a
// pooler; nil without one.
func (c Config) externalDatabase() (source, direct database.Source, err error) {
	if source, err = database.URL(c.DatabaseURL); err == nil && c.DatabaseDirectURL != "" {
		direct, err = database.URL(c.DatabaseDirectURL)
	}
	return source, direct, err
}

// startDatabase starts only the database subtree of the tree.
func startDatabase(ctx context.Context, log zerolog.Logger, pool *database.Pool, server *database.Postgres) (stop func() error, err error) {
	sys := otp.New(otp.Options{Logger: log})
	spec := otp.SupSpec{Strategy: otp.RestForOne, Children: []otp.ChildSpec{pool.Spec()}}
	if server != nil {
		spec.Children = append([]otp.ChildSpec{server.Spec()}, spec.Children...)
	}
	stop = func() error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopLimit, errors.New("stop limit"))
		defer cancel()
		if leaked := sys.Shutdown(ctx); len(leaked) > 0 {
			return fmt.Errorf("%d processes did not end", len(leaked))
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
