package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"takt/actors/database"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/settings"
	"takt/http/client"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// Command returns takt doctor.
func Command(env cli.Environment) *cobra.Command {
	var r cli.Remote
	var file, pollWait string
	// remoteFlags are those that a check of another machine's controller has.
	remoteFlags := []string{"url", "api-key", "api-key-file", "ca-file", "json", "poll-wait"}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find problems of a set-up, and say how to fix them", Args: cobra.NoArgs,
		Long: `Find problems of a set-up, and say how to fix them. Each check is ok, a warning (it
works, but could be better or safer) or failed. Exit code 1 if one failed.

Without --url (or TAKT_URL), or with a setting such as --data-dir, it checks this machine, with the settings of 'takt serve',
before the first start or while takt runs: settings, data directory, keys and their
modes, disk and fsync, clock, limits, database, S3 and certificate, and the public URL
if takt runs.

With --url it checks a controller from here, with its keys in TAKT_API_KEY and
TAKT_ADMIN_KEY: health, clock, keys, what needs attention (as 'takt attention' and the
dashboard say it), and whether a proxy in between passes streams and long polls. For that it registers a worker named 'takt doctor', which takes no builds,
polls once and is deleted.`,
	}
	f := cmd.Flags()
	settings.AddFlags(f)
	f.StringVar(&file, "config", "", "YAML file of settings")
	f.StringVar(&r.URL, "url", "", "controller to check instead of this machine (TAKT_URL)")
	f.StringVar(&r.APIKeyFile, "api-key-file", "", "file that holds the API key, with --url")
	f.StringVar(&r.CAFile, "ca-file", "", "PEM file of certificate authorities to trust for an https controller, instead of the system's (TAKT_CA_FILE)")
	f.BoolVar(&r.JSON, "json", false, "results as JSON, one value per line")
	f.StringVar(&pollWait, "poll-wait", "30s", "how long the poll stays open, 1s to 60s; use that of your workers")
	cmd.RunE = cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		wait, err := time.ParseDuration(pollWait)
		if err != nil || wait < time.Second || wait > time.Minute {
			return cli.Usage("--poll-wait must be 1s to 60s")
		}
		d := doctor{Output: cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: r.JSON}, poll: wait}
		r.Env, r.APIKey = env, f.Lookup("api-key").Value.String()
		own := ""
		f.Visit(func(flag *pflag.Flag) {
			if !slices.Contains(remoteFlags, flag.Name) {
				own = "--" + flag.Name
			}
		})
		switch {
		case own != "" && r.URL != "":
			return cli.Usage("%s is a setting of this machine's takt: leave it out, or --url", own)
		case own != "" && env.Get("TAKT_URL") != "":
			d.well("target", "this machine, because of %s; TAKT_URL is left aside", own)
		}
		if r.URL == "" && (own != "" || env.Get("TAKT_URL") == "") {
			cfg, err := settings.Load(settings.RealSources(file, f))
			d.settings(err)
			d.machine(ctx, cfg, r)
		} else {
			s, err := r.Open(cmd)
			if err != nil {
				return err
			}
			defer s.Client.CloseIdle()
			d.controller(ctx, s.Client, env.Get("TAKT_ADMIN_KEY") != "")
		}
		if d.failed > 0 {
			return fmt.Errorf("%d failed, %d warnings", d.failed, d.doubtful)
		}
		return context.Cause(ctx)
	})
	return cmd
}

// diagnosis is the result of one check.
type diagnosis struct {
	Check  string `json:"check"`
	Result result `json:"result"`
	Found  string `json:"found"`
	Mend   string `json:"mend,omitempty"` // what to do, unless the result is ok
}

// result is what a check came to.
type result string

const (
	resultOK      result = "ok"
	resultWarning result = "warning"
	resultFailed  result = "failed"
)

// doctor looks for what is wrong and shows it at once.
type doctor struct {
	cli.Output
	poll             time.Duration // how long a poll is open
	failed, doubtful int           // checks that failed, and warnings
}

func (d *doctor) tell(g diagnosis) {
	switch g.Result {
	case resultFailed:
		d.failed++
	case resultWarning:
		d.doubtful++
	case resultOK:
	}
	_ = d.Result(g, func(w io.Writer) { // the last line reports a closed pipe
		word := fmt.Sprintf("%-7s", g.Result)
		if cli.Colour(w) {
			word = map[result]string{resultOK: "\x1b[32m", resultWarning: "\x1b[33m", resultFailed: "\x1b[31m"}[g.Result] + word + "\x1b[0m"
		}
		fmt.Fprintf(w, "%s  %-14s  %s\n", word, g.Check, store.Lines(g.Found))
		if g.Mend != "" {
			fmt.Fprintf(w, "%25s-> %s\n", "", store.Lines(g.Mend))
		}
	})
}

func (d *doctor) well(check, format string, args ...any) {
	d.tell(diagnosis{Check: check, Result: resultOK, Found: fmt.Sprintf(format, args...)})
}

func (d *doctor) bad(check, mend, format string, args ...any) {
	d.tell(diagnosis{Check: check, Result: resultFailed, Found: fmt.Sprintf(format, args...), Mend: mend})
}

func (d *doctor) warn(check, mend, format string, args ...any) {
	d.tell(diagnosis{Check: check, Result: resultWarning, Found: fmt.Sprintf(format, args...), Mend: mend})
}

// suspect tells that a check could not be made because of err, or that it found something: a
// warning if doubtful is set.
func (d *doctor) suspect(check string, err error, access string, doubtful bool, mend, format string, args ...any) {
	switch {
	case err != nil:
		d.bad(check, access, "%v", err)
	case doubtful:
		d.warn(check, mend, format, args...)
	default:
		d.well(check, format, args...)
	}
}

// settings tells the faults of load.
func (d *doctor) settings(err error) {
	if err == nil {
		d.well("settings", "each is known and possible")
		return
	}
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for _, fault := range faults {
		d.bad("settings", "takt help serve and docs/settings.md list them; takt serve --check shows what applies", "%v", fault)
	}
}

// machine looks at this machine as `takt serve` would find it.
func (d *doctor) machine(ctx context.Context, cfg settings.Config, r cli.Remote) {
	running := d.dataDir(cfg)
	d.disk(cfg.DataDir)
	d.limits(cfg)
	d.timekeeping(clockSynchronised())
	d.address(ctx, cfg, running)
	d.certificate(cfg)
	keys := cfg
	readKept(&keys)
	var ring *seal.Ring
	if keys.EncryptionKey != "" {
		ring, _ = keys.Ring() // its faults are those of the settings
	}
	d.database(ctx, cfg, ring, running)
	d.bucket(ctx, cfg)
	switch {
	case cfg.PublicURL == "":
	case !running:
		d.well("public URL", "not asked, because takt does not run here")
	default:
		d.publicly(ctx, keys, r)
	}
}

// readKept fills in the keys that are kept in the data directory, as far as they are. The
// first start makes the others.
func readKept(cfg *settings.Config) {
	for name, value := range map[string]*string{"api-key": &cfg.APIKey, "admin-key": &cfg.AdminKey, "encryption-key": &cfg.EncryptionKey} {
		if *value == "" {
			*value, _ = cli.ReadSecret(name, filepath.Join(cfg.DataDir, name))
		}
	}
}

// dataDir looks at the data directory and reports whether takt runs on it.
func (d *doctor) dataDir(cfg settings.Config) (running bool) {
	const check = "data directory"
	if _, err := os.Stat(cfg.DataDir); errors.Is(err, fs.ErrNotExist) {
		d.well(check, "%s will be made at the first start", cfg.DataDir)
		return false
	}
	faults, err := settings.DataDirFaults(cfg.DataDir)
	for _, f := range faults {
		d.bad(check, f.Mend+" "+f.Path, "%s: %s", f.Path, f.Found)
	}
	if err == nil {
		var lock *database.DataDirLock
		if lock, err = database.LockDataDir(cfg.DataDir); err == nil {
			err = lock.Release()
		}
		if running = errors.Is(err, database.ErrInUse); running {
			err = nil
		}
	}
	if err != nil {
		d.bad(check, "give it to the user that runs takt, or set --data-dir", "%v", err)
	} else if len(faults) == 0 {
		d.well(check, "%s, closed to others", cfg.DataDir)
	}
	readKept(&cfg)
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "postgres", "PG_VERSION")); err == nil && cfg.EncryptionKey == "" {
		d.bad("keys", "put the encryption-key file back from a backup, or set TAKT_ENCRYPTION_KEY: a new key opens nothing of it",
			"%s holds a database but no encryption-key", cfg.DataDir)
	}
	return running
}

// slowSync is the time of an fsync from which it slows every submit and hand-out.
const slowSync = 25 * time.Millisecond

// tmpfsMagic is the type of a file system in memory (statfs(2) of Linux).
const tmpfsMagic = 0x01021994

// disk looks at the file system that the data directory is on, or will be.
func (d *doctor) disk(dir string) {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		d.bad("disk", "let the user that runs takt read it, or set --data-dir", "%v", err)
		return
	}
	defer f.Close()
	free, size, err := storage.Space(f)
	d.space(free, storage.Reserve(size), err)
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err == nil && int64(s.Type) == tmpfsMagic {
		d.bad("disk", "set --data-dir to a directory on a disk", "%s is in memory (tmpfs): a restart of the machine loses all builds", dir)
	}
	took, err := syncTime(dir, (*os.File).Sync)
	d.fsync(took, err)
}

func (d *doctor) space(free, reserve int64, err error) {
	const found = "%d MB are free; submits are refused below %d MB"
	if err == nil && free < reserve {
		d.bad("disk", "make room, set --retain, or move the data directory", found, free>>20, reserve>>20)
		return
	}
	d.suspect("disk", err, "look at the file system", false, "", found, free>>20, reserve>>20)
}

func (d *doctor) fsync(took time.Duration, err error) {
	d.suspect("fsync", err, "let the user that runs takt write there, or set --data-dir",
		took > slowSync, "use a local SSD: each submit and each hand-out waits for one", "one takes %s", took.Round(time.Microsecond))
}

// syncTime returns the median time to make 8 KiB durable in dir. sync is
// (*os.File).Sync but in tests.
func syncTime(dir string, sync func(*os.File) error) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".takt-doctor-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // nothing more can be done
	defer f.Close()
	took := make([]time.Duration, 21)
	for i := range took {
		begun := time.Now()
		if _, err := f.Write(make([]byte, 8<<10)); err != nil {
			return 0, err
		}
		if err := sync(f); err != nil {
			return 0, err
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

func (d *doctor) limits(cfg settings.Config) {
	need, files := max(2*cfg.Parked(), 1024), settings.FileLimit()
	n := settings.ConnectionsFor(need, files)
	d.suspect("limits", nil, "", n < need, "ulimit -n or LimitNOFILE: raise it, or lower --max-parked",
		"%d open files allow %d connections, and --max-parked needs %d", files, n, need)
}

// address looks at where takt will listen, and whether others can listen in.
func (d *doctor) address(ctx context.Context, cfg settings.Config, running bool) {
	const check = "address"
	if !running {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
		if err != nil {
			d.bad(check, "end what listens there, or set --listen", "%v", err)
			return
		}
		_ = ln.Close() // only the attempt matters
	}
	host, _, _ := net.SplitHostPort(cfg.Listen)
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	if !local && cfg.TLSCert == "" && !strings.HasPrefix(cfg.PublicURL, "https://") {
		d.warn(check, "set --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that speaks TLS and name it in --public-url",
			"others can reach %s and it has no TLS: keys, tokens and certificates travel in clear", cfg.Listen)
		return
	}
	d.well(check, "%s", cfg.Listen)
}

// certificateLeft is how long a certificate has to be valid.
const certificateLeft = 14 * 24 * time.Hour

func (d *doctor) certificate(cfg settings.Config) {
	c, err := settings.OpenTLS(cfg, zerolog.Nop())
	switch {
	case err != nil:
		d.bad("certificate", "name a PEM certificate and its key that the user who runs takt can read", "%v", err)
	case c == nil:
	default:
		if info, err := os.Stat(cfg.TLSKey); err == nil && info.Mode().Perm()&0o077 != 0 {
			d.bad("certificate", "chmod 600 "+cfg.TLSKey, "the TLS key can be read by others (%s)", info.Mode().Perm())
		}
		d.suspect("certificate", nil, "", time.Until(c.NotAfter()) < certificateLeft, "renew it; takt reads it anew when it changes",
			"valid until %s", cli.Time(c.NotAfter()))
	}
}

// clockSlack is how far two clocks may be apart before tokens and log lines suffer.
const clockSlack = 5 * time.Second

func (d *doctor) clock(whose string, ahead time.Duration) {
	if ahead.Abs() > clockSlack {
		d.bad("clock", "run an NTP client (chrony, systemd-timesyncd) on both machines", "%s is %s ahead of this machine's", whose, ahead.Round(time.Second))
		return
	}
	d.well("clock", "%s agrees with this machine's", whose)
}

func (d *doctor) timekeeping(synchronised, known bool) {
	switch {
	case !known:
	case synchronised:
		d.well("clock (NTP)", "the kernel says that it is kept right")
	default:
		d.warn("clock (NTP)", "run an NTP client (chrony, systemd-timesyncd); in a container, on its host", "nothing keeps this machine's clock right")
	}
}

func (d *doctor) bucket(ctx context.Context, cfg settings.Config) {
	if !cfg.UsesS3() {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, errSlowCheck)
	defer cancel()
	s3, err := storage.OpenS3(cfg.S3)
	if err == nil {
		defer s3.Close()
		if err = s3.Probe(ctx); err == nil {
			err = s3.Try(ctx)
		}
	}
	d.suspect("S3", err, "check --s3-…, and allow the key s3:ListBucket on the bucket and s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload below the prefix",
		false, "", "%s stores, reads, lists and removes", cfg.S3.Bucket)
}

// publicly looks at the running controller through its public URL.
func (d *doctor) publicly(ctx context.Context, cfg settings.Config, r cli.Remote) {
	roots, err := r.Roots()
	if err == nil {
		var c *client.Client
		c, err = client.New(client.Config{BaseURL: cfg.PublicURL, APIKey: cfg.APIKey, AdminKey: cfg.AdminKey, RootCAs: roots, UserAgent: "takt/" + cli.Version()})
		if err == nil {
			defer c.CloseIdle()
			d.controller(ctx, c, cfg.AdminKey != "")
			return
		}
	}
	d.bad("public URL", "correct --public-url or --ca-file", "%v", err)
}
