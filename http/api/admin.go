package api

import (
	"encoding/json"

	"takt/store"
)

// Order is the body of POST /admin/tree/…/restart, terminate and start.
type Order struct {
	// Reason is required and goes into the audit.
	Reason string `json:"reason"`
}

// Plan describes what an order does. It is the reply to ?dry_run=1. It also comes
// with status 202 for an order that stops the HTTP server itself, because such an
// order runs after the reply.
type Plan struct {
	Action string `json:"action"` // restart, terminate or start
	Path   string `json:"path"`
	// Affected are the paths of all nodes that stop (or start), in that order.
	Affected []string `json:"affected"`
	// Requests is the number of requests in progress, parked polls included.
	Requests int `json:"requests"`
	// Detached says that the reply comes before the order runs.
	Detached bool `json:"detached"`
}

// The faults of drills, besides orders to the tree.
const (
	// FaultConnections ends all connections to the database, once.
	FaultConnections = "connections"
	// FaultListener leaves the database's notifications unread.
	FaultListener = "listener"
	// FaultStorage makes the storage of files slow.
	FaultStorage = "storage"
)

// Fault is the body of POST /admin/drill, and its reply.
type Fault struct {
	Fault string `json:"fault"`
	// Seconds is how long it lasts, up to 60.
	Seconds float64 `json:"seconds,omitempty"`
	// Reason goes into the audit.
	Reason string `json:"reason"`
}

// HeartbeatSettings are the time-outs of GET and PUT /admin/heartbeat, in seconds. A
// PUT leaves the absent ones as they are.
type HeartbeatSettings struct {
	CheckInterval *float64 `json:"check_interval,omitempty"`
	BuildTimeout  *float64 `json:"build_timeout,omitempty"`
	WorkerTimeout *float64 `json:"worker_timeout,omitempty"`
	// Reason goes into the audit. It is optional in a PUT.
	Reason string `json:"reason,omitempty"`
}

// NewHeartbeatSettings converts time-outs.
func NewHeartbeatSettings(t store.Timeouts) HeartbeatSettings {
	check, build, worker := t.CheckInterval.Seconds(), t.BuildTimeout.Seconds(), t.WorkerTimeout.Seconds()
	return HeartbeatSettings{CheckInterval: &check, BuildTimeout: &build, WorkerTimeout: &worker}
}

// AuditEntry is one action of an operator.
type AuditEntry struct {
	ID     int64           `json:"id"`
	At     string          `json:"at"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`
	Target string          `json:"target"`
	Reason string          `json:"reason"`
	Detail json.RawMessage `json:"detail"`
	// Outcome is "done" or the reason why not; null while it is unknown.
	Outcome *string `json:"outcome"`
}

// NewAuditEntry converts an entry.
func NewAuditEntry(e store.AuditEntry) AuditEntry {
	return AuditEntry{
		ID: e.ID, At: FormatTime(e.At), Actor: e.Actor, Action: e.Action, Target: e.Target, Reason: e.Reason, Detail: e.Detail,
		Outcome: optional(e.Outcome),
	}
}

// Invariants is the reply of GET and POST /admin/audit/check.
type Invariants struct {
	Invariants []store.Invariant `json:"invariants"`
}

// Audit is the reply of GET /admin/audit, newest first.
type Audit struct {
	Entries []AuditEntry `json:"entries"`
}

// Debug answers GET /admin/debug: what a report of a fault needs, besides the tree, the
// metrics and profiles. No secret is in it.
type Debug struct {
	Build BuildInfo `json:"build"`
	// Settings are the effective ones by name; secrets are masked.
	Settings map[string]string `json:"settings"`
	// Log holds the newest lines of the log, oldest first. Long lines are cut.
	Log []string `json:"log"`
	// Supervision holds the newest supervision events, oldest first, as in the stream of
	// events.
	Supervision []json.RawMessage `json:"supervision"`
	// Database holds PostgreSQL's statistics; null if it does not answer.
	Database json.RawMessage `json:"database"`
	// DatabaseError says why Database is null.
	DatabaseError string `json:"database_error,omitempty"`
}

// BuildInfo says what the program was built from.
type BuildInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	System  string `json:"system"` // operating system and architecture
	// Settings are those of the Go tool chain, such as vcs.revision and -race.
	Settings map[string]string `json:"settings"`
	// Modules are the versions of the dependencies by path.
	Modules map[string]string `json:"modules"`
}
