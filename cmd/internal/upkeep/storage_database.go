package upkeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/migrations"
	"takt/store"
	"takt/store/postgres"
)

// readEncryptionKey reads the key from the data directory unless one is set. It makes no
// new key, because a new one could not decrypt anything.
func readEncryptionKey(cfg *settings.Config) (err error) {
	if cfg.EncryptionKey != "" {
		return nil
	}
	cfg.EncryptionKey, err = cli.ReadSecret("encryption-key", filepath.Join(cfg.DataDir, "encryption-key"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data-dir: %s is no data directory of takt: it has no encryption-key", cfg.DataDir)
	}
	return err
}

// reaching says how a command reaches a database.
type reaching struct {
	alone bool // no takt may run
	moved bool // also a cluster that was moved
}

// reach finds the database of the settings. If no running takt serves the embedded one, it
// returns its server, which the caller runs. The caller calls release at the end.
func reach(c *settings.Config, how reaching) (source database.Source, server *database.Postgres, release func() error, err error) {
	release = func() error { return nil }
	var locked error // by a running takt
	if how.alone || c.DatabaseURL == "" {
		var lock *database.DataDirLock
		if lock, locked = database.LockDataDir(c.DataDir); locked == nil {
			release = lock.Release
		} else if how.alone {
			return nil, nil, nil, fmt.Errorf("stop takt serve first: %w", locked)
		}
	}
	switch {
	case c.DatabaseURL != "":
		if source, err = database.URL(c.PastPooler()); err == nil {
			source = database.NewReadingGuard(c.DataDir).Source(source)
		}
	case locked == nil:
		server = database.NewPostgres(database.PostgresConfig{DataDir: c.DataDir, SearchPath: os.Getenv("PATH"), EvenMoved: how.moved})
		source = server.ConnConfig
	default:
		var attached *database.Attachment
		if attached, err = database.Attach(c.DataDir); err == nil {
			source = attached.ConnConfig
			release = func() error {
				attached.Close()
				return nil
			}
		}
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, release())
	}
	return source, server, release, nil
}

// openDatabase opens the database of the settings: the external one, or the embedded one.
// If no running takt serves the embedded database, openDatabase runs it until closeDB.
func (u *upkeep) openDatabase(ctx context.Context, how reaching) (closeDB func() error, err error) {
	source, server, release, err := reach(&u.cfg, how)
	if err != nil {
		return nil, err
	}
	u.db, u.source = postgres.New(), source
	pool := database.PoolConfig{Source: source, Size: 4, Sinks: []database.Sink{u.db}, Migrate: postgres.WithKeyCheck(u.keys)}
	if server != nil {
		pool.Migrate = postgres.WithKeyCheck(u.keys, migrations.Up)
	}
	stop, err := StartDatabase(ctx, u.Err, database.NewPool(pool), server)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	u.inventory.Rows, u.inventory.Files = postgres.NewFiles(u.db), u.files
	return func() error { return errors.Join(stop(), release()) }, nil
}

// openAlone connects to the database of the settings, which no takt may use, whether
// there is anything in it or not.
func (u *upkeep) openAlone(ctx context.Context) (conn *pgx.Conn, closeDB func() error, err error) {
	source, server, release, err := reach(&u.cfg, reaching{alone: true})
	if err != nil {
		return nil, nil, err
	}
	stop, err := StartDatabase(ctx, u.Err, nil, server)
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	if conn, err = connectAlone(ctx, source); err != nil {
		return nil, nil, errors.Join(err, stop(), release())
	}
	return conn, func() error { return errors.Join(conn.Close(context.WithoutCancel(ctx)), stop(), release()) }, nil
}

func connectAlone(ctx context.Context, source database.Source) (*pgx.Conn, error) {
	conn, err := database.Connect(ctx, source)
	if err != nil {
		return nil, err
	}
	if err := postgres.Unused(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// StartDatabase starts only the database subtree of the tree. Each part of it may be nil.
func StartDatabase(ctx context.Context, out io.Writer, pool *database.Pool, server *database.Postgres) (stop func() error, err error) {
	log, err := cli.NewLogger(out, "warn,console")
	if err != nil {
		return nil, err
	}
	sys := otp.New(otp.Options{Logger: log})
	spec := otp.SupSpec{Strategy: otp.RestForOne}
	if server != nil {
		spec.Children = append(spec.Children, server.Spec())
	}
	if pool != nil {
		spec.Children = append(spec.Children, pool.Spec())
	}
	stop = func() error {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), settings.StopLimit, errors.New("stop limit"))
		defer cancel()
		if leaked := sys.Shutdown(ctx); len(leaked) > 0 {
			return fmt.Errorf("%d processes did not end", len(leaked))
		}
		return nil
	}
	if _, err := sys.StartRoot(ctx, "database", spec); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	if pool != nil && !pool.Ready() {
		return nil, errors.Join(store.NewError(store.Unavailable, "The database does not answer"), stop())
	}
	return stop, nil
}
