package store

import (
	"encoding/json"
	"time"
)

// WorkerStatus is the status of a worker.
type WorkerStatus string

// The statuses. An offline worker that polls or registers becomes idle again.
const (
	Idle    WorkerStatus = "idle"
	Busy    WorkerStatus = "building" // holds at least one build
	Offline WorkerStatus = "offline"
)

// Worker is a machine that builds.
type Worker struct {
	ID string
	// Number counts the first registrations: lists are in its order.
	Number       int64
	Name         string
	Capabilities json.RawMessage // as sent, a JSON object
	// Platforms are those that it builds; empty means ios and android.
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
	// Labels are what builds can require and prefer.
	Labels Labels
	// Draining workers get no new builds and keep those that they hold, until they are
	// resumed. A new registration does not end draining.
	Draining bool
	// Quarantine is why the worker is quarantined; "" if it is not. A quarantined worker
	// gets no builds until RestsUntil, then one as a trial. Registering does not end that.
	Quarantine string
	RestsUntil time.Time
	// Suspect is why the worker is suspect, since SuspectSince; "" if it is not. Until it has completed
	// two trials, it gets one build after each rest, unless SuspectServed: then it gets builds as
	// before, because too few other workers can take some that wait.
	Suspect       string
	SuspectSince  time.Time
	SuspectServed bool
	// ConflictAt is about when another process with the same id was last refused, and
	// ConflictFrom its address; zero if that was over two minutes ago.
	ConflictAt   time.Time
	ConflictFrom string
}

// WorkerSilence is how long the process that holds a worker id must be silent before
// another process may take the id over.
const WorkerSilence = 30 * time.Second

// UnnamedInstance stands for a process that does not name itself, of a worker whose key is for
// it alone: without a name it could pass for any process.
const UnnamedInstance = "unnamed"

// ErrDuplicateWorker returns the answer to a process whose worker id another one holds.
func ErrDuplicateWorker() *Error {
	return &Error{Code: DuplicateWorker, Message: "Another process uses this worker id", RetryAfter: WorkerSilence / 3}
}

// ErrLateRegistration returns the answer to a registration after which its process has sent
// another one. Its sender has given it up, or it was delivered twice.
func ErrLateRegistration() *Error {
	return &Error{Code: LateRegistration, Message: "A later registration of this process was executed"}
}

// Registered is the result of a registration.
type Registered struct {
	// Again is true if the worker was registered before.
	Again bool
	// Token is the content of its next token. All earlier tokens are superseded.
	Token WorkerToken
	// Status and Draining are as in Worker.
	Status   WorkerStatus
	Draining bool
	// Requeued and Failed are the builds that the worker held and did not list.
	Requeued, Failed []BuildRef
}

// Departure is a worker that has left, and the builds that it gave back.
type Departure struct {
	WorkerID string
	Requeued []BuildRef
}

// DefaultTimeout is how long builds and workers may be silent.
const DefaultTimeout = 5 * time.Minute

// Timeouts are HeartbeatMonitor's settings, changeable at run time.
type Timeouts struct {
	CheckInterval time.Duration // default 60 s
	BuildTimeout  time.Duration // default 300 s
	WorkerTimeout time.Duration // default 300 s
}

// DefaultAttempts is how many attempts a build has by default.
const DefaultAttempts = 3

// LostRule is the consequence of a lost attempt for its build.
type LostRule struct {
	// MaxAttempts is how many attempts a build has before it fails; default DefaultAttempts.
	MaxAttempts int
}

// Sweep is one pass over builds and workers without a recent heartbeat.
type Sweep struct {
	Timeouts Timeouts
	Rule     LostRule
	// Patience is how long the database may take to begin. A slower sweep fails, because
	// workers could not heartbeat meanwhile.
	Patience time.Duration
	// Clock is the last reading of the database's clock; zero if there is none. If the
	// clock was set forward by more than MaxClockStep since then, the sweep does nothing,
	// because every heartbeat would look too old.
	Clock ClockReading
}

// MaxClockStep is the largest forward step of the database's clock that a sweep ignores.
const MaxClockStep = 5 * time.Second

// ClockReading pairs a time of the database's clock with one of this controller's.
type ClockReading struct{ Database, At time.Time }

// Then returns the database's time at a later moment of this controller's monotonic clock,
// assuming that the database's clock was not set meanwhile.
func (c ClockReading) Then(at time.Time) time.Time { return c.Database.Add(at.Sub(c.At)) }

// SweepResult is the result of a sweep.
type SweepResult struct {
	// Skipped is true if another controller was sweeping.
	Skipped bool
	// ClockStep is true if nothing was done because the database's clock was set forward.
	ClockStep bool
	Requeued  []BuildRef
	Failed    []BuildRef
	Offline   []string // worker ids
}

// BuildRef names a build and where it waits.
type BuildRef struct {
	ID       string
	Platform Platform
	// WorkerID and Attempt are those of the attempt that was lost; zero if none was.
	WorkerID string
	Attempt  int
	// SubmittedAt is the build's. StartedAt is when the attempt was assigned; zero if none
	// was lost or its assignment is not known.
	SubmittedAt, StartedAt time.Time
	// Position is its place in the queue if it waits again; only the store needs it.
	Position int64
	// ClassID is the number of its class, 0 if that is not known.
	ClassID int32
	// Sender is the PostgreSQL process that notifies the controllers of it, 0 if it is not known.
	Sender uint32 `db:"-"`
}
