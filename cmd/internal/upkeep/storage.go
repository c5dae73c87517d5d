package upkeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"takt/actors/database"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/storage"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// Storage returns takt storage.
func Storage() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "storage", Short: "Check and copy the files of builds",
		Long: `Check and copy the files of builds. These commands work on the data directory,
database and bucket of 'takt serve', with the same settings, whether takt runs or not.`,
	}, newStorageVerifyCommand(), newStorageMigrateCommand())
}

// upkeep is one run of a storage command.
type upkeep struct {
	cli.Output
	cfg       settings.Config
	inventory inventory.Inventory
	db        *postgres.DB
	source    database.Source
	files     *storage.Files
	keys      *seal.Ring
}

// settingsCommand makes do the body of cmd, with the settings of 'takt serve' and their
// keys. It first calls check, which checks the flags; it may be nil.
func settingsCommand(cmd *cobra.Command, check func(cfg settings.Config) error, do func(ctx context.Context, u *upkeep, args []string) error) *cobra.Command {
	var file string
	var asJSON bool
	settings.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "YAML file of settings")
	cmd.Flags().BoolVar(&asJSON, "json", false, "results as JSON, one value per line")
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	cmd.RunE = cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) (err error) {
		cfg, err := settings.Load(settings.RealSources(file, cmd.Flags()))
		if err == nil && check != nil {
			err = check(cfg)
		}
		if err == nil {
			err = readEncryptionKey(&cfg)
		}
		var keys *seal.Ring
		if err == nil {
			keys, err = cfg.Ring()
		}
		if err != nil {
			return cli.AsUsage(err)
		}
		out := cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: asJSON}
		return do(ctx, &upkeep{Output: out, cfg: cfg, keys: keys}, args)
	})
	return cmd
}

// upkeepCommand is settingsCommand with the files and the database open.
func upkeepCommand(cmd *cobra.Command, label string, check func(cfg settings.Config) error, do func(ctx context.Context, u *upkeep, args []string) error) *cobra.Command {
	return settingsCommand(cmd, check, func(ctx context.Context, u *upkeep, args []string) (err error) {
		if u.files, err = settings.OpenFiles(u.cfg, u.keys); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, u.files.Close()) }()
		closeDB, err := u.openDatabase(ctx, reaching{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeDB()) }()
		bar := cli.NewBar(u.Err, label, u.JSON)
		defer bar.Done()
		u.inventory.Progress = bar.Progress()
		return do(ctx, u, args)
	})
}

// finding reports a file that is missing, damaged or otherwise wrong.
func (u *upkeep) finding(f inventory.Finding) {
	_ = u.Result(f, func(w io.Writer) { // the final write reports a closed pipe
		fmt.Fprintf(w, "%-8s %-5s %s", f.Problem, f.Location, store.Lines(f.Name))
		if f.Detail != "" {
			fmt.Fprintf(w, "  (%s)", store.Lines(f.Detail))
		}
		fmt.Fprintln(w)
	})
}

// conclude shows a summary. It returns an error if there was something bad, whose number fault
// takes.
func (u *upkeep) conclude(sum any, bad int64, fault, format string, args ...any) error {
	err := u.Say(summary{sum}, format, args...)
	if err == nil && bad > 0 {
		err = fmt.Errorf(fault, bad)
	}
	return err
}

// summary is the last line of the JSON output.
type summary struct {
	Summary any `json:"summary"`
}

func newStorageVerifyCommand() *cobra.Command {
	var o inventory.VerifyOptions
	cmd := &cobra.Command{
		Use: "verify", Short: "Check files for loss or damage",
		Long: `Check that every file that the database names exists and has its size, with
--digest also its content, and list files that the database does not name (the janitor
removes them once they are a day old). Exit code 1 if a file is missing or damaged.
Changes nothing; safe while takt serves.`,
	}
	cmd.Flags().BoolVar(&o.Digest, "digest", false, "read every file and compare its SHA-256")
	cmd.Flags().BoolVar(&o.AnyCopy, "any-copy", false, "accept one good copy of two, as where each of several controllers has its own disk")
	return upkeepCommand(cmd, "verifying", nil, func(ctx context.Context, u *upkeep, _ []string) error {
		sum, err := u.inventory.Verify(ctx, o, u.finding)
		if err != nil {
			return fmt.Errorf("verifying: %w", err)
		}
		return u.conclude(sum, sum.Missing+sum.Damaged, "%d copies of files are missing or damaged",
			"%d files of %d bytes: %d missing, %d damaged; %d that nothing names", sum.Files, sum.Bytes, sum.Missing, sum.Damaged, sum.Unnamed)
	})
}

func newStorageMigrateCommand() *cobra.Command {
	var to string
	var prune bool
	cmd := &cobra.Command{
		Use: "migrate --to s3|local|dual", Short: "Copy files between the disk and S3",
		Long: `Copy every file to S3, to this disk, or to both, unless it is there already, and
check its digest. Copies are used at once, whatever --storage says; change that setting
to store new files there as well.

Safe while takt serves. If interrupted, run it again; it continues where it stopped.
Exit code 1 if some file has no good copy.`,
	}
	cmd.Flags().StringVar(&to, "to", "", "s3, local or dual (required)")
	cmd.Flags().BoolVar(&prune, "prune", false, "afterwards remove each copy in the other place, once the remaining one has been read")
	check := func(cfg settings.Config) error {
		switch mode := storage.Mode(to); {
		case !mode.Valid():
			return errors.New("--to must be s3, local or dual")
		case prune && mode == storage.ModeDual:
			return errors.New("--prune does not go with --to dual, which keeps both copies")
		case !cfg.UsesS3():
			return errors.New("no S3 is configured: set TAKT_S3_ENDPOINT and what belongs to it")
		}
		return nil
	}
	return upkeepCommand(cmd, "copying", check, func(ctx context.Context, u *upkeep, _ []string) error {
		begun := time.Now()
		sum, err := u.inventory.Migrate(ctx, inventory.MigrateOptions{To: storage.Mode(to), Prune: prune}, u.finding)
		if err != nil {
			return fmt.Errorf("migrating, %d files copied so far: %w", sum.Copied, err)
		}
		return u.conclude(sum, sum.Failed, "%d files have no good copy to copy", "%d files: %d copied (%d bytes in %s), %d copies removed, %d failed",
			sum.Files, sum.Copied, sum.Bytes, time.Since(begun).Round(time.Millisecond), sum.Pruned, sum.Failed)
	})
}
