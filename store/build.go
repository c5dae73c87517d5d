package store

import (
	"time"
)

// Platform is what a build is for.
type Platform string

// The platforms.
const (
	IOS     Platform = "ios"
	Android Platform = "android"
)

// Valid reports whether p is a known platform.
func (p Platform) Valid() bool { return p == IOS || p == Android }

// ResultExt is the extension of p's result file, with the dot.
func (p Platform) ResultExt() string {
	if p == Android {
		return ".apk"
	}
	return ".ipa"
}

// BuildState is where a build stands:
//
//	pending → assigned → building → completed | failed | cancelled
//
// assigned and building fall back to pending when the attempt is lost.
type BuildState string

// The states. Completed, Failed and Cancelled are final.
const (
	Pending   BuildState = "pending"
	Assigned  BuildState = "assigned" // handed out, not acknowledged
	Building  BuildState = "building" // its worker gave a sign of life
	Completed BuildState = "completed"
	Failed    BuildState = "failed"
	Cancelled BuildState = "cancelled"
)

// The bounds of a priority.
const (
	MinPriority = -10
	MaxPriority = 10
)

// Final reports whether s never changes again.
func (s BuildState) Final() bool { return s == Completed || s == Failed || s == Cancelled }

// Held reports whether a worker holds a build in this state.
func (s BuildState) Held() bool { return s == Assigned || s == Building }

// Wire is the state that published clients understand: they refuse "cancelled".
func (s BuildState) Wire() string {
	if s == Cancelled {
		return string(Failed)
	}
	return string(s)
}

// Messages that end a build without its worker's word.
const (
	MessageCancelled = "Build cancelled by user"
	MessageTimeout   = "Build timeout - no heartbeat received"
	MessageLost      = "Build lost - its worker runs it no more"
	MessageFailed    = "Build failed"
)

// Build is one unit of work. Zero times mean "not yet".
type Build struct {
	ID       string
	Platform Platform
	State    BuildState
	// Priority is -10 to 10, default 0; higher is claimed first.
	Priority int
	// WorkerID is the holder, or the last one; "" if never assigned. A build
	// that is pending again has none, its last holder is LastWorkerID.
	WorkerID     string
	LastWorkerID string
	// WorkerName is the name of the worker WorkerID; "" if that is no more.
	WorkerName string
	// Attempt counts assignments; 0 before the first, never reset.
	Attempt int
	// TokenHash is the SHA-256 of the build access token.
	TokenHash    TokenHash
	SubmittedAt  time.Time
	StartedAt    time.Time // when the current attempt was assigned
	LastSeenAt   time.Time // last sign of life of the current attempt
	CompletedAt  time.Time // when the state became final
	UpdatedAt    time.Time
	ErrorMessage string
	Labels       Labels
	// Source, Certs and Result describe the stored files; nil if absent.
	Source, Certs, Result *File
}

// FileKind is what a build's file is.
type FileKind string

// The kinds of files.
const (
	SourceFile FileKind = "source"
	CertsFile  FileKind = "certs"
	ResultFile FileKind = "result"
)

// Submission is a new build as its submitter asks for it.
type Submission struct {
	ID        string
	Platform  Platform
	Priority  int
	Labels    Labels
	TokenHash TokenHash
	Source    File
	Certs     *File
	// Once is nil for a submission that may be made again.
	Once *Once
	// RetryOf is the build that this one repeats; "" if it is the first.
	RetryOf string
}

// BuildFilter selects builds; empty fields match all. Newest first.
type BuildFilter struct {
	States   []BuildState
	Platform Platform
	WorkerID string
	// Limit is the most to return; 0 means all.
	Limit int
}

// Result is what a worker says of a build at its end.
type Result struct {
	BuildID  string
	WorkerID string
	// Attempt is the assignment that the worker speaks of, 0 if it did not say.
	Attempt int
	Success bool
	// ErrorMessage is used when Success is false; empty means MessageFailed.
	ErrorMessage string
	// File is the stored result when Success is true.
	File *File
}

// Beat is a sign of life for a build from its worker.
type Beat struct {
	BuildID  string
	WorkerID string
	// Attempt as in Result.
	Attempt int
	// Logs are written in the same transaction. May be empty.
	Logs []LogLine
}

// BeatReply is what a sign of life found.
type BeatReply struct {
	// Began is true if it acknowledged the build, which is building from then on.
	Began bool
	// Cancelled tells the worker to stop; of a heartbeat only.
	Cancelled bool
}

// Level is the severity of a log line.
type Level string

// The levels.
const (
	Info       Level = "info"
	Warn       Level = "warn"
	ErrorLevel Level = "error"
)

// Valid reports whether l is a known level.
func (l Level) Valid() bool { return l == Info || l == Warn || l == ErrorLevel }

// LogLine is one line of a build's log. Seq and At are set by the store.
type LogLine struct {
	// Seq grows within a build, without promise of being dense.
	Seq     int64
	At      time.Time
	Level   Level
	Message string
}

// Tail is what is new in a build's log, and the build's state at the same moment.
type Tail struct {
	State BuildState
	Lines []LogLine
	// More says that there may be further lines.
	More bool
}

// Limits of a build's log.
const (
	// MaxBuildLog is how much a build may write, in bytes, and LogLineCost what a
	// line costs of that beside its text. What comes later is dropped.
	MaxBuildLog = 64 << 20
	LogLineCost = 48
	// MessageLogLimit is the last line of a log that has reached it.
	MessageLogLimit = "log limit reached"
	// LogPage is about the most of a log that is read at once, in bytes; one line is
	// read whatever its length.
	LogPage = 256 << 10
)

// LogMark is how far a build's log is; it moves on with each line and each change
// of the state.
type LogMark struct {
	Seq   int64
	State BuildState
}

// Counts are the numbers of builds per state that are not history.
type Counts struct {
	Pending, Assigned, Building int
}

// Totals are the numbers of all builds and of the fleet.
type Totals struct {
	Counts
	// Completed, Failed and Cancelled builds there ever were; CompletedToday is
	// since midnight UTC.
	Completed, Failed, Cancelled, CompletedToday int64
	// BuildTime is the sum over completed and failed builds, from the last
	// assignment to the end.
	BuildTime time.Duration
	// WorkersOnline were seen within the last two minutes.
	WorkersOnline int
	// CPUPercent is the mean of all figures that workers reported; 0 without any.
	CPUPercent float64
}

// Once makes a submission happen at most once a day.
type Once struct {
	// Key is the SHA-256 of the submitter's name for it, Content of all that is
	// submitted.
	Key, Content [32]byte
	// Seal makes what is kept of the reply, and given out again with Repeated. It
	// is called within the transaction.
	Seal func(Build) ([]byte, error)
}

// Repeated is the error of a submission whose key has been used already. Nothing
// was changed.
type Repeated struct {
	// Content is that of the first submission; it may differ.
	Content [32]byte
	// Reply is what Once.Seal made then.
	Reply []byte
}

func (r *Repeated) Error() string { return "the idempotency key has been used" }
