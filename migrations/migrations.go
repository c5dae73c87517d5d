package migrations

import (
	"context"
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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed *.up.sql *.down.sql
var files embed.FS

// ErrEarlierBuild is returned for a database whose schema this build can't update. A
// retry does not help.
var ErrEarlierBuild = errors.New("this database was made by an earlier build of takt, which was never released: " +
	"use an empty database or data directory (`make db-reset` empties that of `make run`)")

const (
	// lockKey is the advisory lock under which a process reads the version and migrates.
	// golang-migrate's own lock is not enough: it is taken after the dirty mark was
	// read, so a dead process looks the same as a running one.
	lockKey = 0x74616b74_6d696772 // "taktmigr"
	// lockTimeout bounds each wait for a lock, including locks of tables.
	lockTimeout = 30 * time.Second
	// versionTable has a name of its own, because other programs that share the
	// database may use golang-migrate too.
	versionTable = "takt_migrations"
)

// Up migrates the database of cfg to the newest version: River's tables, then takt's.
// It opens its own connections, without statement_timeout, and fails when ctx ends. A
// database that a later release migrated is left as it is, because its schema tolerates
// this build.
func Up(ctx context.Context, cfg *pgx.ConnConfig) error {
	return UpOrLater(func(uint, uint) {})(ctx, cfg)
}

// UpOrLater is Up, and calls later with the database's version and the newest of this
// build if a later release migrated the database.
func UpOrLater(later func(version, newest uint)) func(context.Context, *pgx.ConnConfig) error {
	return func(ctx context.Context, cfg *pgx.ConnConfig) error {
		return run(ctx, cfg, func(ctx context.Context, s *session) error {
			if err := s.river(ctx, rivermigrate.DirectionUp, nil); err != nil {
				return err
			}
			return s.ours(func(m *migrate.Migrate) error {
				version, newest, err := ahead(m)
				if err != nil {
					return err
				}
				if version > newest {
					later(version, newest)
					return nil
				}
				return m.Up()
			})
		})
	}
}

// Down reverts every migration, River's last. All data is lost, so it is for tests
// only.
func Down(ctx context.Context, cfg *pgx.ConnConfig) error {
	return run(ctx, cfg, func(ctx context.Context, s *session) error {
		if err := s.ours((*migrate.Migrate).Down); err != nil {
			return err
		}
		return s.river(ctx, rivermigrate.DirectionDown, &rivermigrate.MigrateOpts{TargetVersion: -1})
	})
}

// Files returns takt's migrations, as NNNN_noun.up.sql and .down.sql.
func Files() fs.FS { return files }

// session is the state of the process that may migrate now.
type session struct {
	cfg  *pgx.ConnConfig
	pool *pgxpool.Pool
}

// run calls steps while this process holds lockKey. The lock ends with its connection.
func run(ctx context.Context, cfg *pgx.ConnConfig, steps func(context.Context, *session) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(errors.New("the migration is over"))
	s := &session{cfg: patient(inner, cfg)}
	pc, err := pgxpool.ParseConfig("host=/ sslmode=disable")
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	pc.ConnConfig = s.cfg.Copy()
	if s.pool, err = pgxpool.NewWithConfig(inner, pc); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer s.pool.Close()

	err = s.pool.AcquireFunc(inner, func(conn *pgxpool.Conn) error {
		if _, err := conn.Exec(inner, `SELECT pg_advisory_lock($1)`, int64(lockKey)); err != nil {
			return fmt.Errorf("waiting for another process that migrates: %w", err)
		}
		if err := refuseEarlier(inner, conn); err != nil {
			return err
		}
		return steps(inner, s)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// refuseEarlier fails with ErrEarlierBuild if the database was made before the files
// were renumbered: such a build made takt's tables but kept its version in another
// table.
func refuseEarlier(ctx context.Context, conn *pgxpool.Conn) error {
	var earlier bool
	err := conn.QueryRow(ctx, `SELECT to_regclass('worker_details') IS NOT NULL AND to_regclass($1) IS NULL`, versionTable).Scan(&earlier)
	if err != nil {
		return fmt.Errorf("looking for tables of an earlier build: %w", err)
	}
	if earlier {
		return ErrEarlierBuild
	}
	return nil
}

// patient returns a copy of cfg whose sessions wait for locks up to lockTimeout and for
// statements without limit. The end of ctx closes their sockets, because golang-migrate
// takes no context.
func patient(ctx context.Context, cfg *pgx.ConnConfig) *pgx.ConnConfig {
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

// river runs River's own migrations. Each is a transaction that includes its version,
// so a killed process leaves each version applied as a whole or not at all.
func (s *session) river(ctx context.Context, direction rivermigrate.Direction, opts *rivermigrate.MigrateOpts) error {
	m, err := rivermigrate.New(riverpgxv5.New(s.pool), nil)
	if err != nil {
		return fmt.Errorf("reading River's migrations: %w", err)
	}
	if _, err := m.Migrate(ctx, direction, opts); err != nil {
		return fmt.Errorf("migrating River's tables: %w", err)
	}
	return nil
}

// ours repairs a dirty version and calls step.
func (s *session) ours(step func(*migrate.Migrate) error) error {
	src, err := iofs.New(files, ".")
	if err != nil {
		return fmt.Errorf("reading the embedded files: %w", err)
	}
	db := stdlib.OpenDB(*s.cfg)
	defer func() { _ = db.Close() }()
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{MigrationsTable: versionTable})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	m, err := migrate.NewWithInstance("iofs", src, "pgx5", driver)
	if err != nil {
		return err
	}
	defer func() { _, _ = m.Close() }()
	m.LockTimeout = lockTimeout
	if err := repair(m); err != nil {
		return err
	}
	if err := step(m); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		return err
	}
	return nil
}

// ahead returns the version of the database, 0 if it has none, and the newest version of
// this build.
func ahead(m *migrate.Migrate) (version, newest uint, err error) {
	ups, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		return 0, 0, err
	}
	version, _, err = m.Version()
	if err != nil && !errors.Is(err, migrate.ErrNilVersion) {
		return 0, 0, fmt.Errorf("reading the version: %w", err)
	}
	return version, uint(len(ups)), nil // they are numbered from 1 on
}

// repair sets a dirty version N to the version before N, not dirty. It can't do that for
// a version that only a later release has.
func repair(m *migrate.Migrate) error {
	version, dirty, err := m.Version()
	if errors.Is(err, migrate.ErrNilVersion) || (err == nil && !dirty) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the version: %w", err)
	}
	if _, newest, err := ahead(m); err != nil {
		return err
	} else if version > newest {
		return fmt.Errorf("a later release of takt did not finish migrating the database to version %d (this one ends at %d): "+
			"start that release again, it finishes the migration", version, newest)
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
