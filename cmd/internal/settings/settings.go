package settings

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"takt/cmd/internal/otlp"
	"takt/http/api"
)

// Setting is one row of the table. Flags, the environment, the YAML file, --check and
// docs/settings.md are made from it.
type Setting struct {
	Group string // heading in docs/settings.md
	Name  string // the flag; TAKT_NAME in the environment; in YAML with _ for -
	Usage string
	value
	// aliases are further names in the environment, for users of the systems that takt
	// replaces.
	aliases []string
	// Otherwise describes what applies if nothing is set and there is no fixed default.
	Otherwise string
	masked    bool   // --check does not show it
	service   string // the service that it is for; "" for takt itself
}

func row(name string, v value, usage string) Setting {
	return Setting{Name: name, value: v, Usage: usage}
}

func (s Setting) also(name string) Setting {
	s.aliases = append(s.aliases, name)
	return s
}

func (s Setting) unset(otherwise string) Setting {
	s.Otherwise = otherwise
	return s
}

func (s Setting) secret() Setting {
	s.masked = true
	return s
}

// Env returns the setting's names in the environment. The first one that is set applies.
func (s Setting) Env() []string {
	return append([]string{"TAKT_" + strings.ToUpper(s.Key())}, s.aliases...)
}

// Key returns the setting's name in YAML.
func (s Setting) Key() string { return strings.ReplaceAll(s.Name, "-", "_") }

// Shown returns the value as people may see it: without secrets, also those in a URL.
func (s Setting) Shown() string {
	v := s.Get()
	if s.masked && v != "" {
		return "********"
	}
	if u, err := url.Parse(v); err == nil && u.User != nil {
		return u.Redacted()
	}
	return v
}

// Table returns the table of all settings of `takt serve`. The rows show and set the
// fields of c.
func Table(c *Config) []Setting {
	all := slices.Concat(controllerSettings(c), keySettings(c), heijunkaSettings(c))
	for _, service := range services() {
		for _, s := range service.settings(c) {
			s.service = service.name
			all = append(all, s)
		}
	}
	return all
}

func group(name string, rows ...Setting) []Setting {
	for i := range rows {
		rows[i].Group = name
	}
	return rows
}

func controllerSettings(c *Config) []Setting {
	return group("Controller",
		row("listen", text(&c.Listen), "address to listen on; port 0 picks a free one, written to DATA_DIR/address; --port, -p or PORT change the port alone"),
		row("data-dir", text(&c.DataDir), "files, embedded database, keys").unset("takt in $XDG_STATE_HOME or ~/.local/state"),
		row("database-url", text(&c.DatabaseURL), "URL of an external PostgreSQL 14 or newer; empty runs an embedded one").also("DATABASE_URL").secret(),
		row("database-direct-url", text(&c.DatabaseDirectURL), "URL of PostgreSQL itself, for notifications and migrations, if database-url is PgBouncer in transaction mode").secret(),
		row("db-pool", number(&c.DatabasePool), "maximum number of connections to PostgreSQL"),
		row("services", serviceList(&c.Services), "services that this controller runs; one that is left out has no routes, pages, processes or metrics, and its settings are ignored"),
		row("public-url", text(&c.PublicURL), "URL at which workers and HubSpot reach this controller, and which HubSpot signs"),
		row("tls-cert", text(&c.TLSCert), "certificate chain (PEM) for HTTPS (TLS 1.2 and newer, HTTP/2); reloaded when it changes"),
		row("tls-key", text(&c.TLSKey), "its private key (PEM)"),
		row("trusted-proxies", networks(&c.TrustedProxies), "networks, such as 10.0.0.0/8,192.0.2.1, whose X-Forwarded-For is trusted for the remote address"),
		row("notice-allow", networks(&c.NoticeAllow), "networks that notices may be sent to although they are not public, such as 10.1.0.0/16,127.0.0.1"),
		row("log", text(&c.Log), "level and format: debug|info|warn|error[,json|console]"),
		row("otlp", text(&c.OTLP), "collector to send traces to (OTLP over HTTP), such as http://127.0.0.1:4318; "+
			"the other OTEL_ variables apply too").also(otlp.Variable).unset("no traces"),
	)
}

func keySettings(c *Config) []Setting {
	return group("Keys",
		row("api-key", text(&c.APIKey), "key of workers and submitters, at least 16 characters of [A-Za-z0-9_-]").also("CONTROLLER_API_KEY").unset("generated and kept in DATA_DIR/api-key").secret(),
		row("admin-key", text(&c.AdminKey), "key of operators, with the same form").unset("generated and kept in DATA_DIR/admin-key").secret(),
		row("encryption-key", text(&c.EncryptionKey), "32 bytes in base64: seals certificates and credentials at rest and signs workers' tokens; the same on all controllers").
			also("ENCRYPTION_KEY").unset("generated and kept in DATA_DIR/encryption-key; required with a database URL").secret(),
		row("old-encryption-keys", text(&c.OldEncryptionKeys), "former and future encryption keys, separated by commas; data sealed and tokens signed with them remain valid; see takt rekey").secret(),
	)
}

func buildSettings(c *Config) []Setting {
	check := duration(&c.CheckInterval)
	check.Get = func() string { return c.CheckPeriod().String() }
	return append(group("Builds and workers",
		row("base-image-id", text(&c.BaseImageID), "container image named to workers in each job").also("BASE_IMAGE_ID"),
		row("queue-limit", number(&c.QueueLimit), "submits are refused while more builds than this are pending"),
		row("platforms", platforms(&c.Platforms), "accepted platforms, separated by commas"),
		row("unmatched-ttl", limit(&c.UnmatchedTTL), "how long a build may wait while no known worker could take it, by platform and labels, before it fails; or off"),
		row("build-token-life", duration(&c.BuildTokenLife), "how long a build's token is valid after the submit"),
		row("max-build-timeout", duration(&c.MaxBuildTimeout), "longest time limit that a build may be submitted with, at most 24h"),
		row("build-timeout", duration(&c.BuildTimeout), "silence after which a build's attempt is lost"),
		row("worker-timeout", duration(&c.WorkerTimeout), "silence after which a worker is offline"),
		row("check-interval", check, "time between two checks for silence (default: a fifth of the shorter time-out, from 1s to 1m)"),
		row("on-build-timeout", text(&c.OnBuildTimeout), "requeue: return a silent worker's build to the queue while it has attempts left; fail: fail it at once"),
		row("build-max-attempts", number(&c.BuildMaxAttempts), "maximum number of attempts for a build"),
		row("max-parked", number(&c.MaxParked), "maximum number of parked polls; the connection limit is twice that, at least 1024; 0: 20000, or fewer if the limit of open files requires it"),
		row("poll-rate", number(&c.PollRate), "maximum polls per second for each worker; 0: no limit"),
		row("register-rate", number(&c.RegisterRate), "maximum registrations per second for each remote address; 0: no limit"),
		row("spare-critical-workers", boolean(&c.SpareCritical), "give no builds to workers whose last diagnostic report is critical"),
		row("quarantine", quarantine(&c.Quarantine), "K/N: give no builds to a worker when K of its last N attempts ended by its own fault (the build command could not be "+
			"started, container engine, disk) or failed there and completed on another worker, until it has run a trial build or is resumed; or off"),
		row("telemetry-without-key", boolean(&c.TelemetryWithoutKey), "accept telemetry without an API key from the worker that holds the build; old host monitors send none"),
	), fileSettings(c)...)
}

func fileSettings(c *Config) []Setting {
	return group("Files",
		row("storage", text(&c.Storage), "where files are stored: local, s3, or dual (both; S3 may be unavailable)"),
		row("s3-endpoint", text(&c.S3.Endpoint), "URL of an S3-compatible server; once set, files are also read from there"),
		row("s3-bucket", text(&c.S3.Bucket), "bucket, which must exist"),
		row("s3-region", text(&c.S3.Region), "region of the bucket"),
		row("s3-prefix", text(&c.S3.Prefix), "prefix of every object key"),
		row("s3-access-key", text(&c.S3.AccessKey), "access key of the bucket").secret(),
		row("s3-secret-key", text(&c.S3.SecretKey), "secret key of the bucket").secret(),
		row("retain", retention(&c.Retain), "how long files are kept after their build has ended, such as source=720h,logs=2160h; "+
			"kinds: source, certs, result, logs, and diagnostics (workers' reports)").unset("everything, for ever"),
	)
}

func heijunkaSettings(c *Config) []Setting {
	soft, hard := number(&c.Heijunka.Soft), number(&c.Heijunka.Hard)
	soft.Get = func() string { return strconv.Itoa(c.Heijunka.Config().Limits.Soft) }
	hard.Get = func() string { return strconv.Itoa(c.Heijunka.Config().Limits.Hard) }
	return group("Load levelling",
		row("heijunka", switchedOff(&c.Heijunka.Off), "on, or off to admit all requests"),
		row("heijunka-preset", text(&c.Heijunka.Preset), "preset sizes of limits and pools: small, medium or large"),
		row("heijunka-soft-limit", soft, "load at which it becomes critical, in admitted requests"),
		row("heijunka-hard-limit", hard, "maximum number of requests admitted at once"),
		row("heijunka-reserved", fraction(&c.Heijunka.Reserved), "share of the limits reserved for workers' requests"),
		row("heijunka-pools", value{c.Heijunka.pools, c.Heijunka.setPools}, "pools that differ from the preset: NAME=initial/min/max/overflow/queue, separated by commas"),
	)
}

func hubspotSettings(c *Config) []Setting {
	return group("Throttle",
		row("hubspot-client-id", text(&c.HubSpot.App.ClientID), "id of the HubSpot app").also("HUBSPOT_CLIENT_ID"),
		row("hubspot-client-secret", text(&c.HubSpot.App.ClientSecret), "its secret, which signs webhooks; without it all webhooks are refused").also("HUBSPOT_CLIENT_SECRET").secret(),
		row("hubspot-redirect-url", text(&c.HubSpot.App.RedirectURL), "where HubSpot redirects to after an installation").also("HUBSPOT_REDIRECT_URI").unset("the callback below public-url"),
		row("hubspot-scopes", text(&c.HubSpot.App.Scopes), "scopes that the app requests").also("HUBSPOT_SCOPES"),
		row("hubspot-api-url", text(&c.HubSpot.Client.API), "base URL of a stand-in for HubSpot, for completions, tokens and the installation page").unset("the real one"),
		row("hubspot-timeout", duration(&c.HubSpot.Client.Timeout), "how long a call to HubSpot may take; a claim lasts half as long again"),
		row("hubspot-reply", text(&c.HubSpot.Reply), "reply to a waiting action: 204, or block (200 with BLOCK and the expiration) for live portals"),
		row("hubspot-expiration", duration(&c.HubSpot.Expiration), "how long HubSpot waits for an action"),
	)
}

func deploySettings(c *Config) []Setting {
	return group("Deployments",
		row("github-url", text(&c.Deploy.GitHubURL), "REST API of the forge for deployments; https://HOST/api/v3/ for a GitHub Enterprise Server"),
		row("github-token", text(&c.Deploy.GitHubToken), "takt's own credential for deployments, which needs the admin key and deploy-allow; other callers send their own").secret(),
		row("deploy-allow", pairs(&c.Deploy.Allow), "pairs of organisations between which takt's own credential may copy, as SOURCE=TARGET, separated by commas").unset("nothing"),
		row("deploy-per-hour", number(&c.Deploy.PerHour), "maximum repositories created per hour with one credential; per minute 80, or a sixtieth of this if that is more"),
	)
}

// service is a part of takt that --services can leave out.
type service struct {
	name     string
	settings func(c *Config) []Setting
}

// services returns all services, in the order of their settings.
func services() []service {
	return []service{{api.ServiceBuilds, buildSettings}, {api.ServiceThrottle, hubspotSettings}, {api.ServiceDeployments, deploySettings}}
}

// ServiceNames returns the names of all services, in the order of their settings.
func ServiceNames() (names []string) {
	for _, s := range services() {
		names = append(names, s.name)
	}
	return names
}
