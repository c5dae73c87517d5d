package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
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
	// QueueLimit is how many builds may be pending before a submit is refused.
	QueueLimit int
	// BuildTimeout and WorkerTimeout are the first values of the heartbeat
	// settings; once changed at run time, the database's win.
	BuildTimeout, WorkerTimeout time.Duration
	// CheckInterval is the time between two of its sweeps; 0: see checkInterval.
	CheckInterval time.Duration
	// OnBuildTimeout is requeue or fail.
	OnBuildTimeout string
	// BuildMaxAttempts is how many attempts a build has.
	BuildMaxAttempts int
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
	Heijunka HeijunkaConfig
	// PollRate is how many polls a second a worker may send, RegisterRate how
	// many registrations a remote address; 0 switches a limit off.
	PollRate, RegisterRate int
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// DashboardPlainHTTP lets people log in to the dashboard over plain HTTP.
	DashboardPlainHTTP bool
	// TLSCert and TLSKey are PEM files; both or none.
	TLSCert, TLSKey string
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
		QueueLimit:       1000,
		BuildTimeout:     300 * time.Second,
		WorkerTimeout:    300 * time.Second,
		OnBuildTimeout:   "requeue",
		BuildMaxAttempts: 3,
		MaxParked:        20_000,
		Heijunka:         defaultHeijunkaConfig(),
		PollRate:         100,
		RegisterRate:     5000,
		HubSpot:          defaultHubSpot(),
		Log:              "info",
	}
}

// sources says where settings come from, so that tests need no real environment.
type sources struct {
	lookup func(string) (string, bool) // the environment
	names  []string                    // what the environment has
	file   string                      // YAML, "" for none
	flags  *pflag.FlagSet              // may be nil
}

// realSources are the process's own environment, and these.
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
	for _, s := range settings() {
		usage := s.usage + " (" + s.env()[0] + ")"
		if d := s.get(&def); d != "" {
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
	table := settings()
	values := map[string]string{}
	if src.file != "" {
		var err error
		if values, err = readFile(src.file); err != nil {
			return cfg, err
		}
	}
	faults := append(unknownKeys(table, src.file, values), unknownVariables(table, src.names)...)
	apply := func(s setting, from, value string) {
		if err := s.set(&cfg, value); err != nil {
			faults = append(faults, fmt.Errorf("%s (%s): %w", s.name, from, err))
		}
	}
	for _, s := range table {
		if v, ok := values[s.key()]; ok {
			apply(s, src.file, v)
		}
	}
	if port, ok := src.lookup("PORT"); ok && port != "" {
		cfg.setPort(port)
	}
	for _, s := range table {
		for _, name := range s.env() {
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

// print writes the effective settings, secrets masked, as YAML that load reads.
func (c *Config) print(w io.Writer) {
	for _, s := range settings() {
		v := s.get(c)
		if s.secret && v != "" {
			v = "********"
		}
		fmt.Fprintf(w, "%s: %q\n", s.key(), v)
	}
}
