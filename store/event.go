package store

import (
	"encoding/json"
	"time"
)

// The topics of what follows.
const (
	TopicBuildUpdated  = "build:updated"
	TopicWorkerUpdated = "worker:updated"
)

// BuildUpdate is the data of TopicBuildUpdated: a build has this state
// now. Like every event it is a hint; whoever acts on it reads the build.
type BuildUpdate struct {
	BuildID  string     `json:"build_id"`
	State    BuildState `json:"state"`
	Platform Platform   `json:"platform,omitempty"`
	// WorkerID is the holder or the last one; "" if there is none, or if the
	// publisher does not know.
	WorkerID string `json:"worker_id,omitempty"`
}

// WorkerUpdate is the data of TopicWorkerUpdated.
type WorkerUpdate struct {
	WorkerID string       `json:"worker_id"`
	Status   WorkerStatus `json:"status"`
	// Draining workers get no builds.
	Draining bool `json:"draining,omitempty"`
	// Deleted is true for a worker that exists no more.
	Deleted bool `json:"deleted,omitempty"`
}

// AuditEntry is one thing that an operator did.
type AuditEntry struct {
	ID int64
	// At is when it began; the zero time means now, by the database's clock.
	At time.Time
	// Actor is who, Action what, Target to what, Reason why.
	Actor, Action, Target, Reason string
	// Detail is a JSON object with whatever else the action has; nil for none.
	Detail json.RawMessage
	// Outcome is how it ended; "" while that is not known.
	Outcome string
}
