package upkeep

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"takt/actors/database"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/http/api"
	"takt/http/edge"
	"takt/storage"
	"takt/storage/backup"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// Backup returns takt backup.
func Backup() *cobra.Command {
	var keep int
	cmd := &cobra.Command{
		Use: "backup DIR", Short: "Back up the database and the files of builds", Args: cobra.ExactArgs(1),
		Long: `Back up the database and the files of builds into a directory: a dump of one
instant, and every file that it names and that the directory does not have yet.
Takes the settings of 'takt serve', whether takt runs or not, and needs pg_dump.
An interrupted backup does not count; run the command again to complete it.

The encryption key is not in the backup. Keep it in another safe place: without it,
certificates and credentials can't be read.

Exit code 1 also if some file has no good copy to back up.`,
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "afterwards keep only this many of the newest backups; 0 keeps all")
	check := func(settings.Config) error {
		if keep < 0 {
			return errors.New("--keep must not be negative")
		}
		return nil
	}
	upkeepCommand(cmd, "backing up", check, func(ctx context.Context, u *upkeep, args []string) error {
		return u.backup(ctx, args[0], keep)
	})
	cmd.AddCommand(newBackupVerifyCommand())
	return cmd
}

// backedUp is the result of a backup.
type backedUp struct {
	backup.Manifest
	Copied  int64 `json:"copied"`
	Written int64 `json:"copied_bytes"`
	Removed int   `json:"removed_backups"`
}

func (u *upkeep) backup(ctx context.Context, path string, keep int) (err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("making the directory of backups: %w", err)
	}
	lock, err := database.LockDataDir(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	dir := backup.Open(path)
	if err := dir.Begin(); err != nil {
		return err
	}
	begun := time.Now().UTC()
	b := backedUp{Manifest: backup.Manifest{Name: begun.Format("20060102T150405.000Z"), At: begun, Takt: cli.Version()}}
	err = dir.Dump(&b.Manifest, func(w io.Writer) error {
		return database.Dump(ctx, u.source, u.cfg.PastPooler(), os.Getenv("PATH"), w)
	})
	if err != nil {
		return err
	}
	_, total, err := u.inventory.Rows.Count(ctx)
	if err != nil {
		return err
	}
	b.KeyCheck, err = dir.Rows(b.Manifest, func(row store.FileRow) error {
		if u.inventory.Progress != nil {
			u.inventory.Progress(b.Bytes, max(b.Bytes, total))
		}
		return u.keepFile(ctx, dir, row, &b)
	})
	if err != nil {
		return err
	}
	if id, err := seal.KeyOf(b.KeyCheck); err == nil {
		b.Key = id.String()
	}
	if err := dir.Finish(b.Manifest); err != nil {
		return err
	}
	if keep > 0 {
		if b.Removed, err = dir.Prune(ctx, keep); err != nil {
			return err
		}
	}
	err = u.conclude(b, int64(len(b.Missing)), "%d files have no good copy in reach of this machine: see takt storage verify",
		"backup %s: %d files of %s, of which %d (%s) were copied now, and %d were removed meanwhile; %d missing",
		b.Name, b.Files, humanize.IBytes(uint64(b.Bytes)), b.Copied, humanize.IBytes(uint64(b.Written)), len(b.Gone), len(b.Missing))
	u.Note("the encryption key %s is not in the backup: keep it in another safe place, because certificates can't be opened without it", b.Key)
	return err
}

// keepFile backs up the file of a row of the dump, or notes in b why it can't.
func (u *upkeep) keepFile(ctx context.Context, dir *backup.Dir, row store.FileRow, b *backedUp) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	n, err := dir.Keep(ctx, u.files, u.keys.Current(), row)
	if err == nil {
		b.Files, b.Bytes = b.Files+1, b.Bytes+row.Size
		if n > 0 {
			b.Copied, b.Written = b.Copied+1, b.Written+n
		}
		return nil
	}
	f := inventory.Finding{Problem: inventory.Missing, Location: row.Location, Name: row.Name, Build: row.BuildID, Kind: row.Kind, Size: row.Size}
	if errors.Is(err, storage.ErrDamaged) {
		f.Problem, f.Detail = inventory.Damaged, err.Error()
	} else if store.CodeOf(err) != store.NotFound {
		return err
	}
	now, err := u.inventory.Rows.Find(ctx, row.FileKey)
	switch {
	case store.CodeOf(err) == store.NotFound, err == nil && now.SHA256 != row.SHA256:
		b.Gone = append(b.Gone, row.Name) // since the dump
	case err != nil:
		return err
	case now.Location != row.Location || now.Object != row.Object:
		return u.keepFile(ctx, dir, now, b)
	default:
		b.Missing = append(b.Missing, row.Name)
		u.finding(f)
	}
	return nil
}

func newBackupVerifyCommand() *cobra.Command {
	u := &upkeep{}
	cmd := &cobra.Command{
		Use: "verify DIR", Short: "Check backups for loss or damage", Args: cobra.ExactArgs(1),
		Long: `Read every backup in a directory and check that each dump and file still has its
SHA-256, and that no file is missing. Exit code 1 otherwise. Needs no database,
settings or keys, and changes nothing.`,
	}
	cmd.Flags().BoolVar(&u.JSON, "json", false, "results as JSON, one value per line")
	cmd.RunE = cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		u.Out, u.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
		sum, err := backup.Open(args[0]).Verify(ctx, u.finding)
		if err != nil {
			return fmt.Errorf("verifying: %w", err)
		}
		return u.conclude(sum, sum.Missing+sum.Damaged, "%d dumps or files are missing or damaged",
			"%d backups, %d files of %s: %d missing, %d damaged", sum.Backups, sum.Files, humanize.IBytes(uint64(sum.Bytes)), sum.Missing, sum.Damaged)
	})
	return cmd
}

// Restore returns takt restore.
func Restore() *cobra.Command {
	var name string
	var partial bool
	keys := postgres.RestoredKeys{}
	var replaced string
	cmd := &cobra.Command{
		Use: "restore DIR", Short: "Restore a backup into an empty database", Args: cobra.ExactArgs(1),
		Long: `Restore a backup of 'takt backup' into an empty database and the storage of the
settings, while takt is stopped. Each file's SHA-256 is checked first, and the
database is filled in one transaction. If interrupted, run it again. Needs the
encryption key of the backup, in TAKT_ENCRYPTION_KEY or DATA_DIR/encryption-key.

The database gets a new installation id, which makes workers' tokens invalid; workers
register again by themselves. Whatever happened after the backup is lost.

Keys that were revoked after the backup stay revoked as far as the newer backups in DIR
and the database of --replaced know of them, and every enrolment token ends. The output
names the keys that are valid: revoke again what else was revoked since.`,
	}
	cmd.Flags().StringVar(&name, "backup", "", "backup to restore (default: the newest)")
	cmd.Flags().StringVar(&replaced, "replaced", "", "URL of the database that this one replaces, if it can still be read: its revoked keys stay revoked")
	cmd.Flags().BoolVar(&keys.Revive, "revive-keys", false, "leave keys and enrolment tokens as they were in the backup, also those revoked or spent since")
	cmd.Flags().BoolVar(&partial, "partial", false, "restore even if files are missing or damaged, without those files")
	check := func(cfg settings.Config) error {
		if _, err := os.Stat(filepath.Join(cfg.DataDir, "encryption-key")); err != nil && cfg.EncryptionKey == "" {
			return fmt.Errorf("the encryption key of the backup's time is needed: set TAKT_ENCRYPTION_KEY, or put it into %s", filepath.Join(cfg.DataDir, "encryption-key"))
		}
		return sameUser(cfg)
	}
	return settingsCommand(cmd, check, func(ctx context.Context, u *upkeep, args []string) error {
		dir := backup.Open(args[0])
		m, err := chooseBackup(dir, name)
		if err == nil {
			err = postgres.OpensKeyCheck(u.keys, m.KeyCheck)
		}
		if err != nil {
			return err
		}
		var unread []error
		if !keys.Revive {
			if keys.Revoked, unread, err = revokedSince(ctx, dir, m, replaced); err != nil {
				return err
			}
		}
		for _, err := range unread {
			fmt.Fprintf(cmd.ErrOrStderr(), "takt: a newer backup can't be read, so keys that were revoked before it may be valid again: %v\n", err)
		}
		return u.restore(ctx, dir, m, partial, &keys, replaced != "")
	})
}

// chooseBackup returns the backup called name, or the newest.
func chooseBackup(dir *backup.Dir, name string) (m backup.Manifest, err error) {
	all, err := dir.List()
	if err != nil {
		return m, err
	}
	if i := slices.IndexFunc(all, func(m backup.Manifest) bool { return m.Name == name }); i >= 0 {
		return all[i], nil
	}
	m = all[len(all)-1]
	if name != "" {
		err = cli.Usage("--backup: there is no %q; the newest is %s", name, m.Name)
	}
	return m, err
}

// revokedSince returns the names of the keys that are revoked in the backups that are newer than
// m, or in the database at a URL, and why some of those backups can't be read: one that is damaged
// is why an older one is restored.
func revokedSince(ctx context.Context, dir *backup.Dir, m backup.Manifest, url string) (names []string, unread []error, err error) {
	all, err := dir.List()
	if err != nil {
		return nil, nil, err
	}
	for _, newer := range all {
		if newer.At.After(m.At) {
			err := dir.ReadDump(newer, func(r io.Reader) error {
				more, err := postgres.ReadRevokedKeys(r)
				names = append(names, more...)
				return err
			})
			if err != nil {
				unread = append(unread, fmt.Errorf("backup %s: %w", newer.Name, err))
			}
		}
	}
	if url == "" {
		return names, unread, nil
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, nil, cli.Usage("--replaced: %v", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	more, err := postgres.RevokedKeys(ctx, conn)
	return append(names, more...), unread, err
}

func (u *upkeep) restore(ctx context.Context, dir *backup.Dir, m backup.Manifest, partial bool, keys *postgres.RestoredKeys, all bool) (err error) {
	if err := settings.OpenDataDir(u.cfg.DataDir, zerolog.Nop()); err != nil {
		return err
	}
	conn, closeDB, err := u.openAlone(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDB()) }()
	if err := postgres.Vacant(ctx, conn); errors.Is(err, postgres.ErrOccupied) {
		return fmt.Errorf("%w: a backup is restored into an empty one only (an interrupted restore leaves it empty)", err)
	} else if err != nil {
		return err
	}
	if u.files, err = settings.OpenFiles(u.cfg, u.keys); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.files.Close()) }()

	to := postgres.Restored{Location: store.OnDisk, CopyPending: u.cfg.Storage == string(storage.ModeDual), Lost: append(m.Gone, m.Missing...)}
	if u.cfg.Storage == string(storage.ModeS3) {
		to.Location, to.Suffix = store.InS3, "-"+strings.ToLower(rand.Text())
	}
	bar := cli.NewBar(u.Err, "restoring files", u.JSON)
	defer bar.Done()
	to.Keys = keys
	var sum struct {
		Name  string `json:"name"`
		Files int64  `json:"files"`
		Bytes int64  `json:"bytes"`
		Lost  int    `json:"lost"`
		// The names of the keys that stay revoked, and of those that are valid.
		Revoked []string `json:"revoked_keys"`
		Valid   []string `json:"valid_keys"`
	}
	bad := 0
	_, err = dir.Rows(m, func(row store.FileRow) error {
		bar.Show(sum.Bytes, m.Bytes, "restoring files")
		found, err := u.restoreFile(ctx, dir, row, to.Suffix)
		switch {
		case err != nil:
			return err
		case found != nil:
			bad++
			to.Lost = append(to.Lost, row.Name)
			u.finding(*found)
		default:
			sum.Files, sum.Bytes = sum.Files+1, sum.Bytes+row.Size
		}
		return nil
	})
	bar.Done()
	if err != nil {
		return err
	}
	if bad > 0 && !partial {
		return fmt.Errorf("%d files of the backup are missing or damaged; nothing was put into the database: --partial restores the rest", bad)
	}
	to.Report = func(r store.DiagnosticReport) error {
		content, err := edge.Marshal(api.NewDiagnosticReport(r))
		if err != nil {
			return err
		}
		file := store.File{Name: r.File.Name, Size: int64(len(content)), SHA256: sha256.Sum256(content)}
		return u.files.Restore(ctx, store.FileRow{File: file}, to.Suffix, struct {
			*bytes.Reader
			io.Closer
		}{bytes.NewReader(content), io.NopCloser(nil)})
	}
	to.Audit = store.AuditEntry{Actor: "takt restore", Action: "restore", Target: "backup " + m.Name, Outcome: "ok"}
	u.Status("restoring the database")
	if err = dir.ReadDump(m, func(r io.Reader) error { return postgres.Load(ctx, conn, r, to.Finish) }); err != nil {
		return err
	}
	sum.Name, sum.Lost, sum.Revoked, sum.Valid = m.Name, len(to.Lost), keys.Kept, keys.Valid
	err = u.Say(summary{sum}, "backup %s of %s is restored: %d files of %s; %d files that it names are not in it",
		m.Name, cli.Time(m.At), sum.Files, humanize.IBytes(uint64(sum.Bytes)), sum.Lost)
	if len(keys.Kept) > 0 {
		u.Note("keys that stay revoked, and enrolment tokens that end: %s", strings.Join(keys.Kept, ", "))
	}
	if len(keys.Valid) > 0 {
		u.Note("keys that are valid: %s", strings.Join(keys.Valid, ", "))
	}
	if len(keys.Valid) > 0 && !all {
		u.Note("whether one of them was revoked after the last backup can't be known here: revoke again what was revoked since %s", cli.Time(m.At))
	}
	u.Note("start takt serve with the same settings and encryption key; workers register again by themselves")
	return err
}

// restoreFile stores the file of a row of the dump. It returns a finding if no copy of it
// in the backup is good.
func (u *upkeep) restoreFile(ctx context.Context, dir *backup.Dir, row store.FileRow, suffix string) (*inventory.Finding, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	found := &inventory.Finding{Problem: inventory.Missing, Location: backup.InBackup, Name: row.Name, Build: row.BuildID, Kind: row.Kind, Size: row.Size}
	for _, path := range dir.Find(row) {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("reading the backup: %w", err)
		}
		err = u.files.Restore(ctx, row, suffix, f)
		_ = f.Close() // it was only read
		switch {
		case err == nil:
			return nil, nil // nothing is wrong
		case !errors.Is(err, storage.ErrDamaged):
			return nil, err
		}
		found.Problem, found.Detail = inventory.Damaged, err.Error()
	}
	return found, nil
}
