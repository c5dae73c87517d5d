package http

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// DefaultBaseImageID is the virtual machine image that workers start from.
const DefaultBaseImageID = "ghcr.io/sethwebster/expo-free-agent-base:0.1.23"

// Config is what an operator may set. Zero values mean the defaults.
type Config struct {
	// APIKey is shared by clients and workers: 16 or more of [A-Za-z0-9_-].
	// Required.
	APIKey string
	// AdminKey opens /admin, likewise. Without it nothing does.
	AdminKey string
	// BaseImageID is told to workers. Defaults to DefaultBaseImageID.
	BaseImageID string
	// TelemetryWithoutKey accepts telemetry that names a build and the worker that
	// holds it, but shows no API key: old host monitors have none.
	TelemetryWithoutKey bool

	// PollRate is how many polls a second one worker may send, and RegisterRate
	// how many registrations one remote address. Negative: no limit. They default
	// to 100 and 5 000.
	PollRate, RegisterRate int
	// TrustedProxies are the networks whose X-Forwarded-For is believed. Defaults
	// to none: the remote address is the connection's.
	TrustedProxies []netip.Prefix

	// MaxSource, MaxCerts and MaxResult are the most bytes of these files,
	// inclusive. They default to 500 MiB, 10 MiB and 1 GiB.
	MaxSource, MaxCerts, MaxResult int64
	// MaxJSON is the most bytes of a JSON body. Defaults to 1 MiB.
	MaxJSON int64
	// MaxField is the most bytes of a text field of a form. Defaults to 64 KiB.
	MaxField int64
	// MaxParts is the most parts of a form. Defaults to 32.
	MaxParts int
	// MaxList is the most builds that one list shows. Defaults to 10 000.
	MaxList int

	// MaxConnections is how many connections may be open at once; one more is
	// closed. Parked polls have one each. Defaults to 32 768.
	MaxConnections int
	// PublicURL is how others reach this server: HubSpot signs it. Without it the
	// headers of a proxy are believed.
	PublicURL string
	// HubSpotSecret is the client secret that HubSpot signs with. Without it every
	// action is refused.
	HubSpotSecret string
	// HubSpotBlock answers a waiting action with BLOCK, so that HubSpot holds its
	// execution; else with 204.
	HubSpotBlock bool
	// HubSpotExpiration is how long HubSpot waits for an action. Defaults to one
	// week.
	HubSpotExpiration time.Duration

	// ReadHeaderTimeout is for a request's header. Defaults to 10 seconds.
	ReadHeaderTimeout time.Duration
	// ReadTimeout is for a body that is not a file. Defaults to 30 seconds.
	ReadTimeout time.Duration
	// WriteTimeout is from a request's header to the end of its reply, unless
	// that is a file; more than the longest poll. Defaults to 2 minutes.
	WriteTimeout time.Duration
	// IdleTimeout is between two requests. Defaults to 2 minutes.
	IdleTimeout time.Duration
	// StallTimeout is how long a transfer may stand still. Defaults to 1 minute.
	StallTimeout time.Duration
	// PresenceInterval is how often a build is touched while its files move.
	// Defaults to 30 seconds.
	PresenceInterval time.Duration
	// DrainTimeout is how long the rest of a refused body is read, so that the
	// client gets to see the refusal. Defaults to 1 minute.
	DrainTimeout time.Duration
	// MaxDrains is how many are read so at once. Defaults to 8.
	MaxDrains int
	// MaxBypass is how many requests that need no actor are served at once.
	// Defaults to 64.
	MaxBypass int
	// MaxStreams is how many streams of events there are at once. Defaults to
	// 1000.
	MaxStreams int
	// StreamTimeout is how long a write to a stream may take; a client that is
	// slower is cut off. Defaults to 10 seconds.
	StreamTimeout time.Duration
	// StreamPing is the time between two signs of life on a stream. Defaults to 15
	// seconds.
	StreamPing time.Duration
	// TailInterval is how often followed logs are looked at for what other
	// controllers have written. Defaults to 1 second.
	TailInterval time.Duration
	// RequestGrace is what a request has that was told to end, before its connection
	// is cut off. Defaults to 5 seconds.
	RequestGrace time.Duration
	// ShutdownTimeout is what running requests have when Serve is to end.
	// Defaults to 20 seconds.
	ShutdownTimeout time.Duration
}

// maxRate is the most a second that a quota can tell apart.
const maxRate = 1_000_000

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)

// WithDefaults returns c with its zero values filled in.
func (c Config) WithDefaults() Config {
	c.BaseImageID = cmp.Or(c.BaseImageID, DefaultBaseImageID)
	c.PollRate = cmp.Or(c.PollRate, 100)
	c.RegisterRate = cmp.Or(c.RegisterRate, 5000)
	c.MaxSource = cmp.Or(c.MaxSource, 500<<20)
	c.MaxCerts = cmp.Or(c.MaxCerts, 10<<20)
	c.MaxResult = cmp.Or(c.MaxResult, 1<<30)
	c.MaxJSON = cmp.Or(c.MaxJSON, 1<<20)
	c.MaxField = cmp.Or(c.MaxField, 64<<10)
	c.MaxParts = cmp.Or(c.MaxParts, 32)
	c.MaxList = cmp.Or(c.MaxList, 10_000)
	c.MaxConnections = cmp.Or(c.MaxConnections, 32_768)
	c.HubSpotExpiration = cmp.Or(c.HubSpotExpiration, 7*24*time.Hour)
	c.ReadHeaderTimeout = cmp.Or(c.ReadHeaderTimeout, 10*time.Second)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 30*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 2*time.Minute)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.PresenceInterval = cmp.Or(c.PresenceInterval, 30*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, time.Minute)
	c.MaxDrains = cmp.Or(c.MaxDrains, 8)
	c.MaxBypass = cmp.Or(c.MaxBypass, 64)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1000)
	c.StreamTimeout = cmp.Or(c.StreamTimeout, 10*time.Second)
	c.StreamPing = cmp.Or(c.StreamPing, 15*time.Second)
	c.TailInterval = cmp.Or(c.TailInterval, time.Second)
	c.RequestGrace = cmp.Or(c.RequestGrace, 5*time.Second)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 20*time.Second)
	return c
}

// Validate names everything that is wrong with c, defaults filled in.
func (c Config) Validate() error {
	var faults []error
	if !keyPattern.MatchString(c.APIKey) {
		faults = append(faults, errors.New("api key: needs at least 16 characters of [A-Za-z0-9_-]"))
	}
	if c.AdminKey != "" && !keyPattern.MatchString(c.AdminKey) {
		faults = append(faults, errors.New("admin key: needs at least 16 characters of [A-Za-z0-9_-]"))
	}
	if c.APIKey == c.AdminKey {
		faults = append(faults, errors.New("admin key: must not be the api key"))
	}
	if c.MaxConnections < 0 {
		faults = append(faults, errors.New("connection limit: must be positive"))
	}
	for name, n := range map[string]int{"poll rate": c.PollRate, "register rate": c.RegisterRate} {
		if n > maxRate {
			faults = append(faults, fmt.Errorf("%s: must be at most %d", name, maxRate))
		}
	}
	if c.WriteTimeout <= maxWait {
		faults = append(faults, fmt.Errorf("write time-out: must be longer than a poll's %s", maxWait))
	}
	return errors.Join(faults...)
}
