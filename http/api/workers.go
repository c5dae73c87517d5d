package api

import (
	"encoding/json"
	"fmt"
	"time"

	"takt/store"
)

// FailBuild is the body of POST /api/workers/fail.
type FailBuild struct {
	BuildID string `json:"build_id" schema:"ID"`
	Error   string `json:"error,omitempty"`
	// ExitCode, Signal or TimedOut say how the command ended.
	ExitCode *int `json:"exit_code,omitempty" null:"never"`
	Signal   *int `json:"signal,omitempty" null:"never"`
	TimedOut bool `json:"timed_out,omitempty"`
}

// BeatBuild is the body of POST /api/workers/heartbeat.
type BeatBuild struct {
	BuildID string `json:"build_id" schema:"ID"`
}

// BeatReply answers a BeatBuild.
type BeatReply struct {
	Success bool `json:"success" const:"true"`
	HeartbeatReply
}

// WorkerStats answers GET /api/workers/:id/stats.
type WorkerStats struct {
	TotalBuilds      int    `json:"totalBuilds"`
	SuccessfulBuilds int    `json:"successfulBuilds"`
	FailedBuilds     int    `json:"failedBuilds"`
	WorkerName       string `json:"workerName"`
	Status           string `json:"status" schema:"WorkerStatus"`
	// Uptime is the time since the worker first registered: 3d 14h, 5h 23m, 23m 45s,
	// 45s.
	Uptime string `json:"uptime" pattern:"^([0-9]+d [0-9]+h|[0-9]+h [0-9]+m|[0-9]+m [0-9]+s|[0-9]+s)$"`
}

// NewWorkerStats returns a worker's figures as of now.
func NewWorkerStats(w store.Worker, now time.Time) WorkerStats {
	return WorkerStats{
		TotalBuilds: w.Completed + w.Failed, SuccessfulBuilds: w.Completed, FailedBuilds: w.Failed,
		WorkerName: w.Name, Status: string(w.Status), Uptime: uptime(now.Sub(w.RegisteredAt)),
	}
}

// uptime formats d for published menus. It has the two largest units, because the
// menus look for their letters.
func uptime(d time.Duration) string {
	seconds := int64(max(d, 0) / time.Second)
	switch {
	case seconds >= 86400:
		return fmt.Sprintf("%dd %dh", seconds/86400, seconds%86400/3600)
	case seconds >= 3600:
		return fmt.Sprintf("%dh %dm", seconds/3600, seconds%3600/60)
	case seconds >= 60:
		return fmt.Sprintf("%dm %ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%ds", seconds)
}

// Worker is a machine that builds.
type Worker struct {
	ID     string `json:"id" schema:"ID"`
	Name   string `json:"name"`
	Status string `json:"status" schema:"WorkerStatus"`
	// State is Status, unless there is more to say: draining and quarantined workers get no
	// builds, suspect ones one now and then, silent ones have none and do not poll, and left ones have unregistered.
	State string `json:"state" enum:"idle,building,leaving,draining,silent,quarantined,critical,offline,left,suspect"`
	// Quarantine is null unless the worker is quarantined.
	Quarantine *Quarantine `json:"quarantine"`
	// Suspect is there while the worker is suspect.
	Suspect *Suspect `json:"suspect,omitempty" null:"never"`
	// Draining workers get no new builds and finish the ones they hold.
	Draining bool `json:"draining"`
	// Conflict is there while another process tries to use this worker's id.
	Conflict     *WorkerConflict   `json:"conflict,omitempty"`
	Platforms    []string          `json:"platforms"` // empty means ios and android
	Labels       map[string]string `json:"labels,omitempty" schema:"Labels"`
	Capabilities json.RawMessage   `json:"capabilities"` // as they were registered
	// MaxConcurrentBuilds is how many builds the worker can hold at once; Builds are
	// the ones it holds.
	MaxConcurrentBuilds int               `json:"max_concurrent_builds"`
	Builds              []string          `json:"builds" schema:"ID"`
	Completed           int               `json:"completed"`
	Failed              int               `json:"failed"`
	RegisteredAt        string            `json:"registered_at" schema:"Time"`
	LastSeenAt          string            `json:"last_seen_at" schema:"Time"`
	Telemetry           *WorkerTelemetry  `json:"telemetry"`   // the last
	Diagnostics         *WorkerDiagnostic `json:"diagnostics"` // the last
}

// NewWorker converts a worker.
func NewWorker(w store.WorkerDetail) Worker {
	item := Worker{
		ID: w.ID, Name: w.Name, Status: string(w.Status), Draining: w.Draining, Platforms: []string{}, Labels: w.Labels,
		Capabilities: w.Capabilities, MaxConcurrentBuilds: w.Slots, Builds: w.Builds, Completed: w.Completed, Failed: w.Failed,
		RegisteredAt: FormatTime(w.RegisteredAt), LastSeenAt: FormatTime(w.LastSeenAt),
	}
	if w.Quarantine != "" {
		item.Quarantine = &Quarantine{Reason: w.Quarantine, Until: FormatTime(w.RestsUntil)}
	}
	if w.Suspect != "" {
		item.Suspect = &Suspect{Reason: w.Suspect, Since: FormatTime(w.SuspectSince), Served: w.SuspectServed}
		if !w.SuspectServed {
			item.Suspect.Until = FormatTime(w.RestsUntil)
		}
	}
	item.State = w.State
	for _, p := range w.Platforms {
		item.Platforms = append(item.Platforms, string(p))
	}
	if t := w.Telemetry; t != nil {
		item.Telemetry = &WorkerTelemetry{
			BuildID: t.BuildID, At: FormatTime(t.At), Type: t.Type, Stage: t.Stage, UptimeSeconds: t.UptimeSeconds,
			Metrics: Metrics{CPUPercent: t.CPUPercent, MemoryMB: t.MemoryMB, DiskPercent: t.DiskPercent, Processes: t.Processes},
		}
	}
	if !w.ConflictAt.IsZero() {
		item.Conflict = &WorkerConflict{At: FormatTime(w.ConflictAt), From: w.ConflictFrom}
	}
	if w.Diagnostic != "" {
		item.Diagnostics = &WorkerDiagnostic{Status: string(w.Diagnostic), RunAt: millis(w.DiagnosedAt), Message: w.Finding}
	}
	return item
}

// Quarantine is why a worker gets no builds, and until when. After that it gets one, as a
// trial. The quarantine ends when the worker has run it, or when the worker is resumed.
type Quarantine struct {
	Reason string `json:"reason"`
	Until  string `json:"until" schema:"Time"` // when it gets the trial
}

// Suspect is why a worker is suspect: its builds fail while others complete the like. It gets one
// build after each rest, as a trial, until it has completed two in a row or is resumed.
type Suspect struct {
	Reason string `json:"reason"`
	Since  string `json:"since" schema:"Time"`
	// Until is when it gets its next trial; absent if it is served.
	Until string `json:"until,omitempty" schema:"Time"`
	// Served is true while it gets builds as before, because too few other workers can take some.
	Served bool `json:"served"`
}

// WorkerConflict is a process that was refused because another one holds the worker.
type WorkerConflict struct {
	At   string `json:"at" schema:"Time"`
	From string `json:"from"` // its address
}

// WorkerTelemetry is a worker's latest report about its machine.
type WorkerTelemetry struct {
	BuildID string `json:"build_id" schema:"ID"`
	At      string `json:"at" schema:"Time"`
	Type    string `json:"type"`
	Stage   string `json:"stage,omitempty"`
	Metrics
	UptimeSeconds *float64 `json:"uptime_seconds,omitempty"`
}

// KeyExposed begins the message of a worker's diagnostic check whose builds can read its key.
const KeyExposed = "builds can read this worker's key"

// WorkerDiagnostic is the verdict of a worker's last diagnostic report.
type WorkerDiagnostic struct {
	Status string `json:"status" schema:"Verdict"`
	RunAt  Millis `json:"run_at"`
	// Message is the message of the first check that failed, else of the first that warns.
	Message string `json:"message,omitempty"`
}

// WorkerList answers GET /api/workers, the oldest first.
type WorkerList struct {
	Workers []Worker `json:"workers"`
	Total   int      `json:"total"`
}

// DiagnosticCheck is one check that a worker ran on itself.
type DiagnosticCheck struct {
	Name       string          `json:"name"`
	Status     string          `json:"status"` // pass, warn or fail
	Message    string          `json:"message"`
	DurationMS float64         `json:"duration_ms"`
	AutoFixed  bool            `json:"auto_fixed"`
	Details    json.RawMessage `json:"details,omitempty"`
}

// PostDiagnostic is the body of POST /api/diagnostics/report.
type PostDiagnostic struct {
	WorkerID   string            `json:"worker_id" schema:"ID"`
	Status     string            `json:"status" schema:"Verdict"`
	RunAt      Millis            `json:"run_at"`
	DurationMS int64             `json:"duration_ms" type:"number" min:"0"`
	AutoFixed  bool              `json:"auto_fixed" required:"false"`
	Checks     []DiagnosticCheck `json:"checks"`
}

// PostedDiagnostic answers a PostDiagnostic.
type PostedDiagnostic struct {
	ID     string `json:"id" format:"uuid"`
	Status string `json:"status" const:"stored"`
}

// DiagnosticReport answers GET /api/diagnostics/:worker_id/latest.
type DiagnosticReport struct {
	ID         string `json:"id" format:"uuid"`
	WorkerID   string `json:"worker_id" schema:"ID"`
	Status     string `json:"status" schema:"Verdict"`
	RunAt      Millis `json:"run_at"`
	DurationMS int64  `json:"duration_ms"`
	AutoFixed  bool   `json:"auto_fixed"`
	// Checks is an array of DiagnosticCheck, as it was sent.
	Checks json.RawMessage `json:"checks" type:"array" schema:"DiagnosticCheck"`
}

// NewDiagnosticReport converts a report.
func NewDiagnosticReport(r store.DiagnosticReport) DiagnosticReport {
	return DiagnosticReport{
		ID: r.ID, WorkerID: r.WorkerID, Status: string(r.Status), RunAt: millis(r.RunAt),
		DurationMS: r.Duration.Milliseconds(), AutoFixed: r.AutoFixed, Checks: r.Checks,
	}
}

// DiagnosticReports answers GET /api/diagnostics/:worker_id, newest first.
type DiagnosticReports struct {
	WorkerID string             `json:"worker_id" schema:"ID"`
	Reports  []DiagnosticReport `json:"reports"`
}

// PollIn is the input of Poll.
type PollIn struct {
	// WorkerID is who polls without a token.
	WorkerID string `query:"worker_id" type:"ID"`
	// Wait is how many seconds to wait for a build, up to 60.
	Wait string `query:"wait" type:"number" min:"0" max:"60"`
	// Active lists the builds that the worker has, separated by commas. Others that it
	// should have are handed out again.
	Active *string `query:"active"`
	// Max is how many builds the worker can begin now. It gets more than one only while no
	// other worker's poll waits for them.
	Max      int    `query:"max" min:"1" max:"256"`
	Token    string `header:"X-Worker-Token"`
	Instance string `header:"X-Worker-Instance" type:"ID"`
}

// UnregisterIn is the input of UnregisterWorker.
type UnregisterIn struct {
	Token string `header:"X-Worker-Token" required:"true"`
}

// WorkerPath is the input of endpoints that need a worker's id only.
type WorkerPath struct {
	ID WorkerID `path:"id"`
}

// WorkerOrder is the input of DrainWorker and ResumeWorker.
type WorkerOrder struct {
	ID   WorkerID `path:"id"`
	Body Reason   `body:"omitzero"`
}

// DeleteWorkerIn is the input of DeleteWorker.
type DeleteWorkerIn struct {
	WorkerPath
	Why
}

// WorkerFilter selects workers.
type WorkerFilter struct {
	Status string `query:"status" enum:"idle,building,offline" invalid:"Invalid status"`
	// State selects by `state`.
	State string `query:"state" enum:"critical,suspect,quarantined,offline,silent,leaving,draining,building,idle,left" invalid:"Invalid state"`
	// Limit is the most to return, 10,000 without one.
	Limit int `query:"limit" min:"1"`
	Continue
}

// RegisterWorker is POST /api/workers/register.
var RegisterWorker = declare[Register, Registered](workers, APIKey, scopeWorker, Fleet, "POST /api/workers/register", Route{
	ID: "registerWorker", Errors: []int{409, 422}, Headers: []string{"RateLimit", "RateLimit-Policy"}, Summary: "Register a worker, or register it again",
	Says: "The worker and its first token.",
})

// UnregisterWorker is POST /api/workers/unregister.
var UnregisterWorker = declare[UnregisterIn, Unregistered](workers, APIKey, scopeWorker, Fleet, "POST /api/workers/unregister", Route{
	ID: "unregisterWorker", Errors: []int{400, 413, 415}, Summary: "Unregister; its builds are queued again",
})

// WorkerLeaves is POST /api/workers/leaving.
var WorkerLeaves = declare[UnregisterIn, Status](workers, APIKey, scopeWorker, Fleet, "POST /api/workers/leaving", Route{
	ID: "workerLeaves", Summary: "Say that the worker takes no more builds, and unregisters when it has ended those that it has",
	Text: "It is shown as `leaving` then, and its free slots are not counted. Its next poll ends that. It is not needed for unregistering.",
})

// UnregisterWorkerByID is POST /api/workers/:id/unregister.
var UnregisterWorkerByID = declare[WorkerPath, Unregistered](workers, APIKey, scopeWorker, Fleet, "POST /api/workers/:id/unregister", Route{
	ID: "unregisterWorkerByID", Errors: []int{409}, Summary: "Unregister, for workers without a token",
})

// ListWorkers is GET /api/workers.
var ListWorkers = declare[WorkerFilter, WorkerList](workers, APIKey, scopeRead, Query, "GET /api/workers", Route{
	ID: "listWorkers", Headers: paged, Summary: "List workers, oldest first",
})

// ShowWorker is GET /api/workers/:id.
var ShowWorker = declare[WorkerPath, Worker](workers, APIKey, scopeRead, Query, "GET /api/workers/:id", Route{ID: "showWorker", Summary: "Show a worker"})

// DeleteWorker is DELETE /api/workers/:id.
var DeleteWorker = declare[DeleteWorkerIn, Unregistered](workers, APIKey, scopeOperate, Write, "DELETE /api/workers/:id", Route{
	ID: "deleteWorker", Errors: []int{409}, Summary: "Delete a worker; its builds are queued again",
})

// ShowWorkerStats is GET /api/workers/:id/stats.
var ShowWorkerStats = declare[WorkerPath, WorkerStats](workers, APIKey, scopeRead, Query, "GET /api/workers/:id/stats", Route{
	ID: "showWorkerStats", Summary: "Show what a worker has done",
})

// DrainWorker is POST /api/workers/:id/drain.
var DrainWorker = declare[WorkerOrder, Worker](workers, APIKey, scopeOperate, Write, "POST /api/workers/:id/drain", Route{
	ID: "drainWorker", Summary: "Give a worker no more builds",
})

// ResumeWorker is POST /api/workers/:id/resume.
var ResumeWorker = declare[WorkerOrder, Worker](workers, APIKey, scopeOperate, Write, "POST /api/workers/:id/resume", Route{
	ID: "resumeWorker", Summary: "Give a drained, quarantined or suspect worker builds again",
})

func pollRoute(id string) Route {
	return Route{
		ID: id, Errors: []int{404}, Headers: []string{"RateLimit", "RateLimit-Policy"}, Summary: "Ask for a build",
		Says: "A build or none, and the token for the next poll.",
		Text: "401 means that the token is unknown or has expired: register again. 404 means that the worker is unknown. A token becomes invalid when its successor is first used.",
	}
}

// Poll is GET /api/workers/poll.
var Poll = declare[PollIn, PollReply](workers, APIKey, scopeWorker, Fleet, "GET /api/workers/poll", pollRoute("poll"))

// PollByPost is POST /api/workers/poll.
var PollByPost = declare[PollIn, PollReply](workers, APIKey, scopeWorker, Fleet, "POST /api/workers/poll", pollRoute("pollByPost"))
