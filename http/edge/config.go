package edge

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// Config has the settings of the server itself. Zero values mean the
// defaults of WithDefaults.
type Config struct {
	// APIKey is shared by clients and workers. AdminKey alone opens /admin. Both are 16
	// or more of [A-Za-z0-9_-]; APIKey is required.
	APIKey, AdminKey string
	// TelemetryWithoutKey accepts telemetry without an API key if it names a build and
	// the worker that holds it. Old host monitors have no key.
	TelemetryWithoutKey bool
	// WrongKeys is how many wrong keys a minute one remote address may send before it gets
	// a Retry-After. A right key is never refused. Negative means no limit. Defaults to 10.
	WrongKeys int
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix

	// MaxJSON limits a JSON body, and MaxField a text field of a form, in bytes. They
	// default to 1 MiB and 64 KiB.
	MaxJSON, MaxField int64
	// MaxParts is how many parts a form may have. Defaults to 32.
	MaxParts int
	// MaxConnections is how many connections may be open at once; beyond that, connections
	// from unknown addresses are closed. Each parked poll uses one. MaxStreams is how many of
	// them may be streams. They default to 32 768 and 1000.
	MaxConnections, MaxStreams int
	// MaxPerAddress is how many connections an address may have that has not recently sent
	// a right key, session or signature. Defaults to an eighth of MaxConnections, and at
	// least 64.
	MaxPerAddress int
	// MaxBypass is how many requests of operators, which are not levelled, are served at
	// once. The same limit applies to the public pages. Defaults to 64.
	MaxBypass int

	// ReadHeaderTimeout is for a request's header, and for the first request of a
	// connection. ReadTimeout is for a body that is not a file. IdleTimeout is for the
	// time between two requests. They default to 10 s, 30 s and 2 minutes.
	ReadHeaderTimeout, ReadTimeout, IdleTimeout time.Duration
	// StallTimeout is how long a transfer may move no byte. Defaults to 1 minute.
	StallTimeout time.Duration
	// LeastRate is how many bytes a second a client must send or read in a transfer. It is
	// checked each time takt has waited LeastRateGrace for the client. They default to 8 KiB
	// and 30 s.
	LeastRate      int64
	LeastRateGrace time.Duration
	// DrainTimeout is how long the rest of a refused body is read, so that the client
	// receives the refusal. Defaults to 1 minute.
	DrainTimeout time.Duration
	// StreamTimeout is how long a write to a stream may take; the stream of a slower client
	// is closed. StreamPing is the time between two pings. They default to 10 s and 15 s.
	StreamTimeout, StreamPing time.Duration
	// RequestGrace is how long a request may go on after it was told to end; then its
	// connection is cut off. ShutdownTimeout is how long running requests may take when
	// Serve returns, or in Drain.
	RequestGrace, ShutdownTimeout time.Duration
}

// writeTimeout is the time from a request's header to the end of its reply, unless that is
// a file. It is longer than the longest poll.
const writeTimeout = 2 * time.Minute

// KeyPattern matches API keys and admin keys.
var KeyPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)

// WithDefaults returns c with its zero values filled in.
func (c Config) WithDefaults() Config {
	c.WrongKeys = cmp.Or(c.WrongKeys, 10)
	c.MaxJSON = cmp.Or(c.MaxJSON, 1<<20)
	c.MaxField = cmp.Or(c.MaxField, 64<<10)
	c.MaxParts = cmp.Or(c.MaxParts, 32)
	c.MaxConnections = cmp.Or(c.MaxConnections, 32_768)
	c.MaxPerAddress = cmp.Or(c.MaxPerAddress, max(64, c.MaxConnections/8))
	c.LeastRate = cmp.Or(c.LeastRate, 8<<10)
	c.LeastRateGrace = cmp.Or(c.LeastRateGrace, 30*time.Second)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 30*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, time.Minute)
	c.MaxBypass = cmp.Or(c.MaxBypass, 64)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1000)
	c.StreamTimeout = cmp.Or(c.StreamTimeout, 10*time.Second)
	c.StreamPing = cmp.Or(c.StreamPing, 15*time.Second)
	c.RequestGrace = cmp.Or(c.RequestGrace, time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	return c
}

// Validate reports every invalid value of c after WithDefaults.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(KeyPattern.MatchString(c.APIKey), "api key: needs at least 16 characters of [A-Za-z0-9_-]")
	check(c.AdminKey == "" || KeyPattern.MatchString(c.AdminKey), "admin key: needs at least 16 characters of [A-Za-z0-9_-]")
	const poor = "%s key: needs at least %d different characters"
	check(VariedKey(c.APIKey), poor, "api", leastVaried)
	check(c.AdminKey == "" || VariedKey(c.AdminKey), poor, "admin", leastVaried)
	check(c.APIKey != c.AdminKey, "admin key: must not be the api key")
	check(c.MaxConnections >= 0, "connection limit: must be positive")
	return errors.Join(faults...)
}

// leastVaried is how many different characters a key must have, because a key with few
// different characters is easy to guess.
const leastVaried = 8

// VariedKey reports whether a key has enough different characters.
func VariedKey(key string) bool {
	seen := map[byte]bool{}
	for i := range len(key) {
		seen[key[i]] = true
	}
	return len(seen) >= leastVaried
}
