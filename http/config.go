package http

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// DefaultBaseImageID is the virtual machine image that workers start from.
const DefaultBaseImageID = "ghcr.io/sethwebster/expo-free-agent-base:0.1.23"

// Config is what an operator may set. Zero values mean the defaults of WithDefaults.
type Config struct {
	// APIKey is shared by clients and workers. AdminKey alone opens /admin. Both are 16
	// or more of [A-Za-z0-9_-]; APIKey is required.
	APIKey, AdminKey string
	// Secrets are the encryption keys, the current one first. The signatures of sessions
	// depend on them, because who knows only the API key must not be able to test guesses
	// of the admin key on a session of its own. If there are none, sessions end with the
	// process.
	Secrets [][]byte
	// BuildTokenLife is how long a build's token is valid.
	BuildTokenLife time.Duration
	// BaseImageID is sent to workers with each build.
	BaseImageID string
	// TelemetryWithoutKey accepts telemetry without an API key if it names a build and
	// the worker that holds it. Old host monitors have no key.
	TelemetryWithoutKey bool

	// PlainSessions allows dashboard sessions over plain HTTP from other machines. Anyone
	// who can read that traffic then has the key.
	PlainSessions bool

	// PollRate is how many polls a second one worker may send. RegisterRate is how many
	// registrations a second one remote address may send. Negative: no limit.
	PollRate, RegisterRate int
	// WrongKeys is how many wrong keys a minute one remote address may show before it
	// gets a Retry-After. A right key is never refused. Negative: no limit.
	WrongKeys int
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix

	// PublicURL is the URL under which others reach this server. It is needed because
	// HubSpot signs it. Without it the headers of a proxy are trusted.
	PublicURL string
	// HubSpotSecret is the client secret that HubSpot signs with. Without it every
	// action is refused.
	HubSpotSecret string
	// HubSpotBlock answers a waiting action with BLOCK, so that HubSpot pauses its
	// execution; otherwise the answer is 204. HubSpotExpiration is how long HubSpot waits
	// for it.
	HubSpotBlock      bool
	HubSpotExpiration time.Duration

	// These limit, in bytes, each of these files, a JSON body, and a text field of a
	// form.
	MaxSource, MaxCerts, MaxResult, MaxJSON, MaxField int64
	// MaxParts is how many parts a form may have.
	MaxParts int
	// MaxConnections is how many connections may be open at once; for further ones those
	// of strangers are closed. Each parked poll uses one. MaxStreams is how many of them
	// may be streams.
	MaxConnections, MaxStreams int
	// MaxPerAddress is how many connections one remote address may have that has shown no
	// right key, session or signature lately.
	MaxPerAddress int
	// MaxTransfers is how many file transfers are served at once; further ones wait up to
	// 20 s. A quarter is for downloads that show only a build's token.
	MaxTransfers int
	// MaxBypass is how many operators' requests, which are not levelled, are served at
	// once. The same limit applies to the public pages.
	MaxBypass int

	// ReadHeaderTimeout is for a request's header, and for the first request of a
	// connection. ReadTimeout is for a body that is not a file. IdleTimeout is for the
	// time between two requests.
	ReadHeaderTimeout, ReadTimeout, IdleTimeout time.Duration
	// StallTimeout is how long a transfer may stand still. PresenceInterval is the time
	// between two beats of a build while its files are transferred.
	StallTimeout, PresenceInterval time.Duration
	// LeastRate is how many bytes a second a client must send or read in a transfer. It is
	// judged each time takt has waited LeastRateGrace for the client.
	LeastRate      int64
	LeastRateGrace time.Duration
	// DrainTimeout is how long the rest of a refused body is read, so that the client
	// receives the refusal.
	DrainTimeout time.Duration
	// StreamTimeout is how long a write to a stream may take; a slower client is cut off.
	// StreamPing is the time between two pings.
	StreamTimeout, StreamPing time.Duration
	// TailInterval is how often the marks of followed logs are read to find what other
	// controllers have written.
	TailInterval time.Duration
	// RequestGrace is how long a request may go on after it was told to end; then its
	// connection is cut off. ShutdownTimeout is how long running requests may take when
	// Serve returns, or in Drain.
	RequestGrace, ShutdownTimeout time.Duration
}

const (
	// writeTimeout is the time from a request's header to the end of its reply, unless
	// that is a file. It is longer than the longest poll.
	writeTimeout = 2 * time.Minute
	// maxDrains is how many refused bodies are read at once.
	maxDrains = 8
	// maxList is the most that one list shows.
	maxList = 10_000
)

// maxRate is the highest rate per second that a quota can count.
const maxRate = 1_000_000

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)

// WithDefaults returns c with its zero values filled in.
func (c Config) WithDefaults() Config {
	c.BaseImageID = cmp.Or(c.BaseImageID, DefaultBaseImageID)
	c.BuildTokenLife = cmp.Or(c.BuildTokenLife, 30*24*time.Hour)
	c.PollRate = cmp.Or(c.PollRate, 100)
	c.RegisterRate = cmp.Or(c.RegisterRate, 5000)
	c.WrongKeys = cmp.Or(c.WrongKeys, 10)
	if len(c.Secrets) == 0 {
		c.Secrets = [][]byte{[]byte(rand.Text())}
	}
	c.MaxSource = cmp.Or(c.MaxSource, 500<<20)
	c.MaxCerts = cmp.Or(c.MaxCerts, 10<<20)
	c.MaxResult = cmp.Or(c.MaxResult, 1<<30)
	c.MaxJSON = cmp.Or(c.MaxJSON, 1<<20)
	c.MaxField = cmp.Or(c.MaxField, 64<<10)
	c.MaxParts = cmp.Or(c.MaxParts, 32)
	c.MaxConnections = cmp.Or(c.MaxConnections, 32_768)
	c.MaxPerAddress = cmp.Or(c.MaxPerAddress, max(64, c.MaxConnections/8))
	c.MaxTransfers = cmp.Or(c.MaxTransfers, 256)
	c.LeastRate = cmp.Or(c.LeastRate, 8<<10)
	c.LeastRateGrace = cmp.Or(c.LeastRateGrace, 30*time.Second)
	c.HubSpotExpiration = cmp.Or(c.HubSpotExpiration, 7*24*time.Hour)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 30*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.PresenceInterval = cmp.Or(c.PresenceInterval, 10*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, time.Minute)
	c.MaxBypass = cmp.Or(c.MaxBypass, 64)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1000)
	c.StreamTimeout = cmp.Or(c.StreamTimeout, 10*time.Second)
	c.StreamPing = cmp.Or(c.StreamPing, 15*time.Second)
	c.TailInterval = cmp.Or(c.TailInterval, time.Second)
	c.RequestGrace = cmp.Or(c.RequestGrace, time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	return c
}

// Validate names everything that is wrong with c after WithDefaults.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(keyPattern.MatchString(c.APIKey), "api key: needs at least 16 characters of [A-Za-z0-9_-]")
	check(c.AdminKey == "" || keyPattern.MatchString(c.AdminKey), "admin key: needs at least 16 characters of [A-Za-z0-9_-]")
	const poor = "%s key: needs at least %d different characters"
	check(VariedKey(c.APIKey), poor, "api", leastVaried)
	check(c.AdminKey == "" || VariedKey(c.AdminKey), poor, "admin", leastVaried)
	check(c.APIKey != c.AdminKey, "admin key: must not be the api key")
	check(c.MaxConnections >= 0, "connection limit: must be positive")
	check(c.PollRate <= maxRate, "poll rate: must be at most %d", maxRate)
	check(c.RegisterRate <= maxRate, "register rate: must be at most %d", maxRate)
	return errors.Join(faults...)
}

// leastVaried is how many different characters a key must have, because a key with few
// different characters is easy to guess.
const leastVaried = 8

// VariedKey reports whether a key has enough different characters.
func VariedKey(key string) bool {
	seen := map[rune]bool{}
	for _, r := range key {
		seen[r] = true
	}
	return len(seen) >= leastVaried
}
