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
	"github.com/spf13/cobra"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/migrations"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/postgres"
)

// Database returns takt database.
func Database() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "database", Short: "Move the embedded database, or give a restored one a new id",
		Long: `Move the embedded database, or give a restored one a new id. These commands take the
settings of 'takt serve', which must not run.`,
	}, newDatabaseMoveCommand(), newDatabaseRenewCommand())
}

func newDatabaseRenewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "renew-id", Short: "Give a restored database a new installation id",
		Long: `Give the database a new installation id after it was restored by other means than
'takt restore', for example to a point in time with WAL archives. This makes workers'
earlier tokens invalid; otherwise an old token could open another worker's session.
Workers register again by themselves. No controller may run.`,
	}
	return settingsCommand(cmd, sameUser, func(ctx context.Context, u *upkeep, _ []string) (err error) {
		conn, closeDB, err := u.openAlone(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeDB()) }()
		audit := store.AuditEntry{Actor: "takt database", Action: "renew-id", Target: "installation id", Outcome: "ok"}
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return postgres.RenewInstallation(ctx, tx, audit) })
		if err != nil {
			return err
		}
		return u.Say(map[string]bool{"renewed": true}, "the database has a new installation id; workers register again")
	})
}

func newDatabaseMoveCommand() *cobra.Command {
	var skip bool
	cmd := &cobra.Command{
		Use: "move URL", Short: "Move the embedded database to an external one", Args: cobra.ExactArgs(1),
		Long: `Move the embedded database of the data directory to an empty external one, while
takt is stopped. Every file's SHA-256 is checked first; files stay where they are.
Keys, tokens and builds stay valid. The embedded database is kept and marked as moved,
and takt no longer starts on it. If interrupted, run it again.

Afterwards takt serve needs the URL in TAKT_DATABASE_URL, and the content of
DATA_DIR/encryption-key in TAKT_ENCRYPTION_KEY.`,
	}
	cmd.Flags().BoolVar(&skip, "skip-files", false, "don't check the files first, for example after takt storage verify --digest")
	check := func(cfg settings.Config) error {
		if cfg.DatabaseURL != "" {
			return errors.New("database-url: the settings name an external database already; only the embedded one is moved")
		}
		return sameUser(cfg)
	}
	return settingsCommand(cmd, check, func(ctx context.Context, u *upkeep, args []string) (err error) {
		target, err := database.URL(args[0])
		if err != nil {
			return cli.AsUsage(err)
		}
		if u.files, err = settings.OpenFiles(u.cfg, u.keys); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, u.files.Close()) }()
		closeDB, err := u.openDatabase(ctx, reaching{alone: true, moved: true})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeDB()) }()
		conn, err := connectAlone(ctx, target)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
		to := fmt.Sprintf("%s:%d/%s", conn.Config().Host, conn.Config().Port, conn.Config().Database)
		if err := u.move(ctx, conn, to, skip); err != nil {
			return err
		}
		return u.Say(map[string]string{"moved_to": to}, "the database was moved to %s; start takt serve with its URL and the same key:\n"+
			"  export TAKT_DATABASE_URL='…' TAKT_ENCRYPTION_KEY=\"$(cat %s)\"", to, filepath.Join(u.cfg.DataDir, "encryption-key"))
	})
}

// move fills the database of conn, which is at to, with the embedded one.
func (u *upkeep) move(ctx context.Context, conn *pgx.Conn, to string, skip bool) error {
	if err := postgres.Vacant(ctx, conn); errors.Is(err, postgres.ErrOccupied) {
		// The mark is made when all is there but the commit.
		if moved, failed := database.MovedTo(u.cfg.DataDir); failed != nil || moved != to {
			return errors.Join(fmt.Errorf("%w: the database is moved into an empty one only", err), failed)
		}
		return nil // an earlier run was interrupted at its end
	} else if err != nil {
		return err
	}
	if !skip {
		bar := cli.NewBar(u.Err, "verifying", u.JSON)
		defer bar.Done()
		u.inventory.Progress = bar.Progress()
		sum, err := u.inventory.Verify(ctx, inventory.VerifyOptions{Digest: true}, func(f inventory.Finding) {
			if f.Problem != inventory.Unnamed {
				u.finding(f)
			}
		})
		if n := sum.Missing + sum.Damaged; err == nil && n > 0 {
			err = fmt.Errorf("%d copies of files are missing or damaged; nothing was moved: --skip-files moves the database all the same", n)
		}
		if err != nil {
			return err
		}
	}
	u.Status("moving the database")
	r, w := io.Pipe()
	dumped := make(chan struct{})
	go func() {
		defer close(dumped)
		_ = w.CloseWithError(database.Dump(ctx, u.source, "", os.Getenv("PATH"), w)) // never fails
	}()
	marked := false
	err := postgres.Load(ctx, conn, r, func(context.Context, pgx.Tx) error {
		marked = true // before the commit, so that takt never runs on both
		return database.MarkMoved(u.cfg.DataDir, to)
	})
	_ = r.CloseWithError(err) // never fails
	<-dumped
	if err != nil && marked {
		return fmt.Errorf("%w; run it again: the embedded database is marked as moved until its outcome is known", err)
	}
	return err
}

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
	pool := database.PoolConfig{Source: source, Size: 4, Sinks: []database.PoolUser{u.db}, Migrate: postgres.WithKeyCheck(u.keys)}
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
