package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"takt/actors/database"
	"takt/actors/janitor"
	"takt/cmd/internal/cli"
	"takt/http"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
)

// Config holds the settings of `takt serve`. They come from the defaults, a YAML file,
// the environment and the flags; a later source overrides an earlier one. The table in
// settings.go explains the fields.
type Config struct {
	Listen            string
	DataDir           string
	DatabaseURL       string // "" runs an embedded PostgreSQL
	DatabaseDirectURL string // past a pooler; "" if DatabaseURL reaches PostgreSQL itself
	DatabasePool      int
	Services          []string
	APIKey, AdminKey  string // if empty, random and kept in DataDir
	EncryptionKey     string // if empty, likewise; 32 bytes in base64
	OldEncryptionKeys string // same form, separated by commas
	PublicURL         string
	BaseImageID       string
	Storage           string
	S3                storage.S3Config // used for reads whenever it is set, whatever Storage is
	Retain            janitor.Retention
	QueueLimit        int
	Platforms         []store.Platform
	UnmatchedTTL      time.Duration // 0: builds wait for ever
	BuildTokenLife    time.Duration
	MaxBuildTimeout   time.Duration
	// These are the initial values of the heartbeat settings. After a change at run time,
	// the values in the database apply.
	BuildTimeout, WorkerTimeout time.Duration
	CheckInterval               time.Duration // 0: see checkInterval
	OnBuildTimeout              string
	BuildMaxAttempts            int
	Deploy                      DeployConfig
	MaxParked                   int
	SpareCritical               bool
	Quarantine                  store.QuarantineRule
	TelemetryWithoutKey         bool
	Heijunka                    HeijunkaConfig
	PollRate, RegisterRate      int
	TrustedProxies              []netip.Prefix
	// NoticeAllow lists addresses that are not public and that notices may go to.
	NoticeAllow     []netip.Prefix
	TLSCert, TLSKey string
	HubSpot         HubSpotConfig
	Log             string
	OTLP            string

	Unused []string // settings that were given, of services that are left out
	// Chosen is true if an operator has named the services.
	Chosen bool
}

// Default returns the settings of a takt that is told nothing.
func Default(stateDir string) Config {
	web := http.Config{}.WithDefaults()
	return Config{
		Deploy:           defaultDeploy(),
		Listen:           "127.0.0.1:3000",
		DataDir:          stateDir,
		DatabasePool:     10,
		Services:         ServiceNames(),
		BaseImageID:      web.BaseImageID,
		Storage:          "local",
		S3:               storage.S3Config{Region: "us-east-1", PathStyle: "auto"},
		QueueLimit:       store.DefaultQueueLimit,
		Platforms:        web.Platforms,
		BuildTokenLife:   web.BuildTokenLife,
		MaxBuildTimeout:  web.MaxBuildTimeout,
		BuildTimeout:     store.DefaultTimeout,
		WorkerTimeout:    store.DefaultTimeout,
		OnBuildTimeout:   "requeue",
		BuildMaxAttempts: 3,
		Quarantine:       store.QuarantineRule{Faults: 3, Attempts: 10},
		Heijunka:         defaultHeijunkaConfig(),
		PollRate:         web.PollRate,
		RegisterRate:     web.RegisterRate,
		HubSpot:          defaultHubSpot(),
		Log:              "info",
	}
}

// Sources names the sources of the settings, so that tests need no real environment.
type Sources struct {
	Lookup func(string) (string, bool) // looks up a variable
	Names  []string                    // all variables that are set
	File   string                      // YAML, "" for none
	flags  *pflag.FlagSet              // may be nil
}

// RealSources returns sources with the process's own environment and the given file and
// flags.
func RealSources(file string, flags *pflag.FlagSet) Sources {
	src := Sources{Lookup: os.LookupEnv, File: file, flags: flags}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		src.Names = append(src.Names, name)
	}
	return src
}

// AddFlags adds a flag for each setting.
func AddFlags(fs *pflag.FlagSet) {
	def := Default("")
	for _, s := range Table(&def) {
		usage, value := s.Usage+" ("+s.Env()[0]+")", s.Get()
		if value != "" {
			usage += " (default " + value + ")"
		}
		fs.String(s.Name, "", usage)
		if value == "true" || value == "false" {
			fs.Lookup(s.Name).NoOptDefVal = "true" // the bare flag means yes
		}
	}
}

// AddPort adds a flag that takes only the port, as in the controller that takt replaces.
func AddPort(fs *pflag.FlagSet) {
	fs.StringP("port", "p", "", "port alone; the host stays that of --listen (PORT)")
}

func (c *Config) setPort(port string) {
	host, _, _ := net.SplitHostPort(c.Listen)
	c.Listen = net.JoinHostPort(host, port)
}

// Load returns the effective settings, or every fault at once.
func Load(src Sources) (Config, error) {
	cfg := Default(cli.StateDir(src.Lookup))
	table := Table(&cfg)
	given := map[string]string{} // setting → its service
	file, err := readFile(src.File)
	if err != nil {
		return cfg, err
	}
	faults := unknown(table, src.File, file, src.Names)
	// each applies what one source says about every setting; the name is used in error
	// messages.
	each := func(find func(Setting) (name, value string, ok bool)) {
		for _, s := range table {
			if name, value, ok := find(s); ok {
				given[s.Name] = s.service
				if err := s.set(value); err != nil {
					faults = append(faults, fmt.Errorf("%s (%s): %w", s.Name, name, err))
				}
			}
		}
	}
	each(func(s Setting) (string, string, bool) {
		value, ok := file[s.Key()]
		return src.File, value, ok
	})
	if port, _ := src.Lookup("PORT"); port != "" {
		cfg.setPort(port)
	}
	each(func(s Setting) (string, string, bool) {
		for _, name := range s.Env() {
			if value, _ := src.Lookup(name); value != "" {
				return name, value, true
			}
		}
		return "", "", false
	})
	if src.flags != nil {
		each(func(s Setting) (string, string, bool) {
			f := src.flags.Lookup(s.Name)
			return "--" + s.Name, f.Value.String(), f.Changed
		})
		if f := src.flags.Lookup("port"); f != nil && f.Changed {
			cfg.setPort(f.Value.String())
		}
	}
	for name, service := range given {
		if service != "" && !cfg.runs(service) {
			cfg.Unused = append(cfg.Unused, name)
		}
	}
	slices.Sort(cfg.Unused)
	_, cfg.Chosen = given["services"]
	return cfg, errors.Join(append(faults, cfg.validate()...)...)
}

// readFile returns the settings in a file, or none if no file is named.
func readFile(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil // none is asked for, which is no error
	}
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

// Print writes the effective settings, secrets masked, as YAML that load reads.
func (c *Config) Print(w io.Writer) {
	for _, s := range Table(c) {
		fmt.Fprintf(w, "%s: %q\n", s.Key(), s.Shown())
	}
}

// CheckPeriod returns the time between two checks for missing heartbeats. It is a fifth of
// the shorter time-out, so that silence is noticed in time, but at least a second and at
// most a minute. Operators can change it and the time-outs at run time.
func (c *Config) CheckPeriod() time.Duration {
	if c.CheckInterval > 0 {
		return c.CheckInterval
	}
	return min(max(min(c.BuildTimeout, c.WorkerTimeout)/5, time.Second), time.Minute)
}

// Attempts returns how many attempts a build has if its workers fall silent.
func (c *Config) Attempts() int {
	if c.OnBuildTimeout == "fail" {
		return 1
	}
	return c.BuildMaxAttempts
}

// runs reports whether a service is not left out.
func (c *Config) runs(service string) bool { return slices.Contains(c.Services, service) }

// OpenTLS reads the certificate that the settings name. It returns nil if they name none.
func OpenTLS(cfg Config, log zerolog.Logger) (*edge.Certificate, error) {
	if cfg.TLSCert == "" {
		return nil, nil // none is asked for, which is no error
	}
	return edge.OpenCertificate(cfg.TLSCert, cfg.TLSKey, log)
}

// StopLimit limits an orderly stop. Each part of the tree has its own shorter deadline,
// so the limit is reached only when something is stuck.
const StopLimit = 90 * time.Second

// ExternalDatabase returns how to reach the external database, and how to reach it past a
// pooler; nil without one.
func (c Config) ExternalDatabase() (source, direct database.Source, err error) {
	if source, err = database.URL(c.DatabaseURL); err == nil && c.DatabaseDirectURL != "" {
		direct, err = database.URL(c.DatabaseDirectURL)
	}
	return source, direct, err
}

// PastPooler returns the URL with which the external database is reached past a pooler.
func (c *Config) PastPooler() string { return cmp.Or(c.DatabaseDirectURL, c.DatabaseURL) }
