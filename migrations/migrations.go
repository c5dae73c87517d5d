package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed *.sql
var files embed.FS

// lockKey is the advisory lock that excludes other processes while one looks at
// the version and migrates. golang-migrate's own lock is taken after it has read
// the dirty mark, and so can't tell a dead process from one at work.
const lockKey = 0x74616b74_6d696772 // "taktmigr"

// lockTimeout bounds each wait for a lock, a table's included.
const lockTimeout = 30 * time.Second

// Up migrates the database of cfg to the newest version. It uses a connection of
// its own, without statement_timeout, and fails when ctx ends.
func Up(ctx context.Context, cfg *pgx.ConnConfig) error {
	return run(ctx, cfg, func(m *migrate.Migrate) error { return m.Up() })
}

// Down takes every migration back. All data is lost: for tests and db-reset.
func Down(ctx context.Context, cfg *pgx.ConnConfig) error {
	return run(ctx, cfg, func(m *migrate.Migrate) error { return m.Down() })
}

// Files returns the migrations, as NNNN_name.up.sql and .down.sql.
func Files() fs.FS { return files }

// run holds the lock, repairs a dirty version and calls step.
func run(ctx context.Context, cfg *pgx.ConnConfig, step func(*migrate.Migrate) error) error {
	db := stdlib.OpenDB(*session(ctx, cfg))
	defer func() { _ = db.Close() }()

	err := locked(ctx, db, func() error {
		m, err := open(db)
		if err != nil {
			return err
		}
		defer func() { _, _ = m.Close() }()
		if err := repair(m); err != nil {
			return err
		}
		if err := step(m); err != nil && !errors.Is(err, migrate.ErrNoChange) {
			return err
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("migrating: %w (%w)", cause, err)
		}
		return fmt.Errorf("migrating: %w", err)
	}
	return nil
}

// session returns a copy of cfg whose sessions wait for locks up to lockTimeout
// and for statements without limit. Because golang-migrate takes no context, the
// end of ctx closes their sockets.
func session(ctx context.Context, cfg *pgx.ConnConfig) *pgx.ConnConfig {
	c := cfg.Copy()
	if c.RuntimeParams == nil {
		c.RuntimeParams = map[string]string{}
	}
	c.RuntimeParams["lock_timeout"] = strconv.FormatInt(lockTimeout.Milliseconds(), 10)
	c.RuntimeParams["statement_timeout"] = "0"
	c.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	dial := c.DialFunc
	c.DialFunc = func(dialCtx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(dialCtx, network, addr)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return conn, nil
	}
	return c
}

// locked calls f while this process holds lockKey.
func locked(ctx context.Context, db *sql.DB, f func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, int64(lockKey)); err != nil {
		return fmt.Errorf("waiting for another process that migrates: %w", err)
	}
	if err := f(); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockKey)); err != nil {
		return fmt.Errorf("releasing the lock: %w", err)
	}
	return nil
}

func open(db *sql.DB) (*migrate.Migrate, error) {
	src, err := iofs.New(files, ".")
	if err != nil {
		return nil, fmt.Errorf("reading the embedded files: %w", err)
	}
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	m, err := migrate.NewWithInstance("iofs", src, "pgx5", driver)
	if err != nil {
		return nil, err
	}
	m.LockTimeout = lockTimeout
	return m, nil
}

// repair makes a dirty version N clean again, as the version before N.
func repair(m *migrate.Migrate) error {
	version, dirty, err := m.Version()
	if errors.Is(err, migrate.ErrNilVersion) || (err == nil && !dirty) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the version: %w", err)
	}
	before := int(version) - 1
	if before == 0 {
		before = database.NilVersion
	}
	if err := m.Force(before); err != nil {
		return fmt.Errorf("repairing dirty version %d: %w", version, err)
	}
	return nil
}
