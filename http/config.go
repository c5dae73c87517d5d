package http

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// defaultBaseImageID is the virtual machine image that workers start from.
const defaultBaseImageID = "ghcr.io/sethwebster/expo-free-agent-base:0.1.23"

// Config holds the operator's settings. Zero values mean the defaults of WithDefaults.
type Config struct {
	edge.Config

	// Services are those that this server has routes of; none means all. The dependencies of
	// the others are never used.
	Services []string

	// Version and Commit are shown at /health.
	Version, Commit string
	// BuildTokenLife is how long a build's token is valid.
	BuildTokenLife time.Duration
	// MaxBuildTimeout is the longest time limit that a build may be submitted with.
	MaxBuildTimeout time.Duration
	// Platforms are those that builds may be for.
	Platforms []store.Platform
	// BaseImageID is sent to workers with each build.
	BaseImageID string

	// PollRate is how many polls a second one worker may send. RegisterRate is how many
	// registrations a second one remote address may send. Negative: no limit.
	PollRate, RegisterRate int

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

	// These limit, in bytes, each of these files.
	MaxSource, MaxCerts, MaxResult int64
	// PresenceInterval is the time between two heartbeats of a build while its files are
	// transferred.
	PresenceInterval time.Duration
	// TailInterval is how often the marks of followed logs are read to find what other
	// controllers have written.
	TailInterval time.Duration
}

// maxRate is the highest rate per second that a quota can count.
const maxRate = 1_000_000

// WithDefaults returns c with its zero values filled in.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults()
	c.BaseImageID = cmp.Or(c.BaseImageID, defaultBaseImageID)
	if len(c.Platforms) == 0 {
		c.Platforms = []store.Platform{store.IOS, store.Android}
	}
	c.BuildTokenLife = cmp.Or(c.BuildTokenLife, 30*24*time.Hour)
	c.MaxBuildTimeout = cmp.Or(c.MaxBuildTimeout, store.MaxTimeout)
	c.PollRate = cmp.Or(c.PollRate, 100)
	c.RegisterRate = cmp.Or(c.RegisterRate, 5000)
	c.MaxSource = cmp.Or(c.MaxSource, api.MaxSource)
	c.MaxCerts = cmp.Or(c.MaxCerts, 10<<20)
	c.MaxResult = cmp.Or(c.MaxResult, 1<<30)
	c.HubSpotExpiration = cmp.Or(c.HubSpotExpiration, 7*24*time.Hour)
	c.PresenceInterval = cmp.Or(c.PresenceInterval, 10*time.Second)
	c.TailInterval = cmp.Or(c.TailInterval, time.Second)
	return c
}

// Validate names everything that is wrong with c after WithDefaults.
func (c Config) Validate() error {
	faults := []error{c.Config.Validate()}
	if c.PollRate > maxRate {
		faults = append(faults, fmt.Errorf("poll rate: must be at most %d", maxRate))
	}
	if c.RegisterRate > maxRate {
		faults = append(faults, fmt.Errorf("register rate: must be at most %d", maxRate))
	}
	return errors.Join(faults...)
}
