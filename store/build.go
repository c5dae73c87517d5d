package store

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Platform is the platform that a build targets.
type Platform string

// The platforms.
const (
	IOS     Platform = "ios"
	Android Platform = "android"
)

// Valid reports whether p can be a platform's name.
func (p Platform) Valid() bool { return validPlatform.MatchString(string(p)) }

var (
	validPlatform  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	validExtension = regexp.MustCompile(`^\.[a-z0-9]{1,8}$`)
)

// ResultExt returns the file extension of p's result, with the dot. For platforms other than
// ios and android it is that of the uploaded file.
func (p Platform) ResultExt(uploaded string) string {
	switch ext := strings.ToLower(path.Ext(uploaded)); {
	case p == Android:
		return ".apk"
	case p == IOS:
		return ".ipa"
	case validExtension.MatchString(ext):
		return ext
	}
	return ".bin"
}

// DefaultQueueLimit is how many builds may be pending when one more is submitted.
const DefaultQueueLimit = 1000

// BuildState is the state of a build:
//
//	pending → assigned → building → completed | failed | cancelled
//
// A build goes from assigned or building back to pending when the attempt is lost.
type BuildState string

// The states. Completed, Failed and Cancelled are final.
const (
	Pending   BuildState = "pending"
	Assigned  BuildState = "assigned" // handed out, not acknowledged
	Building  BuildState = "building" // its worker sent a heartbeat
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

// Wire returns the state as published clients understand it, because they refuse
// "cancelled".
func (s BuildState) Wire() string {
	if s == Cancelled {
		return string(Failed)
	}
	return string(s)
}

// Messages of builds that end without a result from their worker.
const (
	MessageCancelled = "Build cancelled by user"
	MessageTimeout   = "Build timeout - no heartbeat received"
	MessageLost      = "Build lost - its worker runs it no more"
	MessageFailed    = "Build failed"
)

// Build is one unit of work. Zero times mean "not yet".
type Build struct {
	ID string
	// Seq counts submissions: lists are in its order. It is 0 in what a submission
	// returns.
	Seq      int64
	Platform Platform
	State    BuildState
	// Priority is -10 to 10, default 0; higher is claimed first.
	Priority int
	// WorkerID is the worker that holds the build, or held it last; "" if it was never
	// assigned. It is "" for a build that is pending again: LastWorkerID names its last
	// worker.
	WorkerID     string
	LastWorkerID string
	// WorkerName is the name of the worker WorkerID; "" if that worker was deleted.
	WorkerName string
	// Attempt counts assignments; 0 before the first, never reset.
	Attempt int
	// Sender is the PostgreSQL process that notifies the controllers of a build that was just
	// submitted, else 0.
	Sender uint32
	// TokenHash is the SHA-256 of the build access token.
	TokenHash    TokenHash
	SubmittedAt  time.Time
	WaitingSince time.Time // when it became pending last; zero unless it is
	StartedAt    time.Time // when the current attempt was assigned
	LastSeenAt   time.Time // last heartbeat of the current attempt
	CompletedAt  time.Time // when the state became final
	UpdatedAt    time.Time
	ErrorMessage string
	Labels       Labels
	Submitter    string // the name of the key that submitted it; "" for the API key
	// ClassID and Require are those of the build's class. ClassID is 0 if the build ended
	// before there were classes.
	ClassID int32
	Require Require
	// Prefer is what the labels of the worker should satisfy that gets the build first.
	Prefer Require
	// Inputs are nil if there are none.
	Inputs *Inputs
	// Ended is how the command ended, as far as its worker said, or what ended the build.
	Ended Ended
	// EndedBy is who cancelled it, as the audit names them but without an address. EndedWhy is the
	// reason that they gave.
	EndedBy, EndedWhy string
	// RetryOf is the build that this one repeats; "" if it repeats none. Retries are those that
	// repeat this one, oldest first and at most 100; lists leave them out.
	RetryOf string
	Retries []string
	// Suspect says that it failed on a suspect worker, or made it one.
	Suspect bool
	// Source, Certs and Result describe the stored files; nil if absent.
	Source, Certs, Result *File
}

// Class returns the build's class.
func (b *Build) Class() Class { return Class{ID: b.ClassID, Platform: b.Platform, Require: b.Require} }

// Ref returns the reference to b, with the attempt that its worker is at.
func (b *Build) Ref() BuildRef {
	r := BuildRef{ID: b.ID, Platform: b.Platform, SubmittedAt: b.SubmittedAt}
	if !b.StartedAt.IsZero() {
		r.Attempt, r.WorkerID, r.StartedAt = b.Attempt, b.WorkerID, b.StartedAt
	}
	return r
}

// FileKind is the kind of a build's file.
type FileKind string

// The kinds of files.
const (
	SourceFile FileKind = "source"
	CertsFile  FileKind = "certs"
	ResultFile FileKind = "result"
)

// ErrKeyQueueFull returns the answer to a submitter whose key has most builds pending, as many
// as it may have.
func ErrKeyQueueFull(key string, most int) error {
	return &Error{
		Code: KeyQueueFull, RetryAfter: 5 * time.Second,
		Message: "Key " + key + " may have " + strconv.Itoa(most) + " pending builds at most: wait until one starts, or cancel some",
	}
}

// ErrKeyClassesFull returns the answer to a submitter whose key's pending builds are of as many
// classes as they may be; key is "" for the API key.
func ErrKeyClassesFull(key string, own int) error {
	name := "key " + key
	if key == "" {
		name = "the API key"
	}
	return &Error{
		Code: KeyClassesFull, RetryAfter: 5 * time.Second,
		Message: "Builds of " + name + " with " + strconv.Itoa(own) + " different platforms and requirements wait already, and the rest is left to other keys: " +
			"use requirements that more builds share, wait until some start, or cancel some",
	}
}

// ErrPriorityTooHigh returns the answer to a submitter whose key may have builds of a priority
// of most only.
func ErrPriorityTooHigh(key string, most int) error {
	return NewError(PriorityTooHigh, "Key "+key+" may submit builds with a priority of at most "+strconv.Itoa(most)+
		": submit with that one, or ask an operator to raise the build's priority or the key's limit")
}

// Submission is a submitter's request for a new build.
type Submission struct {
	ID       string
	Platform Platform
	Priority int
	Labels   Labels
	// Require and Prefer are as in Build. What the inputs need of a worker is added to Require.
	Require, Prefer Require
	// Inputs are nil if there are none.
	Inputs    *Inputs
	TokenHash TokenHash
	Source    File
	Certs     *File
	// Once is nil for a submission that may be made again.
	Once *Once
	// RetryOf is the build that this one repeats; "" if it is the first.
	RetryOf string
	// Submitter is the name of the submitter's key; "" for the API key.
	Submitter string
	// Refused is why the submission is refused if it does not repeat an earlier one; else nil.
	Refused error
}

// BuildFilter selects builds; empty fields match all.
type BuildFilter struct {
	States   []BuildState
	Platform Platform
	WorkerID string
	// Labels selects builds that have all of these labels.
	Labels Labels
	// Submitter selects the builds that the key of this name submitted. Unless they are pending or
	// held, only the last MaxSearched builds are searched.
	Submitter string
	// Unretried leaves out builds of which a retry was submitted. It is for builds that failed or
	// were cancelled, of the last MaxSearched ones.
	Unretried bool
	// Suspect selects builds that failed on a suspect worker.
	Suspect bool
	// Since and Until bound the time of submission.
	Since, Until time.Time
	// Text is a part of the id, the labels or the error, in any case. Only the last
	// MaxSearched builds are searched.
	Text string
}

// MaxSearched is how many builds are searched and counted, MaxCounted up to where.
const (
	MaxSearched = 100_000
	MaxCounted  = 10_000
)

// Result is a worker's report at the end of a build.
type Result struct {
	BuildID  string
	WorkerID string
	// Attempt is the assignment that the worker reports on; 0 if it did not say.
	Attempt int
	Success bool
	// ErrorMessage is used when Success is false; empty means MessageFailed. Fault says what
	// the attempt ended by.
	ErrorMessage string
	Fault        Fault
	// Ended is how the command ended when Success is false.
	Ended Ended
	// File is the stored result when Success is true.
	File *File
}

// Finished is how a result was recorded.
type Finished struct {
	// Repeat is true if it had been recorded before.
	Repeat bool
	// Again is true if the build is pending again.
	Again bool
	// Was is the build before it: id, platform, state, worker, attempt, labels, and when it was
	// submitted and started.
	Was Build
}

// Heartbeat is a heartbeat of a worker for a build.
type Heartbeat struct {
	BuildID  string
	WorkerID string
	// Attempt as in Result.
	Attempt int
	// Instance is the id of the worker's process, "" if the request named none.
	Instance string
	// Logs are written in the same transaction. May be empty. Kind is empty for lines that
	// the worker wrote; of those that takt made from a report it is their kind, and Facts are
	// theirs.
	Logs  []LogLine
	Kind  LineKind
	Facts LineFacts
}

// HeartbeatReply is the reply to a heartbeat.
type HeartbeatReply struct {
	// Began is true if this heartbeat acknowledged the build, which is now building. Of heartbeats
	// that arrive together it is true for one.
	Began bool
	// Attempt is the build's latest attempt.
	Attempt int
	// Cancelled tells the worker to stop. Only heartbeats set it.
	Cancelled bool
	// Over is true if the build was cancelled or has failed already.
	Over bool
	// Used is the worker's number and the highest counter that its row knows: a token
	// below it is superseded. Only heartbeats set it.
	Used WorkerToken
}

// Counts are the numbers of builds in each state that is not final.
type Counts struct {
	Pending, Assigned, Building int
}

// Totals are the numbers of all builds and workers.
type Totals struct {
	Counts
	// Completed, Failed and Cancelled count all builds ever. CompletedToday counts since
	// midnight UTC.
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
	// Key is the SHA-256 of the submitter's name for the submission. Content is the
	// SHA-256 of everything submitted.
	Key, Content [32]byte
	// Seal makes the bytes that are stored of the reply and returned with Repeated. It
	// is called within the transaction.
	Seal func(Build) ([]byte, error)
}

// Repeated is the error of a submission whose key was used before. Nothing was changed.
type Repeated struct {
	// Content is that of the first submission. It may differ from this one's.
	Content [32]byte
	// Reply is what Once.Seal returned for the first submission.
	Reply []byte
}

func (r *Repeated) Error() string { return "the idempotency key has been used" }
