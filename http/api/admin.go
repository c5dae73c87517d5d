package api

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"takt/store"
)

// Order is the body of POST /admin/tree/…/restart, terminate and start.
type Order struct {
	// Reason is required and goes into the audit.
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Plan describes what an order does. It is the reply to ?dry_run=1. It also comes
// with status 202 for an order that stops the HTTP server itself, because such an
// order runs after the reply.
type Plan struct {
	Action string `json:"action" enum:"restart,terminate,start"`
	Path   string `json:"path"`
	// Affected are the paths of all nodes that stop (or start), in that order.
	Affected []string `json:"affected"`
	// Requests is the number of requests in progress, parked polls included.
	Requests int `json:"requests"`
	// Detached says that the reply comes before the order runs.
	Detached bool `json:"detached"`
}

// HeartbeatSettings are the time-outs of GET and PUT /admin/heartbeat, in seconds. A
// PUT leaves the absent ones as they are.
type HeartbeatSettings struct {
	CheckInterval *float64 `json:"check_interval,omitempty" over:"0"`
	BuildTimeout  *float64 `json:"build_timeout,omitempty" over:"0"`
	WorkerTimeout *float64 `json:"worker_timeout,omitempty" over:"0"`
	// Reason goes into the audit. It is optional in a PUT.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// NewHeartbeatSettings converts time-outs.
func NewHeartbeatSettings(t store.Timeouts) HeartbeatSettings {
	check, build, worker := t.CheckInterval.Seconds(), t.BuildTimeout.Seconds(), t.WorkerTimeout.Seconds()
	return HeartbeatSettings{CheckInterval: &check, BuildTimeout: &build, WorkerTimeout: &worker}
}

// AuditEntry is one action of an operator.
type AuditEntry struct {
	ID     int64           `json:"id"`
	At     string          `json:"at" schema:"Time"`
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
	Supervision []json.RawMessage `json:"supervision" type:"object"`
	// Database holds PostgreSQL's statistics; null if it does not answer.
	Database json.RawMessage `json:"database" type:"object,null"`
	// DatabaseError says why Database is null.
	DatabaseError string `json:"database_error,omitempty"`
}

// BuildInfo says what the program was built from.
type BuildInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	System  string `json:"system"` // operating system and architecture
	// Settings are those of the compiler, such as vcs.revision and -race.
	Settings map[string]string `json:"settings"`
	// Modules are the versions of the dependencies by path.
	Modules map[string]string `json:"modules"`
}

// Reason is the body of an order whose reason may be left out.
type Reason struct {
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// Why is the reason of an order that has no body.
type Why struct {
	// Reason goes into the audit; that of a cancel is shown with the build, too.
	Reason string `query:"reason" max:"1000"`
}

// ShowAuditIn is the input of ShowAudit.
type ShowAuditIn struct {
	Limit int `query:"limit" min:"1" max:"1000" default:"100"`
	Continue
}

// TakeProfileIn is the input of TakeProfile.
type TakeProfileIn struct {
	// Name is profile (of the processor), trace, or a profile of Go such as heap, goroutine
	// or allocs.
	Name string `path:"name"`
	// Seconds is how long profile and trace record.
	Seconds int `query:"seconds" min:"1" max:"60" default:"10"`
	// Debug is 1 for text, 2 for the stack of each goroutine.
	Debug int `query:"debug" min:"0" max:"2" default:"0"`
}

// ShowTimeouts is GET /admin/heartbeat.
var ShowTimeouts = declare[None, HeartbeatSettings](buildOrders, AdminKey, scopeOperate, Ops, "GET /admin/heartbeat", Route{ID: "showTimeouts", Summary: "Show the time-outs"})

// ChangeTimeouts is PUT /admin/heartbeat.
var ChangeTimeouts = declare[HeartbeatSettings, HeartbeatSettings](buildOrders, AdminKey, scopeOperate, Ops, "PUT /admin/heartbeat", Route{
	ID: "changeTimeouts", Summary: "Change the time-outs",
})

// ShowDebug is GET /admin/debug.
var ShowDebug = declare[None, Debug](operators, AdminKey, scopeAdmin, Ops, "GET /admin/debug", Route{
	ID: "showDebug", Summary: "Show build information, masked settings, the recent log, supervision events and the database's statistics",
})

// TakeProfile is GET /admin/debug/pprof/:name.
var TakeProfile = declare[TakeProfileIn, None](operators, AdminKey, scopeAdmin, Ops, "GET /admin/debug/pprof/:name", Route{
	ID: "takeProfile", Errors: []int{409}, Media: []string{anyFile, "text/plain"}, Summary: "Take a profile of the process, one at a time",
	Says: "The profile, for go tool pprof or go tool trace.",
})

// ShowAudit is GET /admin/audit.
var ShowAudit = declare[ShowAuditIn, Audit](operators, AdminKey, scopeAdmin, Ops, "GET /admin/audit", Route{
	ID: "showAudit", Headers: paged, Summary: "Show the audit, newest first",
})

// CheckInvariants is GET /admin/audit/check.
var CheckInvariants = declare[None, Invariants](operators, AdminKey, scopeAdmin, Ops, "GET /admin/audit/check", Route{
	ID: "checkInvariants", Errors: []int{400}, Summary: "Check the invariants of the database",
})

// RepairInvariants is POST /admin/audit/check.
var RepairInvariants = declare[Order, Invariants](operators, AdminKey, scopeAdmin, Ops, "POST /admin/audit/check", Route{
	ID: "repairInvariants", Summary: "Check the invariants, and repair what can be repaired without loss",
})

// MaxReason is the longest reason, in bytes.
const MaxReason = 1000

// cleanReason makes a reason fit for the audit.
func cleanReason(why *string) error {
	if *why = strings.TrimSpace(store.Text(*why)); len(*why) > MaxReason {
		return invalid("reason must have at most 1000 bytes")
	}
	return nil
}

// needReason is cleanReason for a reason that may not be left out.
func needReason(why *string) error {
	if err := cleanReason(why); err != nil {
		return err
	}
	if *why == "" {
		return invalid("reason is required")
	}
	return nil
}

// HoldFor returns how long a change holds that says "2h"; 0 is for ever, which "" means.
func HoldFor(sent string) (time.Duration, error) {
	if sent == "" {
		return 0, nil
	}
	d, err := ParseDuration(sent)
	if err != nil || d < time.Second {
		return 0, invalid(`for must be a duration such as "2h" or "90m", at least 1s`)
	}
	return d, nil
}

// checkChange checks the members that all changes have.
func checkChange(reason *string, hold string) error {
	if err := needReason(reason); err != nil {
		return err
	}
	_, err := HoldFor(hold)
	return err
}

// ParseDuration reads a duration such as 90m, or a number of seconds.
func ParseDuration(v string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(v, 64); err == nil && math.Abs(n) < 1<<31 {
		return time.Duration(n * float64(time.Second)), nil
	}
	return time.ParseDuration(v)
}

// Check implements [Checker].
func (o *Order) Check() error { return needReason(&o.Reason) }

// Check implements [Checker].
func (r *Reason) Check() error { return cleanReason(&r.Reason) }

// Check implements [Checker].
func (h *HeartbeatSettings) Check() error { return cleanReason(&h.Reason) }
