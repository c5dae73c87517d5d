package runner

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"time"

	"takt/store"
	"takt/store/backoff"
)

// Config has a worker's settings.
type Config struct {
	// Name is shown to people. Required.
	Name string
	// Version of the program is shown beside it; may be empty.
	Version string
	// Platforms are what the worker builds; empty means ios and android.
	Platforms []store.Platform
	// Labels are what builds can require and prefer.
	Labels store.Labels
	// Concurrency is how many builds run at once. Defaults to 1.
	Concurrency int
	// StateDir holds the worker's lock, token and builds. Required; two workers
	// must not share it.
	StateDir string
	// IDFile holds the worker's id. Defaults to StateDir/worker-id.
	IDFile string
	// Command runs a build. Required.
	Command Command
	// Owners are the users that builds run as, one for each of those that run at once. Nothing
	// else may run as them. Empty for the worker's own user. Only for an Exec.
	Owners []*Owner
	// Timeout bounds the command of a build that brings no time limit of its own. Defaults to
	// 1 h. MaxTimeout is the longest that a build may bring. Defaults to 4 h, or to Timeout if
	// that is longer.
	Timeout, MaxTimeout time.Duration
	// AcceptEnv are the parameters that become variables of the command, as patterns of
	// path.Match. Those that OwnEnv names never do, because the operator sets them.
	AcceptEnv, OwnEnv []string
	// AcceptSecrets lets builds with secrets run here.
	AcceptSecrets bool
	// Resources bound a build's command. Limits that can't be enforced on this machine are logged,
	// at the start and by each build.
	Resources Resources
	// Keep leaves a build's directory in place afterwards. Certificates are
	// removed in any case.
	Keep bool
	// PollWait is how long a poll may stay open. Defaults to 30 s, at most 60 s.
	PollWait time.Duration
	// Heartbeat is the time between two heartbeats of a build. Defaults to 15 s.
	Heartbeat time.Duration
	// Telemetry is the time between two reports of the machine while it builds. Defaults to
	// 15 s.
	Telemetry time.Duration
	// KillGrace is the time between SIGTERM and SIGKILL, and how long processes of Owners
	// may take to end after SIGKILL. Defaults to 10 s.
	KillGrace time.Duration
	// StopGrace is how long a worker that has to stop at once may take to
	// report its builds, after the processes are gone. Defaults to 10 s.
	StopGrace time.Duration
	// Patience is how long a download or an upload is tried while the
	// controller does not answer. Defaults to 6 h.
	Patience time.Duration
	// Backoff paces every repeat. Defaults to 500 ms … 30 s.
	Backoff backoff.Backoff
	// Again paces registrations while controllers of an earlier release answer them, because these
	// don't record what the worker can do. Defaults to 1 min … 10 min.
	Again backoff.Backoff
	// ReportAgain is how often a worker that can run no builds reports why, so that it is not taken
	// for a silent one. Defaults to 1 min.
	ReportAgain time.Duration
	// KeyExposed is a file in which builds can read a key of the worker; "" for none.
	KeyExposed string
	// Limits bound what an archive may unpack to.
	Limits UnzipLimits
	// Logs tunes the log stream.
	Logs LogConfig
}

func (c Config) withDefaults() Config {
	c.Concurrency = cmp.Or(c.Concurrency, 1)
	c.Timeout = cmp.Or(c.Timeout, time.Hour)
	c.MaxTimeout = cmp.Or(c.MaxTimeout, max(4*time.Hour, c.Timeout))
	c.PollWait = cmp.Or(c.PollWait, 30*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.Telemetry = cmp.Or(c.Telemetry, 15*time.Second)
	c.KillGrace = cmp.Or(c.KillGrace, 10*time.Second)
	c.StopGrace = cmp.Or(c.StopGrace, 10*time.Second)
	c.Patience = cmp.Or(c.Patience, 6*time.Hour)
	if c.Again == (backoff.Backoff{}) {
		c.Again = backoff.Backoff{Min: time.Minute, Max: 10 * time.Minute}
	}
	c.ReportAgain = cmp.Or(c.ReportAgain, time.Minute)
	c.Logs = c.Logs.withDefaults()
	if c.Resources.Disk > 0 {
		c.Limits.Bytes = min(cmp.Or(c.Limits.Bytes, c.Resources.Disk), c.Resources.Disk)
	}
	return c
}

// owner is the user of a slot; nil for the worker's own.
func (c Config) owner(slot int) *Owner {
	if len(c.Owners) == 0 {
		return nil
	}
	return c.Owners[slot]
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Name == "", "a worker needs a name")
	fault(c.StateDir == "", "a worker needs a state directory")
	fault(c.Command == nil, "a worker needs a command or an image")
	fault(c.Concurrency < 1 || c.Concurrency > 64, "concurrency %d: want 1 to 64", c.Concurrency)
	fault(len(c.Owners) > 0 && len(c.Owners) < c.Concurrency, "%d users for %d builds at once: each needs a user of its own, such as --user build1,build2; or run fewer at once, with --concurrency %d",
		len(c.Owners), c.Concurrency, len(c.Owners))
	for i, o := range c.Owners {
		for _, other := range c.Owners[:i] {
			fault(o.Credential.Uid == other.Credential.Uid, "users %q and %q are the same", other.Name, o.Name)
		}
	}
	fault(c.PollWait < time.Second || c.PollWait > time.Minute, "poll wait %s: want 1s to 60s", c.PollWait)
	fault(c.Heartbeat < 0, "heartbeat %s: negative", c.Heartbeat)
	fault(c.Timeout < 0, "time limit %s: negative", c.Timeout)
	fault(c.MaxTimeout < c.Timeout, "maximum time limit %s: less than the time limit %s", c.MaxTimeout, c.Timeout)
	for _, pattern := range c.AcceptEnv {
		_, err := path.Match(pattern, "")
		fault(err != nil, "parameters %q: not a pattern", pattern)
	}
	fault(c.Resources.CPUs < 0, "%v CPUs: negative", c.Resources.CPUs)
	fault(c.Resources.Memory < 0 || c.Resources.Disk < 0, "memory or disk limit: negative")
	for _, p := range c.Platforms {
		fault(!p.Valid(), "platform %q: want 1 to 32 of a-z, 0-9 and -", p)
	}
	return errors.Join(faults...)
}
