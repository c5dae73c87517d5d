package settings

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/otlp"
	"takt/http/edge"
	"takt/store"
	"takt/store/seal"
)

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
		if key != "" && !edge.KeyPattern.MatchString(key) {
			bad(name, "needs at least 16 characters of [A-Za-z0-9_-]")
		} else if key != "" && !edge.VariedKey(key) {
			bad(name, "needs at least 8 different characters")
		}
	}
	if c.APIKey != "" && c.APIKey == c.AdminKey {
		bad("admin-key", "must differ from api-key")
	}
	if c.EncryptionKey != "" {
		if _, err := seal.ParseKey(c.EncryptionKey); err != nil {
			bad("encryption-key", "%v", err)
		}
	} else if c.DatabaseURL != "" {
		bad("encryption-key", "must be given with database-url, because controllers share it (make one: head -c 32 /dev/urandom | base64)")
	}
	if c.DatabaseDirectURL != "" && c.DatabaseURL == "" {
		bad("database-direct-url", "needs database-url")
	}
	if _, err := c.oldKeys(); err != nil {
		bad("old-encryption-keys", "%v", err)
	}
	for name, v := range map[string]string{"public-url": c.PublicURL, "hubspot-redirect-url": c.HubSpot.App.RedirectURL, "hubspot-api-url": c.HubSpot.Client.API} {
		if u, err := url.Parse(v); v != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
			bad(name, "must be an http or https URL")
		}
	}
	if err := otlp.Check(c.OTLP); err != nil {
		bad("otlp", "%v", err)
	}
	if err := c.validateStorage(); err != nil {
		faults = append(faults, err)
	}
	c.HubSpot.validate(bad)
	atLeast := func(name string, n, low int) {
		if n < low {
			bad(name, "must be at least %d", low)
		}
	}
	atLeast("db-pool", c.DatabasePool, 4)
	atLeast("queue-limit", c.QueueLimit, 1)
	atLeast("build-max-attempts", c.BuildMaxAttempts, 1)
	if c.OnBuildTimeout != "requeue" && c.OnBuildTimeout != "fail" {
		bad("on-build-timeout", "must be requeue or fail")
	}
	atLeast("max-parked", c.MaxParked, 0)
	c.Deploy.validate(bad, atLeast)
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls-cert", "needs tls-key and the other way round")
	}
	atLeast("poll-rate", c.PollRate, 0)
	atLeast("register-rate", c.RegisterRate, 0)
	for name, d := range map[string]time.Duration{"build-token-life": c.BuildTokenLife, "build-timeout": c.BuildTimeout, "worker-timeout": c.WorkerTimeout} {
		if d < time.Second {
			bad(name, "must be at least 1s")
		}
	}
	if c.MaxBuildTimeout < time.Second || c.MaxBuildTimeout > store.MaxTimeout {
		bad("max-build-timeout", "must be 1s to %s", store.MaxTimeout)
	}
	c.Heijunka.validate(bad)
	if _, err := cli.NewLogger(io.Discard, c.Log); err != nil {
		bad("log", "%v", err)
	}
	return slices.SortedFunc(slices.Values(faults), func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
}
