package main

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"takt/actors/janitor"
)

// setting is one row of the table. Flags, the environment, the YAML file, --check
// and docs/settings.md are made of it.
type setting struct {
	group string // heading in docs/settings.md
	name  string // the flag; the environment has TAKT_NAME, YAML name with _ for -
	usage string
	// also are further names in the environment, those of the systems that takt
	// replaces.
	also []string
	// otherwise says what holds if nothing is set, where no default can.
	otherwise string
	secret    bool
	value
}

// env are the setting's names in the environment; the first that is set wins.
func (s setting) env() []string {
	return append([]string{"TAKT_" + strings.ToUpper(s.key())}, s.also...)
}

// key is the setting's name in YAML.
func (s setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// settings is the table of all settings of `takt serve`.
func settings() []setting {
	var all []setting
	for _, g := range []struct {
		name string
		rows []setting
	}{
		{"Controller", controllerSettings()},
		{"Keys", keySettings()},
		{"Builds and workers", buildSettings()},
		{"Files", fileSettings()},
		{"Load levelling", loadSettings()},
		{"Throttle", hubspotSettings()},
		{"Deployments", deploySettings()},
	} {
		for _, s := range g.rows {
			s.group = g.name
			all = append(all, s)
		}
	}
	return all
}

func controllerSettings() []setting {
	return []setting{
		{
			name: "listen", usage: "address to listen on; port 0 picks a free one, written to DATA_DIR/address; --port, -p or PORT change the port alone",
			value: text(func(c *Config) *string { return &c.Listen }),
		},
		{
			name: "data-dir", usage: "files, embedded database, keys", otherwise: "takt in $XDG_STATE_HOME or ~/.local/state",
			value: text(func(c *Config) *string { return &c.DataDir }),
		},
		{
			name: "database-url", usage: "external PostgreSQL 14 or newer; empty runs an embedded one", also: []string{"DATABASE_URL"}, secret: true,
			value: text(func(c *Config) *string { return &c.DatabaseURL }),
		},
		{
			name: "db-pool", usage: "most connections to PostgreSQL",
			value: number(func(c *Config) *int { return &c.DatabasePool }),
		},
		{
			name: "public-url", usage: "how workers and HubSpot reach this controller; the URL that HubSpot signs",
			value: text(func(c *Config) *string { return &c.PublicURL }),
		},
		{
			name: "tls-cert", usage: "certificate chain (PEM) to serve HTTPS with (TLS 1.2 and newer, HTTP/2); read anew when it changes",
			value: text(func(c *Config) *string { return &c.TLSCert }),
		},
		{
			name: "tls-key", usage: "its private key (PEM)",
			value: text(func(c *Config) *string { return &c.TLSKey }),
		},
		{
			name: "trusted-proxies", usage: "networks, such as 10.0.0.0/8,192.0.2.1, whose X-Forwarded-For names the remote address",
			value: networks(func(c *Config) *[]netip.Prefix { return &c.TrustedProxies }),
		},
		{
			name: "dashboard-plain-http", usage: "let people log in to the dashboard over plain HTTP from other machines; who listens on the way has their key",
			value: boolean(func(c *Config) *bool { return &c.DashboardPlainHTTP }),
		},
		{
			name: "log", usage: "level and format: debug|info|warn|error[,json|console]",
			value: text(func(c *Config) *string { return &c.Log }),
		},
	}
}

func keySettings() []setting {
	return []setting{
		{
			name: "api-key", usage: "key of workers and submitters, at least 16 of [A-Za-z0-9_-]",
			also: []string{"CONTROLLER_API_KEY"}, otherwise: "made, kept in DATA_DIR/api-key", secret: true,
			value: text(func(c *Config) *string { return &c.APIKey }),
		},
		{
			name: "admin-key", usage: "key of operators, likewise", otherwise: "made, kept in DATA_DIR/admin-key", secret: true,
			value: text(func(c *Config) *string { return &c.AdminKey }),
		},
		{
			name: "encryption-key", usage: "32 bytes in base64: seals certificates and HubSpot's tokens at rest and signs those of workers; the same on all controllers",
			also: []string{"ENCRYPTION_KEY"}, otherwise: "made, kept in DATA_DIR/encryption-key; required with a database URL", secret: true,
			value: text(func(c *Config) *string { return &c.EncryptionKey }),
		},
		{
			name: "old-encryption-keys", usage: "keys that were replaced, parted by commas: what they signed or sealed is still read; see takt throttle rekey", secret: true,
			value: text(func(c *Config) *string { return &c.HubSpot.OldKeys }),
		},
	}
}

func buildSettings() []setting {
	check := duration(func(c *Config) *time.Duration { return &c.CheckInterval })
	check.get = func(c *Config) string { return c.checkInterval().String() }
	return []setting{
		{
			name: "base-image-id", usage: "image that workers are told to build in", also: []string{"BASE_IMAGE_ID"},
			value: text(func(c *Config) *string { return &c.BaseImageID }),
		},
		{
			name: "queue-limit", usage: "submits are refused while more builds than this are pending",
			value: number(func(c *Config) *int { return &c.QueueLimit }),
		},
		{
			name: "build-timeout", usage: "silence after which a build's attempt is lost",
			value: duration(func(c *Config) *time.Duration { return &c.BuildTimeout }),
		},
		{
			name: "worker-timeout", usage: "silence after which a worker is offline",
			value: duration(func(c *Config) *time.Duration { return &c.WorkerTimeout }),
		},
		{
			name: "check-interval", usage: "time between two looks for silence: a fifth of the shorter time-out, from 1s to 1m, unless it is set",
			value: check,
		},
		{
			name: "on-build-timeout", usage: "requeue: a silent worker's build waits again while it has attempts; fail: it fails at once",
			value: text(func(c *Config) *string { return &c.OnBuildTimeout }),
		},
		{
			name: "build-max-attempts", usage: "attempts that a build has",
			value: number(func(c *Config) *int { return &c.BuildMaxAttempts }),
		},
		{
			name: "max-parked", usage: "polls that may wait at once; connections may be twice as many, at least 1024",
			value: number(func(c *Config) *int { return &c.MaxParked }),
		},
		{
			name: "poll-rate", usage: "polls a second that one worker may send; 0: no limit",
			value: number(func(c *Config) *int { return &c.PollRate }),
		},
		{
			name: "register-rate", usage: "registrations a second from one remote address; 0: no limit",
			value: number(func(c *Config) *int { return &c.RegisterRate }),
		},
		{
			name: "spare-critical-workers", usage: "give no builds to workers whose last diagnostic report is critical",
			value: boolean(func(c *Config) *bool { return &c.SpareCritical }),
		},
		{
			name: "telemetry-without-key", usage: "accept telemetry without an API key from the worker that holds the build; old host monitors send none",
			value: boolean(func(c *Config) *bool { return &c.TelemetryWithoutKey }),
		},
	}
}

func fileSettings() []setting {
	return []setting{
		{
			name: "storage", usage: "where files go: local, s3, or dual (both; S3 may be away)",
			value: text(func(c *Config) *string { return &c.Storage }),
		},
		{
			name: "s3-endpoint", usage: "URL of any S3-compatible server; once given, files are read from there too",
			value: text(func(c *Config) *string { return &c.S3.Endpoint }),
		},
		{
			name: "s3-bucket", usage: "bucket, which has to exist",
			value: text(func(c *Config) *string { return &c.S3.Bucket }),
		},
		{
			name: "s3-region", usage: "region of the bucket",
			value: text(func(c *Config) *string { return &c.S3.Region }),
		},
		{
			name: "s3-prefix", usage: "put before every key",
			value: text(func(c *Config) *string { return &c.S3.Prefix }),
		},
		{
			name: "s3-access-key", usage: "access key of the bucket", secret: true,
			value: text(func(c *Config) *string { return &c.S3.AccessKey }),
		},
		{
			name: "s3-secret-key", usage: "secret key of the bucket", secret: true,
			value: text(func(c *Config) *string { return &c.S3.SecretKey }),
		},
		{
			name: "retain", usage: "how long things are kept once their build has ended, such as source=720h,logs=2160h; kinds: source, certs, result, logs, and diagnostics for the reports of workers",
			otherwise: "all for ever",
			value:     retention(func(c *Config) *janitor.Retention { return &c.Retain }),
		},
	}
}

func loadSettings() []setting {
	soft := number(func(c *Config) *int { return &c.Heijunka.Soft })
	soft.get = func(c *Config) string { return strconv.Itoa(c.Heijunka.config().Limits.Soft) }
	hard := number(func(c *Config) *int { return &c.Heijunka.Hard })
	hard.get = func(c *Config) string { return strconv.Itoa(c.Heijunka.config().Limits.Hard) }
	return []setting{
		{
			name: "heijunka", usage: "on, or off: requests are let through unlevelled",
			value: switchedOff(func(c *Config) *bool { return &c.Heijunka.Off }),
		},
		{
			name: "heijunka-preset", usage: "sizes of limits and pools: small, medium or large",
			value: text(func(c *Config) *string { return &c.Heijunka.Preset }),
		},
		{name: "heijunka-soft-limit", usage: "admitted requests from which the load is critical", value: soft},
		{name: "heijunka-hard-limit", usage: "most requests that are admitted at once", value: hard},
		{
			name: "heijunka-reserved", usage: "share of the limits that is for workers' requests",
			value: fraction(func(c *Config) *float64 { return &c.Heijunka.Reserved }),
		},
		{
			name: "heijunka-pools", usage: "pools that differ from the preset: NAME=initial/min/max/overflow/queue, by commas",
			value: value{func(c *Config) string { return c.Heijunka.pools() }, func(c *Config, v string) error { return c.Heijunka.setPools(v) }},
		},
	}
}

func hubspotSettings() []setting {
	return []setting{
		{
			name: "hubspot-client-id", usage: "id of the HubSpot app", also: []string{"HUBSPOT_CLIENT_ID"},
			value: text(func(c *Config) *string { return &c.HubSpot.App.ClientID }),
		},
		{
			name: "hubspot-client-secret", usage: "its secret, which signs webhooks; without it all are refused", also: []string{"HUBSPOT_CLIENT_SECRET"}, secret: true,
			value: text(func(c *Config) *string { return &c.HubSpot.App.ClientSecret }),
		},
		{
			name: "hubspot-redirect-url", usage: "where HubSpot sends installers back to", also: []string{"HUBSPOT_REDIRECT_URI"}, otherwise: "the callback below public-url",
			value: text(func(c *Config) *string { return &c.HubSpot.App.RedirectURL }),
		},
		{
			name: "hubspot-scopes", usage: "scopes that the app asks for", also: []string{"HUBSPOT_SCOPES"},
			value: text(func(c *Config) *string { return &c.HubSpot.App.Scopes }),
		},
		{
			name: "hubspot-api-url", usage: "base of another HubSpot, a stand-in: completions, tokens and the page on which the app is installed are below it", otherwise: "the real one",
			value: text(func(c *Config) *string { return &c.HubSpot.Client.API }),
		},
		{
			name: "hubspot-timeout", usage: "how long a call to HubSpot may take; a claim lasts half as long again",
			value: duration(func(c *Config) *time.Duration { return &c.HubSpot.Client.Timeout }),
		},
		{
			name: "hubspot-reply", usage: "answer to a waiting action: 204, or block: 200 with BLOCK and the expiration, for live portals",
			value: text(func(c *Config) *string { return &c.HubSpot.Reply }),
		},
		{
			name: "hubspot-expiration", usage: "how long HubSpot waits for an action",
			value: duration(func(c *Config) *time.Duration { return &c.HubSpot.Expiration }),
		},
	}
}

func deploySettings() []setting {
	return []setting{
		{
			name: "github-url", usage: "REST interface of the forge that deployments work on; https://HOST/api/v3/ of a GitHub Enterprise Server",
			value: text(func(c *Config) *string { return &c.Deploy.GitHubURL }),
		},
		{
			name: "github-token", usage: "takt's own credential for deployments; without it each one brings its own", secret: true,
			value: text(func(c *Config) *string { return &c.Deploy.GitHubToken }),
		},
		{
			name: "deploy-per-hour", usage: "repositories that are made with one credential per hour; per minute 80, or a sixtieth if that is more",
			value: number(func(c *Config) *int { return &c.Deploy.PerHour }),
		},
	}
}
