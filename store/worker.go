package store

import (
	"encoding/json"
	"time"
)

// WorkerStatus is where a worker stands.
type WorkerStatus string

// The statuses. An offline worker that polls or registers is idle again.
const (
	Idle    WorkerStatus = "idle"
	Busy    WorkerStatus = "building" // holds at least one build
	Offline WorkerStatus = "offline"
)

// Worker is a machine that builds.
type Worker struct {
	ID           string
	Name         string
	Capabilities json.RawMessage // as sent, a JSON object
	// Platforms are those that it takes; empty means every platform.
	Platforms []Platform
	// Slots is how many builds it holds at most, at least 1.
	Slots        int
	Status       WorkerStatus
	RegisteredAt time.Time
	LastSeenAt   time.Time
	Completed    int
	Failed       int
	// Held is how many builds it has.
	Held int
	// Draining workers get no builds and keep those that they have, until they
	// are resumed: a new registration does not end it.
	Draining bool
}

// Registered is what a registration made.
type Registered struct {
	// Again is true if the worker was known.
	Again bool
	// Token is what its next token says. All that it had before are superseded.
	Token WorkerToken
	// Status and Draining are as in Worker.
	Status   WorkerStatus
	Draining bool
	// Requeued and Failed are the builds that the worker held and does not list.
	Requeued, Failed []BuildRef
}

// Departure is a worker that has left, and the builds that it gave back.
type Departure struct {
	WorkerID string
	Requeued []BuildRef
}

// Timeouts are HeartbeatMonitor's settings, changeable at run time.
type Timeouts struct {
	CheckInterval time.Duration // default 60 s
	BuildTimeout  time.Duration // default 300 s
	WorkerTimeout time.Duration // default 300 s
}

// LostRule is what a lost attempt does to a build.
type LostRule struct {
	// MaxAttempts is how many attempts a build has before it fails; default 3.
	MaxAttempts int
}

// Sweep is one pass over silent builds and workers.
type Sweep struct {
	Timeouts Timeouts
	Rule     LostRule
	// Patience is the longest that the database may take to begin: what stood still
	// with it could not beat.
	Patience time.Duration
}

// SweepResult says what a sweep did.
type SweepResult struct {
	// Skipped is true when another controller was sweeping.
	Skipped  bool
	Requeued []BuildRef
	Failed   []BuildRef
	Offline  []string // worker ids
}

// BuildRef names a build and where it waits.
type BuildRef struct {
	ID       string
	Platform Platform
}
