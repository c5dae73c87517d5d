package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"takt/actors/janitor"
	"takt/http"
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

	unused []string // settings that were given, of services that are left out
}

func defaultConfig(stateDir string) Config {
	web := http.Config{}.WithDefaults()
	return Config{
		Deploy:           defaultDeploy(),
		Listen:           "127.0.0.1:3000",
		DataDir:          stateDir,
		DatabasePool:     10,
		Services:         serviceNames(),
		BaseImageID:      web.BaseImageID,
		Storage:          "local",
		S3:               storage.S3Config{Region: "us-east-1", PathStyle: "auto"},
		QueueLimit:       store.DefaultQueueLimit,
		Platforms:        web.Platforms,
		BuildTokenLife:   web.BuildTokenLife,
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

// sources names the sources of the settings, so that tests need no real environment.
type sources struct {
	lookup func(string) (string, bool) // looks up a variable
	names  []string                    // all variables that are set
	file   string                      // YAML, "" for none
	flags  *pflag.FlagSet              // may be nil
}

// realSources returns sources with the process's own environment and the given file and
// flags.
func realSources(file string, flags *pflag.FlagSet) sources {
	src := sources{lookup: os.LookupEnv, file: file, flags: flags}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		src.names = append(src.names, name)
	}
	return src
}

func addFlags(fs *pflag.FlagSet) {
	def := defaultConfig("")
	for _, s := range settings(&def) {
		usage, value := s.usage+" ("+s.env()[0]+")", s.get()
		if value != "" {
			usage += " (default " + value + ")"
		}
		fs.String(s.name, "", usage)
		if value == "true" || value == "false" {
			fs.Lookup(s.name).NoOptDefVal = "true" // the bare flag means yes
		}
	}
}

// addPort adds a flag that takes only the port, as in the controller that takt replaces.
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
	table := settings(&cfg)
	given := map[string]string{} // setting → its service
	file, err := readFile(src.file)
	if err != nil {
		return cfg, err
	}
	faults := unknown(table, src.file, file, src.names)
	// each applies what one source says about every setting; the name is used in error
	// messages.
	each := func(find func(setting) (name, value string, ok bool)) {
		for _, s := range table {
			if name, value, ok := find(s); ok {
				given[s.name] = s.service
				if err := s.set(value); err != nil {
					faults = append(faults, fmt.Errorf("%s (%s): %w", s.name, name, err))
				}
			}
		}
	}
	each(func(s setting) (string, string, bool) {
		value, ok := file[s.key()]
		return src.file, value, ok
	})
	if port, _ := src.lookup("PORT"); port != "" {
		cfg.setPort(port)
	}
	each(func(s setting) (string, string, bool) {
		for _, name := range s.env() {
			if value, _ := src.lookup(name); value != "" {
				return name, value, true
			}
		}
		return "", "", false
	})
	if src.flags != nil {
		each(func(s setting) (string, string, bool) {
			f := src.flags.Lookup(s.name)
			return "--" + s.name, f.Value.String(), f.Changed
		})
		if f := src.flags.Lookup("port"); f != nil && f.Changed {
			cfg.setPort(f.Value.String())
		}
	}
	for name, service := range given {
		if service != "" && !cfg.runs(service) {
			cfg.unused = append(cfg.unused, name)
		}
	}
	slices.Sort(cfg.unused)
	return cfg, errors.Join(append(faults, cfg.validate()...)...)
}

func stateDir(lookup func(string) (string, bool)) string {
	if v, ok := lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(v) {
		return filepath.Join(v, "takt")
	}
	home, _ := lookup("HOME")
	return filepath.Join(home, ".local", "state", "takt")
}

// readFile returns the settings in a file, or none if no file is named.
func readFile(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none is asked for, which is no error
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

// print writes the effective settings, secrets masked, as YAML that load reads.
func (c *Config) print(w io.Writer) {
	for _, s := range settings(c) {
		fmt.Fprintf(w, "%s: %q\n", s.key(), s.shown())
	}
}
