package settings

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/store"
)

func TestLoadLaterSourcesWin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "takt.yaml")
	require.NoError(t, os.WriteFile(file, []byte("listen: 127.0.0.1:1\nqueue_limit: 7\nbuild_timeout: 90\n"), 0o600))
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--listen", "127.0.0.1:3"}))

	cfg, err := Load(Sources{Lookup: env("TAKT_LISTEN", "127.0.0.1:2", "TAKT_WORKER_TIMEOUT", "5s"), File: file, flags: fs})

	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:3", cfg.Listen)
	require.Equal(t, 7, cfg.QueueLimit)
	require.Equal(t, 90*time.Second, cfg.BuildTimeout)
	require.Equal(t, 5*time.Second, cfg.WorkerTimeout)
	require.Equal(t, "/home/somebody/.local/state/takt", cfg.DataDir)
}

func TestLoadTakesTheOriginalsNames(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env("PORT", "4000", "CONTROLLER_API_KEY", "0123456789abcdef")})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4000", cfg.Listen)
	require.Equal(t, "0123456789abcdef", cfg.APIKey)

	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	AddFlags(fs)
	AddPort(fs)
	require.NoError(t, fs.Parse([]string{"-p", "5000", "--listen", "[::1]:1", "--api-key", "fedcba9876543210"}))
	cfg, err = Load(Sources{Lookup: env("PORT", "4000", "CONTROLLER_API_KEY", "0123456789abcdef"), flags: fs})
	require.NoError(t, err)
	require.Equal(t, "[::1]:5000", cfg.Listen, "the port alone changes")
	require.Equal(t, "fedcba9876543210", cfg.APIKey)

	_, err = Load(Sources{Lookup: env("TAKT_STORAGE", "./storage")})
	require.ErrorContains(t, err, "data-dir", "the original's storage is a directory")
}

func TestLoadReportsEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "takt.yaml")
	require.NoError(t, os.WriteFile(file, []byte("quue_limit: 7\nqueue_limit: many\n"), 0o600))
	_, err := Load(Sources{Lookup: env("TAKT_API_KEY", "short", "TAKT_DATABASE_URL", "postgres://x", "TAKT_LOG", "loud"), File: file})
	for _, part := range []string{
		`unknown setting "quue_limit"`, "queue-limit", "whole number",
		"api-key", "at least 16", "encryption-key", "must be given with database-url", `unknown level "loud"`,
	} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "short", "a key is never shown, not even a bad one")
}

func TestPrintMasksSecretsAndReadsBack(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env("TAKT_API_KEY", "0123456789abcdef", "TAKT_QUEUE_LIMIT", "5")})
	require.NoError(t, err)
	var out bytes.Buffer
	cfg.Print(&out)
	require.NotContains(t, out.String(), "0123456789abcdef")
	require.Contains(t, out.String(), "********")
	require.Contains(t, out.String(), `queue_limit: "5"`)
}

func TestFillKeysMakesThemOnceAndKeepsThem(t *testing.T) {
	t.Parallel()
	cfg := Config{DataDir: t.TempDir()}
	made, err := FillKeys(&cfg)
	require.NoError(t, err)
	require.Len(t, made, 3)
	for _, f := range made {
		st, err := os.Stat(f)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	}
	again := Config{DataDir: cfg.DataDir}
	made, err = FillKeys(&again)
	require.NoError(t, err)
	require.Empty(t, made)
	require.Equal(t, cfg, again)
	require.Regexp(t, edge.KeyPattern, again.APIKey)
	require.Regexp(t, edge.KeyPattern, again.AdminKey)
	raw, err := base64.StdEncoding.DecodeString(again.EncryptionKey)
	require.NoError(t, err)
	require.Len(t, raw, 32)
}

func TestOldKeysOnlyOpen(t *testing.T) {
	t.Parallel()
	one, two, three := newKey(), newKey(), newKey()
	cfg, err := Load(Sources{Lookup: env("TAKT_ENCRYPTION_KEY", one, "TAKT_OLD_ENCRYPTION_KEYS", two+", ,"+three)})
	require.NoError(t, err)
	ring, err := cfg.Ring()
	require.NoError(t, err)
	require.Len(t, ring.Secrets(), 3)
	require.Equal(t, one, base64.StdEncoding.EncodeToString(ring.Secrets()[0]))
	_, err = Load(Sources{Lookup: env("TAKT_ENCRYPTION_KEY", "c2hvcnQ=", "TAKT_OLD_ENCRYPTION_KEYS", two+",c2hvcnQ=")})
	require.ErrorContains(t, err, "encryption-key: must be 32 bytes in base64")
	require.ErrorContains(t, err, "old-encryption-keys: each must be 32 bytes in base64")
}

func TestTrustedProxiesAreNetworksOrAddresses(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env("TAKT_TRUSTED_PROXIES", "10.1.2.3/8, 192.0.2.1,,fd00::/8")})
	require.NoError(t, err)
	var out bytes.Buffer
	cfg.Print(&out)
	require.Contains(t, out.String(), `trusted_proxies: "10.0.0.0/8,192.0.2.1/32,fd00::/8"`)
	_, err = Load(Sources{Lookup: env("TAKT_TRUSTED_PROXIES", "10.0.0.0/8,proxy.example")})
	require.ErrorContains(t, err, `"proxy.example" is no network`)
	_, err = Load(Sources{Lookup: env("TAKT_POLL_RATE", "-1", "TAKT_REGISTER_RATE", "many")})
	require.ErrorContains(t, err, "poll-rate: must be at least 0")
	require.ErrorContains(t, err, "register-rate")
}

func TestQuarantineIsAShareOfAttemptsOrOff(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]store.QuarantineRule{"3/10": {Faults: 3, Attempts: 10}, "1/1": {Faults: 1, Attempts: 1}, "100/100": {Faults: 100, Attempts: 100}, "off": {}} {
		cfg, err := Load(Sources{Lookup: env("TAKT_QUARANTINE", text)})
		require.NoError(t, err)
		require.Equal(t, want, cfg.Quarantine)
		var out bytes.Buffer
		cfg.Print(&out)
		require.Contains(t, out.String(), `quarantine: "`+text+`"`)
	}
	for _, text := range []string{"3", "0/10", "11/10", "3/101", "3/10s", "a/b", "3/10/20", "on"} {
		_, err := Load(Sources{Lookup: env("TAKT_QUARANTINE", text)})
		require.ErrorContains(t, err, "must be off, or K/N such as 3/10 with 1 <= K <= N <= 100", text)
	}
	cfg, err := Load(Sources{Lookup: env()})
	require.NoError(t, err)
	require.Equal(t, store.QuarantineRule{Faults: 3, Attempts: 10}, cfg.Quarantine)
}

func TestServicesAreNamedOnceInOrder(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env()})
	require.NoError(t, err)
	require.Equal(t, []string{"builds", "throttle", "deployments"}, cfg.Services)
	require.Empty(t, cfg.Unused)
	require.False(t, cfg.Chosen, "the default is nobody's choice")
	cfg, err = Load(Sources{Lookup: env("TAKT_SERVICES", "deployments, builds,builds", "TAKT_HUBSPOT_TIMEOUT", "20s", "TAKT_QUEUE_LIMIT", "5")})
	require.NoError(t, err)
	require.Equal(t, []string{"builds", "deployments"}, cfg.Services)
	require.Equal(t, []string{"hubspot-timeout"}, cfg.Unused)
	require.True(t, cfg.Chosen)
	_, err = Load(Sources{Lookup: env("TAKT_SERVICES", "builds,workers")})
	require.EqualError(t, err, `services (TAKT_SERVICES): "workers" is not a service: want one or more of builds,throttle,deployments`)
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	AddFlags(fs)
	require.NoError(t, fs.Parse([]string{"--services", ""}))
	_, err = Load(Sources{Lookup: env(), flags: fs})
	require.EqualError(t, err, "services (--services): must name at least one service: builds,throttle,deployments")
}

func env(pairs ...string) func(string) (string, bool) {
	m := map[string]string{"HOME": "/home/somebody"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

// newKey makes an encryption key.
func newKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}
