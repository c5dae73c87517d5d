package upkeep

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// Rekey returns takt rekey.
func Rekey() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "rekey", Short: "Seal everything with the current encryption key",
		Long: `Seal everything with the current encryption key: certificates, secrets, forge
credentials and HubSpot's tokens that are sealed with one of TAKT_OLD_ENCRYPTION_KEYS. Works on the
data directory, database and bucket of 'takt serve', with the same settings.

Safe while takt serves. If interrupted, run it again; it continues where it stopped.
Exit code 0 means that nothing is left under an old key; the output says when the
old keys can be removed. Start every controller with the new key first; see
docs/operate.md.`,
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what each key has sealed")
	check := func(cfg settings.Config) error {
		raw, _ := base64.StdEncoding.DecodeString(cfg.EncryptionKey) // load has checked it; one that takt made is in a file
		if why := edge.Guessable(string(raw)); len(raw) > 0 && why != "" && !dryRun {
			return fmt.Errorf("encryption-key: the new key is easy to guess: %s (make one: head -c 32 /dev/urandom | base64)", why)
		}
		return sameUser(cfg)
	}
	return upkeepCommand(cmd, "", check, func(ctx context.Context, u *upkeep, _ []string) error {
		r := &rekeying{
			upkeep: u, dryRun: dryRun, values: postgres.NewSealed(u.db), rows: postgres.NewFiles(u.db), begun: time.Now(),
			bar: cli.NewCountBar(u.Err, "sealing", u.JSON),
		}
		defer r.bar.Done()
		return r.audited(ctx)
	})
}

// sameUser returns an error if the data directory belongs to another user, because the
// serving takt could not read files that this user makes.
func sameUser(cfg settings.Config) error {
	info, err := os.Stat(filepath.Join(cfg.DataDir, "files"))
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(cfg.DataDir)
	}
	if err != nil {
		return nil //nolint:nilerr // there is nothing yet, or what follows says it better
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("data-dir: its files belong to user %d: run this command as that user", st.Uid)
	}
	return nil
}

// tally counts the results for one kind.
type tally struct {
	Kind seal.Kind `json:"kind"`
	// Resealed counts what this run sealed anew. Current counts what is sealed with the
	// current key.
	Resealed int `json:"resealed"`
	Current  int `json:"current"`
	// Left counts what is still sealed with other keys, by key id.
	Left map[string]int `json:"left,omitempty"`
	// Lost counts the files that a row names and that are damaged or can't be found from
	// here.
	Lost int `json:"lost,omitempty"`
}

func (t *tally) add(key, current seal.ID, n int) {
	if key == current {
		t.Current += n
		return
	}
	if t.Left == nil {
		t.Left = map[string]int{}
	}
	t.Left[key.String()] += n
}

func (t *tally) left() (n int) {
	for _, k := range t.Left {
		n += k
	}
	return n
}

// rekeying is one run of the command. A dry run only counts.
type rekeying struct {
	*upkeep
	dryRun bool
	values *postgres.Sealed
	rows   *postgres.Files
	begun  time.Time
	bar    *cli.Bar
}

// rekeyPage is how many rows are read at once.
const rekeyPage = 100

// audited calls run. It adds an entry to the audit unless this is a dry run.
func (r *rekeying) audited(ctx context.Context) error {
	if r.dryRun {
		return r.run(ctx)
	}
	audit := postgres.NewAudit(r.db)
	id, err := audit.Append(ctx, store.AuditEntry{Actor: "takt rekey", Action: "rekey", Target: "encryption key " + r.keys.Current().String()})
	if err != nil {
		return err
	}
	err = r.run(ctx)
	outcome := "ok"
	if err != nil {
		outcome = err.Error()
	}
	return errors.Join(err, audit.Conclude(context.WithoutCancel(ctx), id, outcome))
}

func (r *rekeying) run(ctx context.Context) error {
	files, err := r.certificates(ctx)
	if err != nil {
		return err
	}
	tallies, left := []tally{files}, files.left()
	for _, kind := range []seal.Kind{seal.ForgeCredential, seal.AccessToken, seal.RefreshToken, seal.NoticeSecrets, seal.Secret, seal.KeyCheck} {
		// The check value is sealed last, so that no controller starts without the old
		// keys until everything else is done.
		t, err := r.column(ctx, kind, kind == seal.KeyCheck && left > 0)
		if err != nil {
			return err
		}
		tallies, left = append(tallies, t), left+t.left()
	}
	r.bar.Done()
	return r.report(tallies, left, files.Lost)
}

// problem reports something that can't be opened.
func (r *rekeying) problem(kind seal.Kind, name string, err error) {
	// The final write reports a closed pipe.
	_ = r.Say(map[string]any{"kind": kind, "name": name, "problem": err.Error()}, "%s %s: %s", kind, store.Lines(name), store.Lines(err.Error()))
}

// certificates seals all files anew. The bar counts only files, because every other value
// takes just one row.
func (r *rekeying) certificates(ctx context.Context) (tally, error) {
	t := tally{Kind: seal.Certificates}
	total, err := r.rows.CountCerts(ctx)
	if err != nil {
		return t, err
	}
	var after store.FileKey
	for done := 0; ; {
		page, err := r.rows.PageCerts(ctx, after, rekeyPage)
		if err != nil || len(page) == 0 {
			return t, err
		}
		for _, row := range page {
			if ctx.Err() != nil {
				return t, context.Cause(ctx)
			}
			if err := r.certificate(ctx, row, &t); err != nil {
				return t, err
			}
			after = row.FileKey
			done++
			r.bar.Show(int64(done), int64(max(done, total)), "sealing")
		}
	}
}

// certificate seals the copies of one file anew.
func (r *rekeying) certificate(ctx context.Context, row store.FileRow, t *tally) error {
	var missing error
	found := false
	for _, remote := range []bool{false, true} {
		if remote && !row.Location.Remote() || !remote && !row.Location.Local() {
			continue
		}
		err := r.copyOf(ctx, row, remote, t)
		switch {
		case store.CodeOf(err) == store.NotFound:
			missing = err
			continue
		case seal.Broken(err), errors.Is(err, storage.ErrDamaged):
			r.problem(t.Kind, row.Name, err)
		case err != nil:
			return err
		}
		found = true
	}
	if found {
		return nil
	}
	// The file was moved or removed meanwhile, or it is on another controller's disk.
	now, err := r.rows.Find(ctx, row.FileKey)
	switch {
	case store.CodeOf(err) == store.NotFound:
		return nil
	case err != nil:
		return err
	case now.Location != row.Location || now.Object != row.Object:
		return r.certificate(ctx, now, t)
	}
	t.Lost++
	r.problem(t.Kind, row.Name, missing)
	return nil
}

// copyOf seals one copy of a file anew, and counts it.
func (r *rekeying) copyOf(ctx context.Context, row store.FileRow, remote bool, t *tally) error {
	key, err := r.files.KeyOf(ctx, row, remote)
	if err == nil && key != r.keys.Current() && !r.dryRun {
		if err = r.files.Reseal(ctx, row, remote); err == nil {
			key = r.keys.Current()
			t.Resealed++
		}
	}
	switch {
	case err == nil, errors.Is(err, seal.ErrUnknownKey):
		t.add(key, r.keys.Current(), 1)
	case errors.Is(err, seal.ErrDamaged), errors.Is(err, storage.ErrDamaged):
		t.Lost++
	}
	return err
}

// column seals the values of a kind that is kept in rows anew. If hold is set, it only
// counts them.
func (r *rekeying) column(ctx context.Context, kind seal.Kind, hold bool) (tally, error) {
	t := tally{Kind: kind}
	for after := ""; !hold && !r.dryRun; {
		page, err := r.values.Page(ctx, kind, r.keys.Current(), after, rekeyPage)
		if err != nil {
			return t, err
		}
		if len(page) == 0 {
			break
		}
		for _, v := range page {
			after = v.ID
			content, err := r.keys.Open(kind, v.ID, v.Value)
			if err != nil {
				r.problem(kind, v.ID, err)
				continue
			}
			done, err := r.values.Replace(ctx, kind, v, r.keys.Seal(kind, v.ID, content))
			if err != nil {
				return t, err
			}
			if done { // otherwise a controller has just changed or removed it
				t.Resealed++
			}
		}
	}
	counts, err := r.values.Count(ctx)
	for key, n := range counts[kind] {
		t.add(key, r.keys.Current(), n)
	}
	return t, err
}

// report shows the results. It returns an error if anything is left or lost.
func (r *rekeying) report(tallies []tally, left, lost int) error {
	may := r.begun.Add(store.WorkerTokenTTL)
	sum := map[string]any{"key": r.keys.Current().String(), "kinds": tallies, "left": left, "lost": lost}
	if left+lost == 0 {
		sum["old_keys_may_go"] = may.UTC().Format(time.RFC3339)
	}
	err := r.Result(summary{sum}, func(w io.Writer) {
		cli.List(w, []string{"KIND", "SEALED ANEW", "CURRENT KEY", "LEFT"}, tallies, func(t tally) []string {
			var under []string
			for _, key := range slices.Sorted(maps.Keys(t.Left)) {
				under = append(under, fmt.Sprintf("%d under %s", t.Left[key], key))
			}
			return []string{string(t.Kind), strconv.Itoa(t.Resealed), strconv.Itoa(t.Current), cmp.Or(strings.Join(under, ", "), "0")}
		})
		if left+lost == 0 {
			fmt.Fprintf(w, "done; old keys can be removed after %s, "+
				"when the last worker token signed with them has expired\n", may.Format(time.TimeOnly))
		}
	})
	switch {
	case err != nil:
		return err
	case left > 0 && r.dryRun:
		return fmt.Errorf("%d values are under other keys than %s", left, r.keys.Current())
	case left > 0:
		return fmt.Errorf("%d values are left under old keys: give these in TAKT_OLD_ENCRYPTION_KEYS, "+
			"start every controller with the new one, run takt rekey again", left)
	case lost > 0:
		return fmt.Errorf("%d certificates are damaged, or not in reach of this machine: see takt storage verify", lost)
	}
	return nil
}
