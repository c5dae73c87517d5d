package storetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/migrations"
	"takt/store/postgres"
	"takt/store/storetest/needs"
)

// cluster is a server with a migrated template, started when first used.
type cluster struct {
	options string
	once    sync.Once
	err     error
	server  *Server // nil for TAKT_TEST_DATABASE_URL
	admin   *pgx.ConnConfig
	// template and strategy are what databases are made from, and how.
	template, strategy string
}

// A test binary's servers. They are variables because tests share them and have nothing
// else to share them through.
var (
	shared    = cluster{options: fast}
	benchmark = cluster{options: durable}
)

// Main runs the tests, ends the server, and fails if goroutines are left over. A
// package's TestMain may call it. Without it the server ends just after the test
// binary.
func Main(m *testing.M) {
	_ = flag.CommandLine.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))) // they mostly wait; an argument wins
	code := m.Run()
	shared.stop()
	benchmark.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code) //revive:disable-line:deep-exit TestMain's job
}

// Database is one test's database.
type Database struct {
	// DB uses Pool.
	DB   *postgres.DB
	Pool *pgxpool.Pool
	// Config connects to the same database.
	Config *pgx.ConnConfig
}

// Open returns a handle of an empty, migrated database of this test's own.
func Open(tb testing.TB) *postgres.DB {
	tb.Helper()
	return New(tb).DB
}

// New is like Open, for tests that also need the pool or the configuration.
func New(tb testing.TB) *Database {
	tb.Helper()
	return open(tb, &shared, true)
}

// Durable is New on a server with fsync, for benchmarks. It never uses
// TAKT_TEST_DATABASE_URL.
func Durable(tb testing.TB) *Database {
	tb.Helper()
	return open(tb, &benchmark, true)
}

// Config returns the configuration of an empty database of this test's own that
// has not been migrated.
func Config(tb testing.TB) *pgx.ConnConfig {
	tb.Helper()
	return clone(tb, &shared, false)
}

func open(tb testing.TB, c *cluster, migrated bool) *Database {
	tb.Helper()
	return connect(tb, clone(tb, c, migrated))
}

// Another returns another handle of db's database, like that of a second controller.
func Another(tb testing.TB, db *Database) *Database {
	tb.Helper()
	return connect(tb, db.Config)
}

func connect(tb testing.TB, cfg *pgx.ConnConfig) *Database {
	tb.Helper()
	pc, err := pgxpool.ParseConfig(cfg.ConnString())
	require.NoError(tb, err)
	pc.ConnConfig = cfg.Copy()
	pc.MaxConns = 20
	pc.ConnConfig.RuntimeParams["statement_timeout"] = "60000"
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(tb.Context()), pc)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	db := postgres.New()
	db.Use(pool)
	return &Database{DB: db, Pool: pool, Config: cfg}
}

// clone makes a database that is dropped at the end of the test.
func clone(tb testing.TB, c *cluster, migrated bool) *pgx.ConnConfig {
	tb.Helper()
	needs.Postgres(tb)
	c.once.Do(func() { c.err = c.prepare(context.WithoutCancel(tb.Context())) })
	require.NoError(tb, c.err, "preparing PostgreSQL")
	template := "template0"
	if migrated {
		template = c.template
	}
	name := "takt_test_" + strings.ToLower(rand.Text())
	require.NoError(tb, c.exec(tb.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template+c.strategy))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), time.Minute)
		defer cancel()
		require.NoError(tb, c.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"))
	})
	return c.database(name)
}

// prepare starts the server, unless one is given, and makes the template.
func (c *cluster) prepare(ctx context.Context) (err error) {
	given := ""
	if c == &shared {
		given = os.Getenv("TAKT_TEST_DATABASE_URL")
	}
	if given == "" {
		if c.server, err = start(ctx, c.options); err != nil {
			return err
		}
		given = c.server.URL("postgres")
	}
	if c.admin, err = pgx.ParseConfig(given); err != nil {
		return err
	}
	return c.makeTemplate(ctx)
}

// makeTemplate migrates the database that others are cloned from. Its name contains the
// hash of the migrations, because test binaries that use one given server share it.
func (c *cluster) makeTemplate(ctx context.Context) error {
	name, err := templateName()
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, c.admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // nothing is lost with it
	// A copy of files costs half of one through the log. Before PostgreSQL 15 there was no other.
	err = conn.QueryRow(ctx, `SELECT CASE WHEN current_setting('server_version_num')::int >= 150000 THEN ' STRATEGY file_copy' ELSE '' END`).Scan(&c.strategy)
	if err != nil {
		return err
	}
	const key = 0x74616b74_74657374 // "takttest"
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(key)); err != nil {
		return err
	}
	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists)
	if err != nil {
		return err
	}
	if !exists {
		making := name + "_" + strings.ToLower(rand.Text()) // renamed when complete
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+making+" TEMPLATE template0"); err != nil {
			return err
		}
		if err := migrations.Up(ctx, c.database(making)); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+making+" RENAME TO "+name); err != nil {
			return err
		}
	}
	c.template = name
	return nil
}

func templateName() (string, error) {
	hash := sha256.New()
	names, err := fs.Glob(migrations.Files(), "*.sql")
	if err != nil {
		return "", err
	}
	for _, n := range names {
		text, err := fs.ReadFile(migrations.Files(), n)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", n, len(text), text) // a hash never fails
	}
	river, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return "", err
	}
	for _, v := range river.AllVersions() {
		_, _ = fmt.Fprintf(hash, "%d %d\n%s", v.Version, len(v.SQLUp), v.SQLUp)
	}
	return "takt_template_" + hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// exec runs one statement on the administrator's connection.
func (c *cluster) exec(ctx context.Context, sql string) error {
	conn, err := pgx.ConnectConfig(ctx, c.admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // nothing is lost with it
	_, err = conn.Exec(ctx, sql)
	return err
}

// database returns the configuration of another database on the same server.
func (c *cluster) database(name string) *pgx.ConnConfig {
	text := c.admin.ConnString()
	if u, err := url.Parse(text); err == nil && u.Scheme != "" {
		u.Path = "/" + name
		text = u.String()
	} else {
		text += " dbname=" + name // the last one counts
	}
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		cfg = c.admin.Copy()
		cfg.Database = name
	}
	return cfg
}

func (c *cluster) stop() {
	if c.server != nil {
		c.server.Stop()
	}
}
