// Package api defines takt's HTTP API: every endpoint, and the types of its parameters and
// JSON bodies. The server (package http), the client (http/client), the command line, the
// OpenAPI document and docs/cli.md all use these definitions.
//
// An [Endpoint] is a value, such as [ShowHeijunka], with its method, path, access, limits,
// and the types of its input and output. [Routes] lists all of them.
//
// The names and forms of JSON members are those of the Expo Free Agent controller, whose
// published clients work with takt unchanged; takt only adds members. Times named *At, and a
// job's submitted_at, are ISO 8601 strings. Every other time is a [Millis]. JSON is compact.
//
// # State
//
// None. Endpoints don't change after the program has started.
//
// # Failure
//
// An error reply is a [Problem]: RFC 9457 problem details and the member "error" that
// published clients read. An input that implements [Checker] is checked after decoding.
//
// # Concurrency
//
// Endpoints may be used by any goroutine. Other values are plain data, not safe for
// concurrent changes.
package api

import (
	"encoding/json"
	"time"

	"takt/store"
)

// Millis is a time as integer milliseconds since 1970 UTC. A nil *Millis is null.
type Millis = store.Millis

// NewMillis returns t as Millis, nil for the zero time.
func NewMillis(t time.Time) *Millis { return store.NewMillis(t) }

func millis(t time.Time) Millis { return Millis(t.UnixMilli()) }

// optional returns nil for "", else a pointer to s.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Problem is the body of every error reply (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Error equals Detail; published clients read this member.
	Error string `json:"error"`
	// Code never changes its meaning; it is in snake case.
	Code      string `json:"code" pattern:"^[a-z_]+$"`
	RequestID string `json:"request_id,omitempty"`
	// Details is present where a client reads it (registration only).
	Details string `json:"details,omitempty"`
	// Rule, Load and Limit say why a request was refused as overloaded.
	Rule  string `json:"rule,omitempty"`
	Load  *int   `json:"load,omitempty"`
	Limit *int   `json:"limit,omitempty"`
}

// Submitted answers POST /api/builds and /api/builds/submit.
type Submitted struct {
	ID          string `json:"id" schema:"ID"`
	Status      string `json:"status" schema:"WireState"`
	Platform    string `json:"platform" schema:"Platform"`
	SubmittedAt Millis `json:"submitted_at"`
	AccessToken string `json:"access_token" pattern:"^[A-Za-z0-9_-]{43}$"`
	// Inputs are those that were understood, so that a client can see that none was ignored.
	Inputs *TakenInputs `json:"inputs,omitempty" null:"never"`
}

// NewSubmitted converts a build that was just created.
func NewSubmitted(b store.Build, token string) Submitted {
	return Submitted{
		ID: b.ID, Status: b.State.Wire(), Platform: string(b.Platform), SubmittedAt: millis(b.SubmittedAt), AccessToken: token,
		Inputs: NewTakenInputs(b.Inputs),
	}
}

// BuildItem is one element of GET /api/builds, a bare array, newest first.
type BuildItem struct {
	ID        string `json:"id" schema:"ID"`
	Status    string `json:"status" schema:"WireState"`
	State     string `json:"state" schema:"State"`
	CreatedAt string `json:"createdAt" schema:"Time"`
	// WaitingSince is when it was submitted or returned to the queue; omitted unless it is pending.
	WaitingSince string `json:"waiting_since,omitempty" schema:"Time"`
	// StartedAt is when the current attempt was assigned; omitted before.
	StartedAt string `json:"started_at,omitempty" schema:"Time"`
	// CompletedAt is omitted, never null, while the build runs.
	CompletedAt  string  `json:"completedAt,omitempty" schema:"Time"`
	Platform     string  `json:"platform" schema:"Platform"`
	WorkerID     *string `json:"worker_id"`
	WorkerName   *string `json:"worker_name"`
	SubmittedAt  string  `json:"submitted_at" schema:"Time"`
	UpdatedAt    string  `json:"updated_at" schema:"Time"`
	ErrorMessage *string `json:"error_message"`
	HasResult    bool    `json:"has_result"`
	// Labels are those of the submission.
	Labels map[string]string `json:"labels,omitempty" schema:"Labels"`
	// Submitter is the name of the key that submitted it; the API key has none.
	Submitter string `json:"submitter,omitempty"`
	// Require is what the worker's labels must satisfy; absent for nothing.
	Require string `json:"require,omitempty"`
	// Inputs are absent if there are none, Ended unless it failed or was cancelled, or waits for its retry.
	Inputs *Inputs `json:"inputs,omitempty" null:"never"`
	Ended  *Ended  `json:"ended,omitempty" null:"never"`
	// Suspect is true if it failed on a worker that was suspect, or became so because of it.
	Suspect bool `json:"suspect,omitempty"`
	// RetryOf is the build that this one repeats.
	RetryOf string `json:"retry_of,omitempty" schema:"ID"`
}

// NewBuildItem converts a build for a list.
func NewBuildItem(b store.Build) BuildItem {
	item := BuildItem{
		ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: string(b.Platform),
		CreatedAt: FormatTime(b.SubmittedAt), SubmittedAt: FormatTime(b.SubmittedAt), UpdatedAt: FormatTime(b.UpdatedAt),
		WorkerID: optional(b.WorkerID), WorkerName: optional(b.WorkerName), ErrorMessage: optional(b.ErrorMessage),
		HasResult: b.Result != nil, Labels: b.Labels, Submitter: b.Submitter, Require: b.Require.Public().String(),
		Inputs: NewInputs(b.Inputs), Ended: NewEnded(b), Suspect: b.Suspect, RetryOf: b.RetryOf,
	}
	if !b.WaitingSince.IsZero() {
		item.WaitingSince = FormatTime(b.WaitingSince)
	}
	if !b.StartedAt.IsZero() {
		item.StartedAt = FormatTime(b.StartedAt)
	}
	if !b.CompletedAt.IsZero() {
		item.CompletedAt = FormatTime(b.CompletedAt)
	}
	return item
}

// BuildList answers GET /api/builds?format=object.
type BuildList struct {
	Builds []BuildItem `json:"builds"`
	Total  int         `json:"total"`
}

// BuildStatus answers GET /api/builds/:id/status.
type BuildStatus struct {
	ID           string  `json:"id" schema:"ID"`
	Status       string  `json:"status" schema:"WireState"`
	State        string  `json:"state" schema:"State"`
	Platform     string  `json:"platform" schema:"Platform"`
	WorkerID     *string `json:"worker_id"`
	Attempt      int     `json:"attempt" min:"0"`
	SubmittedAt  *Millis `json:"submitted_at"`
	WaitingSince *Millis `json:"waiting_since,omitempty" null:"never"` // as in a list
	StartedAt    *Millis `json:"started_at"`
	CompletedAt  *Millis `json:"completed_at"`
	ErrorMessage *string `json:"error_message"`
	// Priority and Labels are those of the submission.
	Priority int               `json:"priority" min:"-10" max:"10"`
	Labels   map[string]string `json:"labels,omitempty" schema:"Labels"`
	// Submitter is the name of the key that submitted it; the API key has none.
	Submitter string `json:"submitter,omitempty"`
	// Require is what the worker's labels must satisfy, Prefer what they should; absent for
	// nothing.
	Require string `json:"require,omitempty"`
	Prefer  string `json:"prefer,omitempty"`
	// Inputs are absent if there are none, Ended unless it failed or was cancelled, or waits for its retry.
	Inputs *Inputs `json:"inputs,omitempty" null:"never"`
	Ended  *Ended  `json:"ended,omitempty" null:"never"`
	// Suspect and RetryOf are as in a list. Retries are the builds that repeat this one, oldest first
	// and at most 100.
	Suspect bool     `json:"suspect,omitempty"`
	RetryOf string   `json:"retry_of,omitempty" schema:"ID"`
	Retries []string `json:"retries,omitempty" schema:"ID"`
}

// NewBuildStatus converts a build's state.
func NewBuildStatus(b store.Build) BuildStatus {
	return BuildStatus{
		ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: string(b.Platform),
		WorkerID: optional(b.WorkerID), Attempt: b.Attempt, ErrorMessage: optional(b.ErrorMessage),
		SubmittedAt: NewMillis(b.SubmittedAt), StartedAt: NewMillis(b.StartedAt), CompletedAt: NewMillis(b.CompletedAt),
		Priority: b.Priority, Labels: b.Labels, Submitter: b.Submitter, Require: b.Require.Public().String(), Prefer: b.Prefer.String(),
		Inputs: NewInputs(b.Inputs), Ended: NewEnded(b), Suspect: b.Suspect, RetryOf: b.RetryOf, Retries: b.Retries,
		WaitingSince: NewMillis(b.WaitingSince),
	}
}

// Heartbeat is the body of POST /api/builds/:id/heartbeat. The body may be absent.
type Heartbeat struct {
	// Progress is in percent.
	Progress *float64 `json:"progress,omitempty" min:"0" max:"100"`
}

// HeartbeatReply answers a Heartbeat.
type HeartbeatReply struct {
	Status    string `json:"status" const:"ok"`
	Timestamp Millis `json:"timestamp"`
	Cancelled bool   `json:"cancelled"` // the worker has to stop the build
	// AccessToken is the X-Worker-Token that the heartbeat showed, with a new expiry. It is
	// absent if the heartbeat showed none that is valid.
	AccessToken string `json:"access_token,omitempty"`
}

// NewHeartbeatReply returns a reply with the current time.
func NewHeartbeatReply(cancelled bool) HeartbeatReply {
	return HeartbeatReply{Status: "ok", Timestamp: millis(time.Now()), Cancelled: cancelled}
}

// Cancelled answers POST /api/builds/:id/cancel.
type Cancelled struct {
	Status  string `json:"status" const:"cancelled"`
	Success bool   `json:"success" const:"true"`
}

// Register is the body of POST /api/workers/register. Unknown members are ignored and
// never logged, because old installers send an apiKey.
type Register struct {
	ID               string          `json:"id,omitempty" schema:"ID"`
	Name             string          `json:"name"`
	Capabilities     json.RawMessage `json:"capabilities" schema:"Capabilities"`
	ActiveBuildCount int             `json:"active_build_count,omitempty"`
	// ActiveBuilds lists the builds that the worker runs. What else it holds is pending
	// again at once: begun builds use up their attempt, as when they time out, the others
	// don't. Absent changes nothing.
	ActiveBuilds []string `json:"active_builds,omitzero" schema:"ID"`
	// Instance is an id of the worker's process, which polls and heartbeats repeat in
	// X-Worker-Instance. Another process that registers with the same ID is refused (409
	// duplicate_worker) until this one has been silent for 30 s or has unregistered.
	Instance string `json:"instance,omitempty" schema:"ID"`
	// Registration is a number that is higher in each registration that Instance sends, also
	// in a repeat. One that is executed after a higher one changes nothing (409
	// late_registration). It needs Instance.
	Registration int64 `json:"registration,omitempty" min:"1"`
}

// Capabilities are the members of a worker's capabilities that the controller reads. Unknown
// members are kept.
type Capabilities struct {
	// Platforms lists what the worker builds; absent means ios and android.
	Platforms []string `json:"platforms,omitempty" schema:"Platform"`
	// Labels are what builds can require and prefer; at most 1,024 bytes. Names that begin with
	// `takt.` are the controller's; those that are sent are ignored.
	Labels map[string]string `json:"labels,omitempty" schema:"Labels"`
	// MaxConcurrentBuilds is how many builds it holds at once; default 1.
	MaxConcurrentBuilds int `json:"maxConcurrentBuilds,omitempty" min:"1" default:"1"`
	// Features are what the worker's program can do: env (it gives a build its parameters), secrets,
	// exit (it reports how a command ended), timeout (a build may choose its time limit). Builds that
	// need one of them are given only to workers that have it. Unknown ones are kept.
	Features []string `json:"features,omitempty"`
	// MaxTimeout is how many seconds a build may choose as its time limit.
	MaxTimeout int `json:"max_timeout,omitempty" min:"0"`
	// Version is the worker's program's, for people.
	Version string `json:"version,omitempty"`
}

// Registered answers POST /api/workers/register.
type Registered struct {
	ID          string `json:"id" schema:"ID"`
	AccessToken string `json:"access_token" pattern:"^[A-Za-z0-9_-]{32}$"`
	Status      string `json:"status" enum:"registered,re-registered"`
	Message     string `json:"message"`
	BaseImageID string `json:"baseImageId"`
	// Features are those of the worker's that the controller knows. Without them it is of an earlier
	// release, and gives the worker no build that needs one.
	Features []string `json:"features,omitempty"`
}

// Job is a build handed to a worker. URLs are relative to the controller's.
type Job struct {
	ID        string  `json:"id" schema:"ID"`
	Platform  string  `json:"platform" schema:"Platform"`
	SourceURL string  `json:"source_url"`
	CertsURL  *string `json:"certs_url"`
	// InputsURL is absent if the build has neither inputs nor labels.
	InputsURL   *string `json:"inputs_url,omitempty" null:"never"`
	BaseImageID string  `json:"baseImageId"`
	SubmittedAt string  `json:"submitted_at" schema:"Time"`
	// Attempt is sent back as X-Build-Attempt.
	Attempt int `json:"attempt" min:"1"`
	// Traceparent is what spans of this attempt are below (W3C Trace Context), and the
	// header of the worker's calls for it. It is absent if the controller makes no spans.
	Traceparent string `json:"traceparent,omitempty" pattern:"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"`
}

// PollReply answers GET and POST /api/workers/poll.
type PollReply struct {
	// Job is the first of the builds, null if there is none.
	Job *Job `json:"job"`
	// Jobs are all of them, if the poll asked for several and there is one.
	Jobs        []Job  `json:"jobs,omitempty"`
	AccessToken string `json:"access_token"`
	// QueueSize is the number of pending builds that this worker could take.
	QueueSize int `json:"queue_size"`
}

// All returns the builds of a reply, also of that of an earlier controller.
func (r *PollReply) All() []Job {
	if len(r.Jobs) == 0 && r.Job != nil {
		return []Job{*r.Job}
	}
	return r.Jobs
}

// NewJob converts a build that is handed out. image is the base image's id.
func NewJob(j *store.Job, image string) Job {
	at := "/api/builds/" + j.BuildID
	job := Job{
		ID: j.BuildID, Platform: string(j.Platform), SourceURL: at + "/source", BaseImageID: image,
		SubmittedAt: FormatTime(j.SubmittedAt), Attempt: j.Attempt,
	}
	if j.HasCerts {
		job.CertsURL = optional(at + "/certs")
	}
	if j.HasInputs {
		job.InputsURL = optional(at + "/inputs")
	}
	return job
}

// NewPollReply converts the result of a poll. several is true if that asked for more than one
// build.
func NewPollReply(r store.PollReply, several bool, image string) PollReply {
	reply := PollReply{AccessToken: r.Token, QueueSize: r.QueueSize}
	if len(r.Jobs) == 0 {
		return reply
	}
	jobs := make([]Job, len(r.Jobs))
	for i, j := range r.Jobs {
		jobs[i] = NewJob(j, image)
	}
	if reply.Job = &jobs[0]; several {
		reply.Jobs = jobs
	}
	return reply
}

// Unregistered answers POST /api/workers/unregister.
type Unregistered struct {
	Success          bool   `json:"success" const:"true"`
	BuildsReassigned int    `json:"builds_reassigned"`
	Message          string `json:"message"`
}

// Uploaded answers POST /api/workers/upload.
type Uploaded struct {
	Success bool   `json:"success" const:"true"`
	Status  string `json:"status" enum:"success,failed,pending"` // success or failed; pending for a build that was given back
	Message string `json:"message"`
	// Job is the worker's next build, if it asked for that and there is one.
	Job *Job `json:"job,omitempty"`
	// AccessToken is for the worker's next poll. It is absent unless the worker asked for
	// its next build and could be answered: then the token that it has stays valid.
	AccessToken string `json:"access_token,omitempty"`
	// QueueSize is as in the reply to a poll.
	QueueSize int `json:"queue_size,omitempty"`
}

// Health answers GET /health. It holds the word "pending" exactly once.
type Health struct {
	Status string `json:"status" const:"ok"`
	// Version and Commit are those that the controller was built from.
	Version  string         `json:"version,omitempty"`
	Commit   string         `json:"commit,omitempty"`
	Queue    QueueHealth    `json:"queue"`
	Storage  map[string]any `json:"storage"`
	Database DatabaseHealth `json:"database"`
	// Platforms are those that builds may be for.
	Platforms []store.Platform `json:"platforms,omitempty" required:"true"`
	// State is degraded while builds are refused. Reasons are the codes of the errors that submits
	// get.
	State   string       `json:"state,omitempty" enum:"ok,degraded" required:"true"`
	Reasons []store.Code `json:"reasons,omitempty"`
}

// DatabaseHealth is a part of Health.
type DatabaseHealth struct {
	// VacuumHeldBackSeconds is how long an old snapshot has kept vacuum from removing
	// rows; 0 below one minute.
	VacuumHeldBackSeconds int64 `json:"vacuum_held_back_seconds"`
}

// Status answers GET /livez, /readyz and /healthz.
type Status struct {
	Status string `json:"status"`
}

// QueueHealth is a part of Health.
type QueueHealth struct {
	Pending int `json:"pending"`
	Active  int `json:"active"`
}

// JobAvailable is the data of the event job:available.
type JobAvailable struct {
	Platform string `json:"platform" schema:"Platform"`
}

// TreeNode is one process of the supervision tree, in GET /admin/tree.
type TreeNode struct {
	ID       string `json:"id"`
	Path     string `json:"path"` // ids from the root, joined by /
	Type     string `json:"type" enum:"supervisor,worker"`
	Strategy string `json:"strategy,omitempty"`
	Restart  string `json:"restart,omitempty" enum:"permanent,transient,temporary"`
	Status   string `json:"status" enum:"running,starting,restarting,suspended,stopping,terminated"`
	Detail   string `json:"detail,omitempty"` // why, when suspended
	Restarts int    `json:"restarts"`
	// LastExit is the reason of the last end of an incarnation; absent if none.
	LastExit   string  `json:"last_exit,omitempty"`
	LastExitAt *Millis `json:"last_exit_at,omitempty"`
	// UptimeMS is how long the current incarnation has run.
	UptimeMS int64 `json:"uptime_ms"`
	// Mailbox is the number of messages that wait.
	Mailbox int `json:"mailbox"`
	// Messages is how many messages the current incarnation has handled; BusyMS is
	// how long that took.
	Messages int64   `json:"messages"`
	BusyMS   float64 `json:"busy_ms"`
	// ChildCount is the number of children that are not listed (dynamic supervisors).
	ChildCount int        `json:"child_count,omitempty"`
	Leaked     int        `json:"leaked,omitempty"`
	Children   []TreeNode `json:"children,omitempty"`
	// Terminated is there while it is terminated by an operator.
	Terminated *Termination `json:"terminated,omitempty" null:"never"`
}

// MaxSource is how many bytes a build's source may have.
const MaxSource = 500 << 20

// Header names of the contract.
const (
	HeaderAPIKey       = "X-API-Key"
	HeaderAdminKey     = "X-Admin-Key"
	HeaderBuildToken   = "X-Build-Token"
	HeaderWorkerID     = "X-Worker-Id"
	HeaderBuildID      = "X-Build-Id"
	HeaderWorkerToken  = "X-Worker-Token"
	HeaderInstance     = "X-Worker-Instance"
	HeaderBuildAttempt = "X-Build-Attempt"
	HeaderRequestID    = "X-Request-Id"
	// HeaderIgnored names the parameters of a query that a list does not know, and ignored.
	HeaderIgnored = "Takt-Ignored"
	// HeaderIdempotencyKey makes a repeated submission take effect once.
	// HeaderReplayed marks the reply to a repeat.
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderReplayed       = "Idempotent-Replayed"
)

// FormatTime returns t as the ISO 8601 form of the contract: UTC, milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
