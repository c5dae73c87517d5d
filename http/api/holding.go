package api

import "takt/store"

// HolderID is the id of the worker that holds a build.
type HolderID string

// ReadParam implements [Param]. An impossible id is Forbidden.
func (id *HolderID) ReadParam(_, sent string) error {
	*id = HolderID(sent)
	if !store.ValidID(sent) {
		return store.NewError(store.Forbidden, "Unknown worker")
	}
	return nil
}

// Process says which process of a worker calls, and for which attempt. Both may be absent.
type Process struct {
	// Attempt is the job's attempt; one older than the build's is 409 stale_attempt.
	Attempt int `header:"X-Build-Attempt" min:"1" max:"2147483647" invalid:"Invalid X-Build-Attempt header"`
	// Instance is the worker's process, as it registered; 409 duplicate_worker if another
	// one holds the worker.
	Instance string `header:"X-Worker-Instance" schema:"ID" invalid:"Invalid X-Worker-Instance header"`
}

// Holding is the input of endpoints for the worker that holds a build.
type Holding struct {
	WorkerID HolderID `header:"X-Worker-Id"`
	ID       BuildID  `path:"id"`
	Process
	// BuildID is the build once more. Only endpoints with [HoldingWithBuild] read it.
	BuildID string `header:"X-Build-Id"`
}

// HoldingWithBuild is Holding whose two build ids must be the same.
type HoldingWithBuild struct {
	Holding
}

// Check refuses another build in the header.
func (h *HoldingWithBuild) Check() error {
	if h.BuildID != string(h.ID) {
		return store.NewError(store.Forbidden, "X-Build-Id does not match the build")
	}
	return nil
}

// PostTelemetryIn is the input of PostTelemetry.
type PostTelemetryIn struct {
	HoldingWithBuild
	Body Telemetry `body:"json"`
}

// WriteLogsIn is the input of WriteLogs.
type WriteLogsIn struct {
	Holding
	Body PostLogs `body:"json"`
}

// HeartbeatIn is the input of SendHeartbeat.
type HeartbeatIn struct {
	ID       BuildID `path:"id"`
	WorkerID string  `query:"worker_id" required:"true" type:"ID"`
	Process
	Token string    `header:"X-Worker-Token"`
	Body  Heartbeat `body:"json"`
}

// NextIn asks for the worker's next build in the reply to the end of a build.
type NextIn struct {
	// Next is 1 if the reply should have the worker's next build, as from a poll that does not
	// wait. Other values are ignored, and so is a request without a token.
	Next string `query:"next" values:"1"`
	// Active lists the builds that the worker has, as in a poll.
	Active *string `query:"active"`
	Token  string  `header:"X-Worker-Token"`
}

// FailBuildIn is the input of FailHeldBuild.
type FailBuildIn struct {
	Process
	NextIn
	Body FailBuild `body:"json"`
}

// BeatBuildIn is the input of SendHeartbeatByBody.
type BeatBuildIn struct {
	Process
	Token string    `header:"X-Worker-Token"`
	Body  BeatBuild `body:"json"`
}

// UploadForm describes the form of POST /api/workers/upload, which is read as a stream. Its
// parts may come in any order.
type UploadForm struct {
	BuildID      string `form:"build_id" schema:"ID"`
	WorkerID     string `form:"worker_id" schema:"ID"`
	Success      string `form:"success" enum:"true,false"`
	ErrorMessage string `form:"error_message,omitempty"`
	// Fault is what a failure ended by: `build`, the default, or a fault of the worker's own:
	// `command` (the build command could not be started), `engine` (the container engine
	// failed), `disk` (the worker could not write its own files). After a fault of the
	// worker's own the build is pending again, at most five times.
	Fault string `form:"fault,omitempty"`
	// ExitCode, Signal or TimedOut say how the command ended, of a failure.
	ExitCode int    `form:"exit_code,omitempty"`
	Signal   int    `form:"signal,omitempty"`
	TimedOut string `form:"timed_out,omitempty" enum:"true,false"`
	// Result is at most 1 GiB by default. It is required with success.
	Result File `form:"result,omitempty"`
}

// UploadResultIn is the input of UploadResult beside its form.
type UploadResultIn struct {
	Process
	NextIn
	// BuildID lets the transfer count as a heartbeat from its beginning.
	BuildID  string `header:"X-Build-Id" type:"ID"`
	WorkerID string `header:"X-Worker-Id" type:"ID"`
}

// WriteLogs is POST /api/builds/:id/logs.
var WriteLogs = declare[WriteLogsIn, PostedLogs](holding, WorkerKey, scopeWorker, Fleet, "POST /api/builds/:id/logs", Route{
	ID: "writeLogs", Summary: "Write to a build's log",
	Text: "A log has at most 64 MiB; each line counts 48 bytes more than its text. Lines after the first 48 MiB are kept apart, the newest 16 MiB of them, and appended when the attempt ends, after a line that says how many are left out.",
})

// FetchSource is GET /api/builds/:id/source.
var FetchSource = declare[Holding, None](holding, WorkerKey, scopeWorker, Transfer, "GET HEAD /api/builds/:id/source", Route{
	ID: "fetchSource", Media: []string{zipFile}, Summary: "Fetch the source",
})

// FetchCerts is GET /api/builds/:id/certs.
var FetchCerts = declare[Holding, None](holding, WorkerKey, scopeWorker, Transfer, "GET HEAD /api/builds/:id/certs", Route{
	ID: "fetchCerts", Media: []string{zipFile}, Summary: "Fetch the certificates",
})

// FetchCertsSecure is GET /api/builds/:id/certs-secure.
var FetchCertsSecure = declare[HoldingWithBuild, SecureCerts](holding, HolderKey, scopeWorker, Transfer, "GET /api/builds/:id/certs-secure", Route{
	ID: "fetchCertsSecure", Errors: []int{422}, Summary: "Fetch the certificates, unpacked",
})

// PostTelemetry is POST /api/builds/:id/telemetry.
var PostTelemetry = declare[PostTelemetryIn, Status](holding, MonitorKey, scopeWorker, Fleet, "POST /api/builds/:id/telemetry", Route{
	ID: "postTelemetry", Summary: "Report the state of the machine; counts as a heartbeat",
	Text: "The API key may be omitted if the controller runs with `--telemetry-without-key`.",
})

// SendHeartbeat is POST /api/builds/:id/heartbeat.
var SendHeartbeat = declare[HeartbeatIn, HeartbeatReply](holding, APIKey, scopeWorker, Fleet, "POST /api/builds/:id/heartbeat", Route{
	ID: "heartbeat", Summary: "Send a heartbeat",
})

// nextText describes NextIn.
const nextText = "With `next=1` and `X-Worker-Token` the reply may have the worker's next build, and the token for its next poll. It never waits for a build. If that part fails, for example because the token is invalid, the reply is the same without build and token."

// FailHeldBuild is POST /api/workers/fail.
var FailHeldBuild = declare[FailBuildIn, Uploaded](holding, APIKey, scopeWorker, Fleet, "POST /api/workers/fail", Route{
	ID: "failBuild", Errors: []int{404}, Headers: []string{"RateLimit", "RateLimit-Policy"}, Summary: "Report that a build has failed", Text: nextText,
})

// SendHeartbeatByBody is POST /api/workers/heartbeat.
var SendHeartbeatByBody = declare[BeatBuildIn, BeatReply](holding, APIKey, scopeWorker, Fleet, "POST /api/workers/heartbeat", Route{
	ID: "heartbeatOfBuild", Errors: []int{404}, Summary: "Send a heartbeat for a build",
})

func uploadRoute(id string) Route {
	return Route{
		ID: id, Body: ResultBody, Errors: []int{404, 507}, Headers: []string{"RateLimit", "RateLimit-Policy"}, Takes: UploadForm{}, Summary: "Report a build's end, with its result",
		Text: "The parts may come in any order. A result is accepted once; the identical repeat is 200, anything else for a build that has ended 409. " + nextText,
	}
}

// UploadResult is POST /api/workers/upload.
var UploadResult = declare[UploadResultIn, Uploaded](holding, APIKey, scopeWorker, Transfer, "POST /api/workers/upload", uploadRoute("uploadResult"))

// UploadResultAlias is POST /api/workers/result.
var UploadResultAlias = declare[UploadResultIn, Uploaded](holding, APIKey, scopeWorker, Transfer, "POST /api/workers/result", uploadRoute("uploadResultAlias"))
