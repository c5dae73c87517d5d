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

// Registration is a worker's request to join.
type Registration struct {
	// ID is the worker's own or, if Fresh, a new one made for it.
	ID           string
	Name         string
	Capabilities json.RawMessage
	Platforms    []Platform
	Slots        int
	// Token is the hash of its first token; TTL how long that is valid.
	Token TokenHash
	TTL   time.Duration
}

// Registered is what a registration made.
type Registered struct {
	// Again is true if the worker was known.
	Again bool
	// Status and Draining are as in Worker.
	Status   WorkerStatus
	Draining bool
}

// Departure is a worker that has left, and the builds that it gave back.
type Departure struct {
	WorkerID string
	Requeued []BuildRef
}

// Poll is one worker's request for a build, as the queue hands it to the store.
// Token rotation has two phases: the presented token stays valid (until its own
// expiry) until its successor is first used to poll.
type Poll struct {
	// Token is the hash of the presented token; zero if the worker gave only
	// its WorkerID.
	Token    TokenHash
	WorkerID string
	// Next is the hash of the token that will be current if the poll is answered.
	Next TokenHash
	Mode PollMode
	// Seq is the worker's poll_seq as PollResult gave it, for Resume and Expire.
	Seq int64
	// Active lists the builds that the worker says it has; valid if Reconcile.
	Active    []string
	Reconcile bool
}

// PollMode is which half of a poll this is.
type PollMode uint8

const (
	// Answer serves a poll that does not wait: rotate always, claim if possible.
	Answer PollMode = iota
	// Park serves the arrival of a waiting poll: rotate only with a job, else
	// record presence and poll_seq alone.
	Park
	// Resume serves a parked poll that was woken: a job, or no write at all.
	Resume
	// Expire serves a parked poll whose time is up: as Answer, if Seq holds.
	Expire
)

// PollOutcome is how the store took a poll.
type PollOutcome uint8

const (
	// PollAnswered means: the token was rotated (Next is current); Job may be nil.
	PollAnswered PollOutcome = iota
	// PollParked means: nothing to do now; the token was not rotated.
	PollParked
	// PollSuperseded means: a newer poll of this worker exists; nothing was written.
	PollSuperseded
	// PollUnknownToken means: the token is unknown or expired (401).
	PollUnknownToken
	// PollUnknownWorker means: no worker has this id (404).
	PollUnknownWorker
	// PollFailed means: this poll alone could not be served, Err says why (500).
	// The others of its batch were.
	PollFailed
)

// PollResult is the answer to one Poll, at the same index.
type PollResult struct {
	Outcome  PollOutcome
	WorkerID string
	Seq      int64
	// Platforms as in Worker; Free is whether a slot is left (after Job).
	Platforms []Platform
	Free      bool
	Job       *Job
	// Redelivered is true when Job had been handed out before (same attempt).
	Redelivered bool
	// Err is the cause of PollFailed, nil otherwise.
	Err error
}

// Job is a build as it is handed to a worker.
type Job struct {
	BuildID     string
	Platform    Platform
	Attempt     int
	HasCerts    bool
	SubmittedAt time.Time
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
	// Requeue is false when a lost attempt fails the build at once.
	Requeue bool
}

// Sweep is one pass over silent builds and workers.
type Sweep struct {
	Timeouts Timeouts
	Rule     LostRule
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
