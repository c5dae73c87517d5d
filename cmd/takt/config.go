package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"gopkg.in/yaml.v3"

	"takt/actors/janitor"
	"takt/storage"
)

// Config is what `takt serve` runs with. It is filled from defaults, then a
// YAML file, then the environment, then flags; the later one wins.
type Config struct {
	// Listen is the address of the HTTP server. Port 0 picks a free one, which is
	// logged and written to DataDir/address.
	Listen string
	// DataDir holds files, the embedded database and generated keys.
	DataDir string
	// DatabaseURL names an external PostgreSQL; empty runs takt's own.
	DatabaseURL string
	// DatabasePool is the most connections to PostgreSQL.
	DatabasePool int
	// APIKey and AdminKey are made at random and kept in DataDir when empty.
	APIKey, AdminKey string
	// EncryptionKey is 32 bytes in base64; as APIKey, but required with
	// DatabaseURL, because controllers share it.
	EncryptionKey string
	// PublicURL is how others reach this controller; HubSpot signs it.
	PublicURL string
	// BaseImageID is told to workers as the image to build in.
	BaseImageID string
	// Storage is where files go: "local", "s3" or "dual".
	Storage string
	// S3 is the bucket. One that is given is read from, whatever Storage says.
	S3 storage.S3Config
	// Retain is how long things are kept once their build has ended; 0 for ever.
	Retain janitor.Retention
	// JanitorInterval is the time between two rounds that tidy storage.
	JanitorInterval time.Duration
	// QueueLimit is how many builds may be pending before a submit is refused.
	QueueLimit int
	// BuildTimeout, WorkerTimeout and CheckInterval are the first values of the
	// heartbeat settings; once changed at run time, the database's win.
	BuildTimeout, WorkerTimeout, CheckInterval time.Duration
	// BuildMaxAttempts is how many attempts a build has; OnBuildTimeout is
	// "requeue" or "fail".
	BuildMaxAttempts int
	OnBuildTimeout   string
	// Deploy is about deployments.
	Deploy DeployConfig
	// MaxParked is how many polls may wait at once.
	MaxParked int
	// SpareCritical gives no builds to workers whose last diagnostic report is
	// critical.
	SpareCritical bool
	// TelemetryWithoutKey accepts telemetry of old host monitors, which have no
	// key: worker and build have to match.
	TelemetryWithoutKey bool
	// Load is load levelling.
	Load LoadConfig
	// PollRate is how many polls a second a worker may send, RegisterRate how
	// many registrations a remote address; 0 switches a limit off.
	PollRate, RegisterRate int
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// TLSCert and TLSKey are PEM files; both or none.
	TLSCert, TLSKey string
	// MaxConnections is how many connections may be open at once; 0 means twice
	// MaxParked, at least 1024.
	MaxConnections int
	// HubSpot is what the throttle needs to know of it.
	HubSpot HubSpotConfig
	// Log is a level and a format: "info", "debug,console", "warn,json".
	Log string
}

func defaultConfig(stateDir string) Config {
	return Config{
		Deploy: defaultDeploy(),

		Listen:           "127.0.0.1:3000",
		DataDir:          stateDir,
		DatabasePool:     10,
		BaseImageID:      "ghcr.io/sethwebster/expo-free-agent-base:0.1.23",
		Storage:          "local",
		S3:               storage.S3Config{Region: "us-east-1", PathStyle: "auto"},
		JanitorInterval:  time.Hour,
		QueueLimit:       1000,
		BuildTimeout:     300 * time.Second,
		WorkerTimeout:    300 * time.Second,
		CheckInterval:    60 * time.Second,
		BuildMaxAttempts: 3,
		OnBuildTimeout:   "requeue",
		MaxParked:        20_000,
		Load:             defaultLoadConfig(),
		PollRate:         100,
		RegisterRate:     5000,
		HubSpot:          defaultHubSpot(),
		Log:              "info",
	}
}

// setting is one row of the table that flags, environment, file and the README
// share.
type setting struct {
	name   string   // flag and YAML key; YAML uses _ for -
	env    []string // the first that is set wins
	usage  string
	secret bool
	get    func(*Config) string
	set    func(*Config, string) error
}

func text(field func(*Config) *string) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return *field(c) },
		func(c *Config, v string) error { *field(c) = v; return nil }
}

func number(field func(*Config) *int) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return strconv.Itoa(*field(c)) },
		func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil {
				return errors.New("must be a whole number")
			}
			*field(c) = n
			return nil
		}
}

// duration takes "90s" or "5m", and a bare number as seconds.
func duration(field func(*Config) *time.Duration) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return field(c).String() },
		func(c *Config, v string) error {
			if n, err := strconv.ParseFloat(v, 64); err == nil {
				*field(c) = time.Duration(n * float64(time.Second))
				return nil
			}
			d, err := time.ParseDuration(v)
			if err != nil {
				return errors.New(`must be a duration such as "90s" or "5m"`)
			}
			*field(c) = d
			return nil
		}
}

// boolean takes "true" and "false".
func boolean(field func(*Config) *bool) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return strconv.FormatBool(*field(c)) },
		func(c *Config, v string) error {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return errors.New("must be true or false")
			}
			*field(c) = b
			return nil
		}
}

// networks takes a list such as "10.0.0.0/8, 192.0.2.1".
func networks(field func(*Config) *[]netip.Prefix) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string {
			var texts []string
			for _, p := range *field(c) {
				texts = append(texts, p.String())
			}
			return strings.Join(texts, ",")
		},
		func(c *Config, v string) error {
			var list []netip.Prefix
			for entry := range strings.SplitSeq(v, ",") {
				if entry = strings.TrimSpace(entry); entry == "" {
					continue
				}
				p, err := netip.ParsePrefix(entry)
				if err != nil {
					addr, aerr := netip.ParseAddr(entry)
					if aerr != nil {
						return fmt.Errorf("%q is no network: want 10.0.0.0/8 or an address", entry)
					}
					p = netip.PrefixFrom(addr, addr.BitLen())
				}
				list = append(list, p.Masked())
			}
			*field(c) = list
			return nil
		}
}

func settings() []setting {
	var out []setting
	add := func(name, usage string, get func(*Config) string, set func(*Config, string) error, env ...string) *setting {
		out = append(out, setting{name: name, usage: usage, get: get, set: set, env: env})
		return &out[len(out)-1]
	}
	str := func(name, usage string, f func(*Config) *string, env ...string) *setting {
		get, set := text(f)
		return add(name, usage, get, set, env...)
	}
	num := func(name, usage string, f func(*Config) *int, env ...string) {
		get, set := number(f)
		add(name, usage, get, set, env...)
	}
	dur := func(name, usage string, f func(*Config) *time.Duration, env ...string) {
		get, set := duration(f)
		add(name, usage, get, set, env...)
	}
	str("listen", "address to listen on; port 0 picks a free one", func(c *Config) *string { return &c.Listen }, "TAKT_LISTEN")
	str("data-dir", "files, embedded database, keys", func(c *Config) *string { return &c.DataDir }, "TAKT_DATA_DIR")
	str("database-url", "external PostgreSQL; empty runs an embedded one", func(c *Config) *string { return &c.DatabaseURL }, "TAKT_DATABASE_URL", "DATABASE_URL").secret = true
	num("db-pool", "most connections to PostgreSQL", func(c *Config) *int { return &c.DatabasePool }, "TAKT_DB_POOL")
	str("api-key", "key of workers and submitters, at least 16 of [A-Za-z0-9_-]", func(c *Config) *string { return &c.APIKey }, "TAKT_API_KEY", "CONTROLLER_API_KEY").secret = true
	str("admin-key", "key of operators, likewise", func(c *Config) *string { return &c.AdminKey }, "TAKT_ADMIN_KEY").secret = true
	str("encryption-key", "32 bytes in base64, seals certificates at rest and signs the tokens of workers", func(c *Config) *string { return &c.EncryptionKey }, "TAKT_ENCRYPTION_KEY", "ENCRYPTION_KEY").secret = true
	str("public-url", "how workers and HubSpot reach this controller", func(c *Config) *string { return &c.PublicURL }, "TAKT_PUBLIC_URL")
	str("base-image-id", "image that workers are told to build in", func(c *Config) *string { return &c.BaseImageID }, "TAKT_BASE_IMAGE_ID", "BASE_IMAGE_ID")
	str("storage", "where files go: local, s3 or dual (both)", func(c *Config) *string { return &c.Storage }, "TAKT_STORAGE")
	str("s3-endpoint", "URL of an S3-compatible server", func(c *Config) *string { return &c.S3.Endpoint }, "TAKT_S3_ENDPOINT")
	str("s3-bucket", "bucket, which has to exist", func(c *Config) *string { return &c.S3.Bucket }, "TAKT_S3_BUCKET")
	str("s3-region", "region of the bucket", func(c *Config) *string { return &c.S3.Region }, "TAKT_S3_REGION")
	str("s3-prefix", "put before every key", func(c *Config) *string { return &c.S3.Prefix }, "TAKT_S3_PREFIX")
	str("s3-path-style", "bucket in the path of requests: auto, true or false", func(c *Config) *string { return &c.S3.PathStyle }, "TAKT_S3_PATH_STYLE")
	str("s3-access-key", "access key of the bucket", func(c *Config) *string { return &c.S3.AccessKey }, "TAKT_S3_ACCESS_KEY").secret = true
	str("s3-secret-key", "secret key of the bucket", func(c *Config) *string { return &c.S3.SecretKey }, "TAKT_S3_SECRET_KEY").secret = true
	dur("retain-source", "how long sources are kept once their build has ended; 0: for ever", func(c *Config) *time.Duration { return &c.Retain.Source }, "TAKT_RETAIN_SOURCE")
	dur("retain-certs", "likewise, certs", func(c *Config) *time.Duration { return &c.Retain.Certs }, "TAKT_RETAIN_CERTS")
	dur("retain-result", "likewise, results", func(c *Config) *time.Duration { return &c.Retain.Result }, "TAKT_RETAIN_RESULT")
	dur("retain-logs", "likewise, logs", func(c *Config) *time.Duration { return &c.Retain.Logs }, "TAKT_RETAIN_LOGS")
	dur("retain-diagnostics", "how long diagnostic reports are kept; 0: for ever", func(c *Config) *time.Duration { return &c.Retain.Diagnostics }, "TAKT_RETAIN_DIAGNOSTICS")
	dur("janitor-interval", "time between two rounds that tidy storage", func(c *Config) *time.Duration { return &c.JanitorInterval }, "TAKT_JANITOR_INTERVAL")
	num("queue-limit", "submits are refused while more builds than this are pending", func(c *Config) *int { return &c.QueueLimit }, "TAKT_QUEUE_LIMIT")
	dur("build-timeout", "silence after which a build's attempt is lost", func(c *Config) *time.Duration { return &c.BuildTimeout }, "TAKT_BUILD_TIMEOUT")
	dur("worker-timeout", "silence after which a worker is offline", func(c *Config) *time.Duration { return &c.WorkerTimeout }, "TAKT_WORKER_TIMEOUT")
	dur("check-interval", "time between two sweeps for silence", func(c *Config) *time.Duration { return &c.CheckInterval }, "TAKT_CHECK_INTERVAL")
	num("build-max-attempts", "attempts that a build has", func(c *Config) *int { return &c.BuildMaxAttempts }, "TAKT_BUILD_MAX_ATTEMPTS")
	str("on-build-timeout", "requeue or fail", func(c *Config) *string { return &c.OnBuildTimeout }, "TAKT_ON_BUILD_TIMEOUT")
	num("max-parked", "polls that may wait at once", func(c *Config) *int { return &c.MaxParked }, "TAKT_MAX_PARKED")
	num("poll-rate", "polls a second that one worker may send; 0: no limit", func(c *Config) *int { return &c.PollRate }, "TAKT_POLL_RATE")
	num("register-rate", "registrations a second from one remote address; 0: no limit", func(c *Config) *int { return &c.RegisterRate }, "TAKT_REGISTER_RATE")
	str("tls-cert", "certificate chain (PEM) to serve HTTPS with; read anew when it changes", func(c *Config) *string { return &c.TLSCert }, "TAKT_TLS_CERT")
	str("tls-key", "its private key (PEM)", func(c *Config) *string { return &c.TLSKey }, "TAKT_TLS_KEY")
	num("max-connections", "connections that may be open at once; 0: twice max-parked", func(c *Config) *int { return &c.MaxConnections }, "TAKT_MAX_CONNECTIONS")
	get, set := boolean(func(c *Config) *bool { return &c.SpareCritical })
	add("spare-critical-workers", "give no builds to workers whose last diagnostic report is critical", get, set, "TAKT_SPARE_CRITICAL_WORKERS")
	get, set = boolean(func(c *Config) *bool { return &c.TelemetryWithoutKey })
	add("telemetry-without-key", "accept telemetry without an API key from the worker that holds the build", get, set, "TAKT_TELEMETRY_WITHOUT_KEY")
	get, set = networks(func(c *Config) *[]netip.Prefix { return &c.TrustedProxies })
	add("trusted-proxies", "networks (CIDR, comma-separated) whose X-Forwarded-For is believed", get, set, "TAKT_TRUSTED_PROXIES")
	deploySettings(str, num, dur)
	hubspotSettings(str, dur)
	str("log", "level and format: debug|info|warn|error[,json|console]", func(c *Config) *string { return &c.Log }, "TAKT_LOG")
	return append(out, loadSettings()...)
}

// sources says where settings come from, so that tests need no real environment.
type sources struct {
	lookup func(string) (string, bool) // the environment
	file   string                      // YAML, "" for none
	flags  *pflag.FlagSet              // may be nil
}

func addFlags(fs *pflag.FlagSet) {
	def := defaultConfig("")
	for _, s := range settings() {
		usage := s.usage
		if len(s.env) > 0 {
			usage += " (" + s.env[0] + ")"
		}
		if d := s.get(&def); d != "" && !s.secret {
			usage += " (default " + d + ")"
		}
		fs.String(s.name, "", usage)
		if v := s.get(&def); v == "true" || v == "false" {
			fs.Lookup(s.name).NoOptDefVal = "true" // the bare flag means yes
		}
	}
}

// addPort takes the port alone, as the controller does whose place takt takes.
func addPort(fs *pflag.FlagSet) {
	fs.StringP("port", "p", "", "port alone; the host stays that of --listen (PORT)")
}

func (c *Config) setPort(port string) {
	host, _, _ := net.SplitHostPort(c.Listen)
	c.Listen = net.JoinHostPort(host, port)
}

// load returns the effective settings, or every fault at once.
func load(src sources) (Config, error) {
	cfg := defaultConfig(stateDir(src.lookup))
	var faults []error
	apply := func(s setting, from, value string) {
		if err := s.set(&cfg, value); err != nil {
			faults = append(faults, fmt.Errorf("%s (%s): %w", s.name, from, err))
		}
	}
	table := settings()
	if src.file != "" {
		values, err := readFile(src.file)
		if err != nil {
			return cfg, err
		}
		for _, s := range table {
			key := strings.ReplaceAll(s.name, "-", "_")
			if v, ok := values[key]; ok {
				apply(s, src.file, v)
				delete(values, key)
			}
		}
		for _, k := range sortedKeys(values) {
			faults = append(faults, fmt.Errorf("%s: unknown setting %q", src.file, k))
		}
	}
	if port, ok := src.lookup("PORT"); ok && port != "" {
		cfg.setPort(port)
	}
	for _, s := range table {
		for _, name := range s.env {
			if v, ok := src.lookup(name); ok && v != "" {
				apply(s, name, v)
				break
			}
		}
	}
	if src.flags != nil {
		for _, s := range table {
			if f := src.flags.Lookup(s.name); f != nil && f.Changed {
				apply(s, "--"+s.name, f.Value.String())
			}
		}
		if f := src.flags.Lookup("port"); f != nil && f.Changed {
			cfg.setPort(f.Value.String())
		}
	}
	return cfg, errors.Join(append(faults, cfg.validate()...)...)
}

func stateDir(lookup func(string) (string, bool)) string {
	if v, ok := lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(v) {
		return filepath.Join(v, "takt")
	}
	home, _ := lookup("HOME")
	return filepath.Join(home, ".local", "state", "takt")
}

func readFile(path string) (map[string]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the settings file: %w", err)
	}
	values := map[string]string{}
	if err := yaml.Unmarshal(raw, &values); err != nil {
		return nil, fmt.Errorf("%s: not a flat YAML map of settings: %w", path, err)
	}
	return values, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

const minKeyLength = 16

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)

func (c *Config) validate() []error {
	var faults []error
	bad := func(name, format string, args ...any) {
		faults = append(faults, fmt.Errorf(name+": "+format, args...))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		bad("listen", "must be host:port: %v", err)
	}
	if c.DataDir == "" {
		bad("data-dir", "must be set")
	}
	for name, key := range map[string]string{"api-key": c.APIKey, "admin-key": c.AdminKey} {
		if key != "" && !keyPattern.MatchString(key) {
			bad(name, "needs at least %d characters of [A-Za-z0-9_-]", minKeyLength)
		}
	}
	if c.APIKey != "" && c.APIKey == c.AdminKey {
		bad("admin-key", "must differ from api-key")
	}
	if c.EncryptionKey != "" {
		if b, err := base64.StdEncoding.DecodeString(c.EncryptionKey); err != nil || len(b) != 32 {
			bad("encryption-key", "must be 32 bytes in base64")
		}
	} else if c.DatabaseURL != "" {
		bad("encryption-key", "must be given with database-url, because controllers share it (make one: head -c 32 /dev/urandom | base64)")
	}
	if c.PublicURL != "" {
		if u, err := url.Parse(c.PublicURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			bad("public-url", "must be an http or https URL")
		}
	}
	faults = append(faults, c.validateStorage()...)
	faults = append(faults, c.validateHubSpot()...)
	if c.OnBuildTimeout != "requeue" && c.OnBuildTimeout != "fail" {
		bad("on-build-timeout", "must be requeue or fail")
	}
	atLeast := func(name string, n, low int) {
		if n < low {
			bad(name, "must be at least %d", low)
		}
	}
	atLeast("db-pool", c.DatabasePool, 4)
	atLeast("queue-limit", c.QueueLimit, 1)
	atLeast("build-max-attempts", c.BuildMaxAttempts, 1)
	atLeast("max-parked", c.MaxParked, 0)
	c.Deploy.validate(bad, atLeast)
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls-cert", "needs tls-key and the other way round")
	}
	atLeast("max-connections", c.MaxConnections, 0)
	if c.MaxConnections > 0 && c.MaxConnections <= c.MaxParked {
		bad("max-connections", "must be more than max-parked, %d: each parked poll has one", c.MaxParked)
	}
	atLeast("poll-rate", c.PollRate, 0)
	atLeast("register-rate", c.RegisterRate, 0)
	for name, d := range map[string]time.Duration{"build-timeout": c.BuildTimeout, "worker-timeout": c.WorkerTimeout, "check-interval": c.CheckInterval} {
		if d < time.Second {
			bad(name, "must be at least 1s")
		}
	}
	faults = append(faults, c.Load.validate()...)
	if _, err := newLogger(io.Discard, c.Log); err != nil {
		bad("log", "%v", err)
	}
	sort.Slice(faults, func(i, j int) bool { return faults[i].Error() < faults[j].Error() })
	return faults
}

// print writes the effective settings, secrets masked, as YAML that load reads.
func (c *Config) print(w io.Writer) {
	for _, s := range settings() {
		v := s.get(c)
		if s.secret && v != "" {
			v = "********"
		}
		fmt.Fprintf(w, "%s: %q\n", strings.ReplaceAll(s.name, "-", "_"), v)
	}
}

func newLogger(w io.Writer, spec string) (zerolog.Logger, error) {
	levelName, format, _ := strings.Cut(spec, ",")
	level, err := zerolog.ParseLevel(levelName)
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Nop(), fmt.Errorf("unknown level %q", levelName)
	}
	switch format {
	case "", "json":
	case "console":
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w)}
	default:
		return zerolog.Nop(), fmt.Errorf("unknown format %q: json or console", format)
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
