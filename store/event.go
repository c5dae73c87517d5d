package store

import (
	"encoding/json"
	"time"
)

// The topics of the events below.
const (
	TopicBuildUpdated  = "build:updated"
	TopicWorkerUpdated = "worker:updated"
	TopicBuildUploaded = "build:uploaded" // within the controller only
)

// BuildUpdate is the data of the event build:updated: the current state of a build. Like
// every event it is a hint, so a subscriber reads the build before it acts.
type BuildUpdate struct {
	BuildID  string     `json:"build_id" schema:"ID"`
	State    BuildState `json:"state"`
	Platform Platform   `json:"platform,omitempty"`
	// WorkerID is the worker that holds the build, or held it last; "" if there is none
	// or the publisher does not know.
	WorkerID string `json:"worker_id,omitempty" schema:"ID"`
	// Step is for the log and the metrics of the controller where it happened. It is
	// sent to nobody.
	Step Step `json:"-"`
	// Was is the build before a change that ended it, for traces; zero for other changes.
	Was BuildRef `json:"-"`
}

// Uploaded is the data of an event that a result has arrived. It is not sent to clients.
type Uploaded struct {
	BuildID, WorkerID string
	Step              Step
}

// Step is a step of a build or a worker; empty if the change is no such step.
type Step struct {
	// What is one of the constants below.
	What string
	// Attempt is the build's attempt; 0 if it has none or it is not known.
	Attempt int
	// WorkerID is the worker that lost the attempt.
	WorkerID string
	// Lost is why the attempt was lost: one of the constants below or of WorkerFaults; or
	// why a worker was quarantined or is suspect.
	Lost string
	// Took is how long the step took: waiting for a worker, building, or sending the
	// result. 0 if it is not known.
	Took time.Duration
	// Bytes is the size of the source or of the result.
	Bytes int64
	// TraceID is the trace of the request that took a worker's step; "" without one. A
	// build has its own.
	TraceID string
}

// Lost is the event that b's attempt was lost, because of which it has a new state.
func Lost(b BuildRef, state BuildState, why string) BuildUpdate {
	u := BuildUpdate{
		BuildID: b.ID, State: state, Platform: b.Platform,
		Step: Step{What: StepLost, Attempt: b.Attempt, WorkerID: b.WorkerID, Lost: why}, Was: b,
	}
	if state == Failed {
		u.WorkerID = b.WorkerID
	}
	return u
}

// The steps of a build and of a worker.
const (
	StepSubmitted = "submitted"
	StepAssigned  = "assigned"
	StepBegan     = "began"
	StepLost      = "attempt lost"
	StepUploaded  = "uploaded"
	StepEnded     = "ended"

	StepRegistered = "registered"
	StepOffline    = "offline"
	StepDrained    = "drained"
	StepResumed    = "resumed"
	StepGone       = "gone"

	StepQuarantined = "quarantined"
	StepSuspected   = "suspected"
)

// Why an attempt ended without a result.
const (
	LostSilent       = "silent"       // no heartbeat for the build timeout
	LostRestarted    = "restarted"    // the worker came back without the build
	LostUnregistered = "unregistered" // the worker gave it back
	LostDeleted      = "deleted"      // an operator deleted the worker
	LostRequeued     = "requeued"     // an operator requeued the build
	LostExit         = "exit"         // its exit code was one after which the build is tried again
)

// WorkerUpdate is the data of the event worker:updated.
type WorkerUpdate struct {
	WorkerID string       `json:"worker_id" schema:"ID"`
	Status   WorkerStatus `json:"status"`
	// Draining workers get no builds.
	Draining bool `json:"draining,omitempty"`
	// Deleted is true for a worker that was deleted.
	Deleted bool `json:"deleted,omitempty"`
	// Step as in BuildUpdate.
	Step Step `json:"-"`
}

// WrongKey is the action of audit entries about clients that sent a wrong key.
const WrongKey = "wrong key"

// AuditEntry is one action of an operator.
type AuditEntry struct {
	ID int64
	// At is when the action began; the zero time means now, by the database's clock.
	At time.Time
	// Actor is who acted, Action what was done, Target to what, and Reason why.
	Actor, Action, Target, Reason string
	// Detail is a JSON object with further data of the action; nil for none.
	Detail json.RawMessage
	// Outcome is how the action ended; "" while unknown.
	Outcome string
}

// TargetName returns the target of an audit entry, with the name that detail has of it.
func TargetName(target string, detail json.RawMessage) string {
	var of struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(detail, &of) != nil || of.Name == "" {
		return target
	}
	return target + " (" + of.Name + ")"
}

// TargetName returns the target with its name.
func (e AuditEntry) TargetName() string { return TargetName(e.Target, e.Detail) }
