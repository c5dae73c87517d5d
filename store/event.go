package store

import (
	"encoding/json"
	"time"
)

// The topics of the events below.
const (
	TopicBuildUpdated  = "build:updated"
	TopicWorkerUpdated = "worker:updated"
)

// BuildUpdate is the data of TopicBuildUpdated: the current state of a build. Like
// every event it is a hint, so a subscriber reads the build before it acts.
type BuildUpdate struct {
	BuildID  string     `json:"build_id"`
	State    BuildState `json:"state"`
	Platform Platform   `json:"platform,omitempty"`
	// WorkerID is the worker that holds the build, or held it last; "" if there is none
	// or the publisher does not know.
	WorkerID string `json:"worker_id,omitempty"`
}

// WorkerUpdate is the data of TopicWorkerUpdated.
type WorkerUpdate struct {
	WorkerID string       `json:"worker_id"`
	Status   WorkerStatus `json:"status"`
	// Draining workers get no builds.
	Draining bool `json:"draining,omitempty"`
	// Deleted is true for a worker that was deleted.
	Deleted bool `json:"deleted,omitempty"`
}

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
