package api

import (
	"encoding/json"
	"math"

	"takt/store"
)

// ActiveBuild is one element of ActiveBuilds.
type ActiveBuild struct {
	ID       string `json:"id" schema:"ID"`
	Status   string `json:"status" enum:"assigned,building"`
	Platform string `json:"platform" schema:"Platform"`
	WorkerID string `json:"worker_id" schema:"ID"`
	// StartedAt is a whole number, because published menus refuse anything else.
	StartedAt Millis `json:"started_at"`
}

// NewActiveBuild converts a build that a worker holds.
func NewActiveBuild(b store.Build) ActiveBuild {
	return ActiveBuild{
		ID: b.ID, Status: b.State.Wire(), Platform: string(b.Platform), WorkerID: b.WorkerID, StartedAt: millis(b.StartedAt),
	}
}

// ActiveBuilds answers GET /api/builds/active, newest first.
type ActiveBuilds struct {
	Builds []ActiveBuild `json:"builds"`
}

// Statistics answers GET /api/builds/statistics with the number of builds in each
// state.
type Statistics struct {
	Total     int64 `json:"total"`
	Pending   int64 `json:"pending"`
	Assigned  int64 `json:"assigned"`
	Building  int64 `json:"building"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
	// Recent is absent from controllers of earlier releases.
	Recent *RecentStatistics `json:"recent,omitempty" null:"never"`
}

// RecentStatistics are the overview's figures, at most two seconds old.
type RecentStatistics struct {
	// Ended counts the builds that completed or failed within the last hour, up to 5000; Failed is a part
	// of it.
	Ended  int `json:"ended"`
	Failed int `json:"failed"`
	// WorkersOnline is nodesOnline of the public statistics. WorkersServed are those that get builds.
	WorkersOnline int `json:"workers_online"`
	WorkersServed int `json:"workers_served"`
}

// NewStatistics converts the totals of all builds.
func NewStatistics(t store.Totals, recent *RecentStatistics) Statistics {
	r := Statistics{
		Recent:  recent,
		Pending: int64(t.Pending), Assigned: int64(t.Assigned), Building: int64(t.Building),
		Completed: t.Completed, Failed: t.Failed, Cancelled: t.Cancelled,
	}
	r.Total = r.Pending + r.Assigned + r.Building + r.Completed + r.Failed + r.Cancelled
	return r
}

// Retried answers POST /api/builds/:id/retry: a new build with the files of the
// old one.
type Retried struct {
	ID              string `json:"id" schema:"ID"`
	Status          string `json:"status" schema:"WireState"`
	SubmittedAt     Millis `json:"submitted_at"`
	AccessToken     string `json:"access_token" pattern:"^[A-Za-z0-9_-]{43}$"`
	OriginalBuildID string `json:"original_build_id" schema:"ID"`
	// Inputs are those of the new build.
	Inputs *TakenInputs `json:"inputs,omitempty" null:"never"`
}

// SecureCerts answers GET /api/builds/:id/certs-secure. Files are standard
// base64 without line breaks; no member is ever null.
type SecureCerts struct {
	P12         []byte `json:"p12"`
	P12Password string `json:"p12Password"`
	// KeychainPassword is generated anew for every reply.
	KeychainPassword     string   `json:"keychainPassword"`
	ProvisioningProfiles [][]byte `json:"provisioningProfiles"`
}

// Telemetry is the body of POST /api/builds/:id/telemetry.
type Telemetry struct {
	// Type is monitor_started, heartbeat or cpu_snapshot.
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"` // ISO 8601
	// Data depends on Type.
	Data json.RawMessage `json:"data" type:"object"`
}

// TelemetryHeartbeat is the data of a heartbeat. The data of a cpu_snapshot is
// Metrics itself; that of monitor_started is an empty object.
type TelemetryHeartbeat struct {
	HeartbeatCount *float64 `json:"heartbeat_count,omitempty"`
	Stage          string   `json:"stage,omitempty"`
	Metrics        *Metrics `json:"metrics,omitempty"`
	UptimeSeconds  *float64 `json:"uptime_seconds,omitempty"`
}

// Metrics are figures of a worker's machine.
type Metrics struct {
	CPUPercent  *float64 `json:"cpu_percent,omitempty"` // 100 per core
	MemoryMB    *float64 `json:"memory_mb,omitempty"`
	DiskPercent *float64 `json:"disk_percent,omitempty"`
	Processes   *float64 `json:"processes,omitempty"`
}

// Stats answers GET /api/stats and /public/stats.
type Stats struct {
	NodesOnline      int   `json:"nodesOnline"` // workers seen within two minutes
	BuildsQueued     int   `json:"buildsQueued"`
	ActiveBuilds     int   `json:"activeBuilds"`
	BuildsToday      int64 `json:"buildsToday"` // completed since midnight UTC
	TotalBuilds      int64 `json:"totalBuilds"` // completed and failed
	TotalBuildTimeMS int64 `json:"totalBuildTimeMs"`
	// TotalCPUCycles is the mean processor load, as a fraction of one core, times the
	// total seconds of all builds.
	TotalCPUCycles int64 `json:"totalCpuCycles"`
}

// NewStats returns the figures that need no key.
func NewStats(t store.Totals) Stats {
	return Stats{
		NodesOnline: t.WorkersOnline, BuildsQueued: t.Pending, ActiveBuilds: t.Assigned + t.Building,
		BuildsToday: t.CompletedToday, TotalBuilds: t.Completed + t.Failed, TotalBuildTimeMS: t.BuildTime.Milliseconds(),
		TotalCPUCycles: int64(math.Round(t.CPUPercent / 100 * t.BuildTime.Seconds())),
	}
}

// BuildWhy answers GET /api/builds/:id/why.
type BuildWhy struct {
	ID    string `json:"id" schema:"ID"`
	State string `json:"state" enum:"pending,assigned,building,completed,failed,cancelled"`
	// Number is the build's place among those that wait for the same platform and
	// requirements, from 1; 0 if it does not wait. Reason is "" then.
	Number int    `json:"number"`
	Reason string `json:"reason"`
	// Start is an estimate of the time until it starts, in words; "" if there is none.
	Start string `json:"start"`
	// Unmatched is true if no known worker could take the build.
	Unmatched bool `json:"unmatched"`
	// WaitingSince is when it was submitted or returned to the queue; absent unless it waits.
	WaitingSince *Millis `json:"waiting_since,omitempty"`
	// RetryAt is when it is tried again after an exit code of its retry_on; absent unless it waits for that.
	RetryAt *Millis `json:"retry_at,omitempty"`
	// Nearest says, if no worker could take it, what those lack that come nearest: at most three lines.
	Nearest []string `json:"nearest"`
}

// BuildTimeline answers GET /api/builds/:id/timeline.
type BuildTimeline struct {
	ID    string `json:"id" schema:"ID"`
	State string `json:"state" enum:"pending,assigned,building,completed,failed,cancelled"`
	// TraceID is the id of the build's trace, in hexadecimal; "" if the controller makes no traces
	// or did not sample this one.
	TraceID string `json:"trace_id"`
	// Steps are what happened, oldest first, and as the last one what the build does now.
	Steps []TimelineStep `json:"steps"`
}

// TimelineStep is one event in a build's life.
type TimelineStep struct {
	// At is null for a build that waits or whose worker has not begun.
	At   *Millis `json:"at"`
	Kind string  `json:"kind" enum:"submitted,assigned,requeued,priority,retried,uploaded,waiting,building,completed,failed,cancelled"`
	// Title and Text are for people.
	Title string `json:"title"`
	Text  string `json:"text,omitempty"`
	// Attempt is 0 if the step concerns none. WorkerName is "" if the worker was deleted.
	Attempt    int    `json:"attempt"`
	WorkerID   string `json:"worker_id,omitempty"`
	WorkerName string `json:"worker_name,omitempty"`
	// Reason is why an attempt was lost: silent, restarted, unregistered, deleted, requeued, or the
	// kind of failure with which its worker gave it back.
	Reason string `json:"reason,omitempty"`
	// BuildID is the build that this one repeats, or that repeats this one.
	BuildID string `json:"build_id,omitempty" schema:"ID"`
}

// BuildPatch is the body of PATCH /api/builds/:id.
type BuildPatch struct {
	// Priority is -10 to 10; higher is built first. Only a pending build can change
	// it.
	Priority *int `json:"priority" min:"-10" max:"10" null:"never"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// File is the content of a part of a form.
type File []byte

// SubmitForm describes the form of POST /api/builds, which is read as a stream. Its parts
// may come in any order.
type SubmitForm struct {
	// Source is at most 500 MiB by default. The Content-Digest of the part is verified.
	Source   File   `form:"source"`
	Platform string `form:"platform" schema:"Platform"`
	// Certs is at most 10 MiB by default.
	Certs    File `form:"certs,omitempty"`
	Priority int  `form:"priority,omitempty" min:"-10" max:"10" default:"0"`
	// Labels is a JSON object of up to 32 strings. Builds with the same `cache` prefer the
	// same worker.
	Labels string `form:"labels,omitempty"`
	// Require is what a worker's labels must satisfy, such as `xcode>=16, pool in (a,b), !gpu`.
	// A worker whose labels satisfy Prefer gets the build first if one waits for work.
	Require string `form:"require,omitempty" max:"512"`
	Prefer  string `form:"prefer,omitempty" max:"512"`
	// Params is a JSON object of up to 64 strings, the build's variables: names are A-Z, 0-9 and _ and
	// at most 128 bytes long, names and values at most 32 KiB together. Names that change what programs
	// run, such as PATH, are 400 `reserved_param`.
	Params string `form:"params,omitempty"`
	// ParamsOptional lets a worker leave out parameters that its operator does not permit.
	ParamsOptional string `form:"params_optional,omitempty" enum:"true,false"`
	// Secrets is a JSON object: `env` or `file` for each name of up to 64 secrets.
	Secrets string `form:"secrets,omitempty"`
	// Timeout is how many seconds an attempt may take. The controller's `--max-build-timeout` bounds it.
	Timeout int `form:"timeout,omitempty" min:"1" max:"86400"`
	// MaxAttempts is how many attempts the build has.
	MaxAttempts int `form:"max_attempts,omitempty" min:"1" max:"10"`
	// RetryOn is a JSON array of up to 16 exit codes after which the build is tried again.
	RetryOn string `form:"retry_on,omitempty"`
	// Commit has 7 to 64 hexadecimal digits. Branch has at most 255 bytes.
	Commit string `form:"commit,omitempty"`
	Branch string `form:"branch,omitempty"`
	// Dirty is whether the tree had changes that are not in the commit.
	Dirty string `form:"dirty,omitempty" enum:"true,false"`
	// Remote is the repository's URL, of which credentials are not kept.
	Remote string `form:"remote,omitempty" max:"512"`
}

// replayed describes the reply to a repeated submission.
const replayed = "As it was answered first, under the same Idempotency-Key."

// SubmitBuildIn is the input of SubmitBuild beside its form.
type SubmitBuildIn struct {
	// IdempotencyKey is 1 to 255 visible characters.
	IdempotencyKey string `header:"Idempotency-Key" min:"1" max:"255"`
}

// BuildFilter selects builds.
type BuildFilter struct {
	// Status selects a state; failed includes cancelled ones. State selects exactly one.
	Status string `query:"status" enum:"pending,assigned,building,completed,failed,cancelled" invalid:"Invalid status"`
	State  string `query:"state" enum:"pending,assigned,building,completed,failed,cancelled" invalid:"Invalid state"`
	// Q selects those of the last 100,000 builds that have this text in their id, labels or error.
	Q        string `query:"q" max:"200"`
	Platform string `query:"platform" schema:"Platform" invalid:"Valid platform required"`
	WorkerID string `query:"worker_id" schema:"ID" invalid:"Invalid worker_id"`
	// Label is sent once for each label that the builds must have, as name=value.
	Label LabelFilter `query:"label"`
	// Limit is the most to return, 10,000 without one.
	Limit int `query:"limit" min:"1"`
	Continue
	// Format is array or object.
	Format string `query:"format" values:"array,object"`
}

// BuildPath is the input of endpoints that need a build's id only.
type BuildPath struct {
	ID BuildID `path:"id"`
}

// BuildAccess is the input of endpoints that a build's token opens, too.
type BuildAccess struct {
	ID    BuildID `path:"id"`
	Token string  `header:"X-Build-Token"`
}

// CancelBuildIn is the input of CancelBuild.
type CancelBuildIn struct {
	ID BuildID `path:"id"`
	Why
}

// RetryBuildIn is the input of RetryBuild.
type RetryBuildIn struct {
	BuildAccess
	Why
	Body RetryBuildChanges `body:"loose"`
}

// RetryBuildChanges is the body of POST /api/builds/:id/retry. The body may be absent.
type RetryBuildChanges struct {
	// Params replace or add parameters, null removes one. A build's token can't change any.
	Params map[string]*string `json:"params,omitempty"`
}

// PatchBuildIn is the input of PatchBuild.
type PatchBuildIn struct {
	ID   BuildID    `path:"id"`
	Body BuildPatch `body:"json"`
}

// ReadLogsIn is the input of ReadLogs.
type ReadLogsIn struct {
	BuildAccess
	// After begins after the line with this number.
	After int64 `query:"after" min:"0"`
	// Tail begins with the last lines instead, so many; not in a stream.
	Tail int64 `query:"tail" min:"0"`
	// Limit is the most lines; all by default.
	Limit int `query:"limit" min:"1"`
	// LastEventID is read in a stream instead of After.
	LastEventID string `header:"Last-Event-ID"`
}

// DownloadFileIn is the input of DownloadFile.
type DownloadFileIn struct {
	BuildAccess
	// Type is source or result.
	Type string `path:"type" enum:"source,result" invalid:"Invalid file type"`
}

// RequeueBuildIn is the input of RequeueBuild.
type RequeueBuildIn struct {
	ID   BuildID `path:"id"`
	Body Order   `body:"json"`
}

// SubmitBuild is POST /api/builds.
var SubmitBuild = declare[SubmitBuildIn, Submitted](builds, APIKey, scopeSubmit, Transfer, "POST /api/builds", Route{
	ID: "submitBuild", Body: SourceBody, Status: 201, Errors: []int{409, 422, 507}, Headers: []string{HeaderReplayed}, Takes: SubmitForm{},
	Says:    "The build is queued.",
	Replies: []Reply{{Status: 200, Says: replayed, Headers: []string{HeaderReplayed}, Sends: Submitted{}}},
	Summary: "Submit a build",
	Text:    "The parts may come in any order; they are streamed. A refusal that needs no body is given before it is read (`Expect: 100-continue`). With an `Idempotency-Key` the same content within 24 hours makes one build and gets the first reply, with its status; other content is 422 `idempotency_mismatch`. 409 `idempotency_expired` says that the API key has changed since. 503 `queue_full` leaves nothing behind; its `details` say the limit, how many builds wait, and how many of them no known worker can take: a tenth of the limit is for these.",
})

// ListBuilds is GET /api/builds.
var ListBuilds = declare[BuildFilter, []BuildItem](builds, APIKey, scopeReadOrOwn, Query, "GET /api/builds", Route{
	ID: "listBuilds", Headers: paged, Summary: "List builds, newest first",
	Text: "A key with the scope submit, but not read, lists its own, of the last 100,000 builds.",
	Says: "A bare array; with `format=object` an object.", Sends: []any{[]BuildItem{}, BuildList{}},
})

// SubmitBuildLegacy is POST /api/builds/submit.
var SubmitBuildLegacy = declare[SubmitBuildIn, Submitted](builds, APIKey, scopeSubmit, Transfer, "POST /api/builds/submit", Route{
	ID: "submitBuildLegacy", Body: SourceBody, Errors: []int{409, 422, 507}, Headers: []string{HeaderReplayed}, Takes: SubmitForm{},
	Says:    "The build is queued.",
	Replies: []Reply{{Status: 201, Says: replayed, Headers: []string{HeaderReplayed}, Sends: Submitted{}}},
	Summary: "Submit a build",
	Text:    "As POST /api/builds, for published clients.",
})

// ListActiveBuilds is GET /api/builds/active.
var ListActiveBuilds = declare[Paging, ActiveBuilds](builds, APIKey, scopeRead, Query, "GET /api/builds/active", Route{
	ID: "listActiveBuilds", Headers: paged, Summary: "List the builds that workers hold",
})

// CountBuilds is GET /api/builds/statistics.
var CountBuilds = declare[None, Statistics](builds, APIKey, scopeRead, Query, "GET /api/builds/statistics", Route{ID: "countBuilds", Summary: "Count builds by state"})

// ShowBuild is GET /api/builds/:id.
var ShowBuild = declare[BuildPath, BuildItem](builds, APIKey, scopeReadOrOwn, Query, "GET /api/builds/:id", Route{ID: "showBuild", Summary: "Show a build"})

// PatchBuild is PATCH /api/builds/:id.
var PatchBuild = declare[PatchBuildIn, BuildItem](builds, APIKey, scopeOperate, Write, "PATCH /api/builds/:id", Route{
	ID: "patchBuild", Errors: []int{409}, Summary: "Change the priority of a build that waits",
	Says: "The build as it is now.",
	Text: "It moves at once to the position of its new priority, behind its key's builds of that priority. 409 if it is not pending.",
})

// ShowBuildStatus is GET /api/builds/:id/status.
var ShowBuildStatus = declare[BuildAccess, BuildStatus](builds, BuildKey, scopeReadOrOwn, Query, "GET /api/builds/:id/status", Route{
	ID: "showBuildStatus", Summary: "Show the state of a build",
})

// ExplainWait is GET /api/builds/:id/why.
var ExplainWait = declare[BuildAccess, BuildWhy](builds, BuildKey, scopeReadOrOwn, Query, "GET /api/builds/:id/why", Route{
	ID: "explainWait", Summary: "Say why a build waits, and when it may start",
})

// ShowTimeline is GET /api/builds/:id/timeline.
var ShowTimeline = declare[BuildAccess, BuildTimeline](builds, BuildKey, scopeReadOrOwn, Query, "GET /api/builds/:id/timeline", Route{
	ID: "showTimeline", Summary: "Show what happened to a build",
	Text: "From what takt recorded, with attempts, workers and the reasons for which attempts were lost. At most 100 of them.",
})

// ReadLogs is GET /api/builds/:id/logs.
var ReadLogs = declare[ReadLogsIn, Logs](builds, BuildKey, scopeReadOrOwn, Query, "GET /api/builds/:id/logs", Route{
	ID: "readLogs", Media: []string{eventStream}, Summary: "Read a build's log, or follow it",
	Says: "All lines, oldest first; or, if `Accept` says `text/event-stream`, a stream that goes on until the build ends.", Sends: []any{LogEntry{}, LogEnd{}},
	Text: "A stream has one event `log` for each line, whose id is the line's number and whose data is a `LogEntry`, and at the end one event `end`, whose data is a `LogEnd`: close the stream then. It resumes from the rows, so nothing is lost or sent twice.",
})

// DownloadResult is GET /api/builds/:id/download.
var DownloadResult = declare[BuildAccess, None](builds, BuildKey, scopeReadOrOwn, Transfer, "GET HEAD /api/builds/:id/download", Route{
	ID: "downloadResult", Media: []string{anyFile}, Summary: "Download the result",
})

// DownloadFile is GET /api/builds/:id/download/:type.
var DownloadFile = declare[DownloadFileIn, None](builds, BuildKey, scopeReadOrOwn, Transfer, "GET HEAD /api/builds/:id/download/:type", Route{
	ID: "downloadFile", Media: []string{anyFile, zipFile}, Summary: "Download the source or the result",
})

// CancelBuild is POST /api/builds/:id/cancel.
var CancelBuild = declare[CancelBuildIn, Cancelled](builds, APIKey, scopeOperateOrOwn, Write, "POST /api/builds/:id/cancel", Route{
	ID: "cancelBuild", Errors: []int{400}, Summary: "Cancel a build that has not ended",
})

// RequeueBuild is POST /api/builds/:id/requeue.
var RequeueBuild = declare[RequeueBuildIn, BuildItem](buildOrders, AdminKey, scopeOperate, Ops, "POST /api/builds/:id/requeue", Route{
	ID: "requeueBuild", Errors: []int{409}, Summary: "Take a build from the worker that holds it",
	Text: "It is pending again at its old position and uses up no attempt. Its former worker may still send the result until another worker has the build. A build that waits for its retry after an exit code waits no longer.",
})

// RetryBuild is POST /api/builds/:id/retry.
var RetryBuild = declare[RetryBuildIn, Retried](builds, BuildKey, scopeOperateOrOwn, Write, "POST /api/builds/:id/retry", Route{
	ID: "retryBuild", Errors: []int{409, 422, 507}, Summary: "Submit the same build again",
})
