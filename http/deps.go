package http

import (
	"context"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/storage"
	"takt/store"
)

// Builds is the store of builds.
type Builds interface {
	Find(ctx context.Context, id string) (store.Build, error)
	List(ctx context.Context, filter store.BuildFilter) ([]store.Build, error)
	// Tail returns some lines of a log, oldest first, and the build's state at the
	// same moment.
	Tail(ctx context.Context, id string, after int64, limit int) (store.Tail, error)
	// RetryWaits is RetryWaiting if a retry of a build would be refused.
	RetryWaits(ctx context.Context, id string) error
	LogMarks(ctx context.Context, ids []string) (map[string]store.LogMark, error)
	Counts(ctx context.Context) (store.Counts, error)
	Totals(ctx context.Context) (store.Totals, error)
	// Submit calls commit inside its transaction. An error with
	// store.ErrOutcomeUnknown in its chain means: keep the files; with
	// *store.Repeated: it was done before, and commit was not called.
	Submit(ctx context.Context, s store.Submission, commit func() error) (store.Build, error)
	Cancel(ctx context.Context, id string) error
	// SetPriority is of pending builds only.
	SetPriority(ctx context.Context, id string, priority int) (store.BuildRef, error)
	// What follows is for the worker that holds a build. Touch, Heartbeat and
	// Telemetry record beats, the last one with figures.
	Held(ctx context.Context, beat store.Beat) (store.Build, error)
	Touch(ctx context.Context, beat store.Beat) (store.BeatReply, error)
	Heartbeat(ctx context.Context, beat store.Beat) (store.BeatReply, error)
	Telemetry(ctx context.Context, beat store.Beat, t store.Telemetry) (store.BeatReply, error)
	// Finish calls commit inside its transaction, unless it is a repeat.
	Finish(ctx context.Context, result store.Result, commit func() error) (repeat bool, err error)
}

// Workers is the store of workers and of what they found out about themselves.
type Workers interface {
	Register(ctx context.Context, r store.Registration) (store.Registered, error)
	Unregister(ctx context.Context, token store.WorkerToken) (store.Departure, error)
	UnregisterID(ctx context.Context, id string) (store.Departure, error)
	Find(ctx context.Context, id string) (store.Worker, error)
	List(ctx context.Context, f store.WorkerFilter) ([]store.WorkerDetail, error)
	Drain(ctx context.Context, id string, draining bool) (store.WorkerStatus, error)
	Delete(ctx context.Context, id string) (store.Departure, error)
	// Report calls commit inside its transaction.
	Report(ctx context.Context, r store.DiagnosticReport, commit func() error) error
	// TrimReports forgets all but the newest so many reports of a worker, and returns
	// their files.
	TrimReports(ctx context.Context, worker string, keep int) ([]store.File, error)
	Reports(ctx context.Context, worker string, limit int) ([]store.DiagnosticReport, error)
}

// Queue hands out builds.
type Queue interface {
	// Arrive serves a poll at once; or it parks it for at most wait, and then its
	// second result, called once and also if the client is gone, waits for the reply.
	Arrive(ctx context.Context, r store.PollRequest, wait time.Duration) (store.PollReply, func(context.Context) (store.PollReply, error), error)
	// What follows is called after a commit: of a build, with its cache label or "";
	// of builds that are pending again; of a worker that may have a free slot, or that
	// has finished a build with this cache label.
	Enqueued(p store.Platform, cache string)
	Requeued(refs []store.BuildRef)
	Freed(workerID string)
	Warm(workerID, cache string)
	// Full reports whether a submit would be refused now, so that its body need
	// not be read. False if in doubt: Submit decides.
	Full(ctx context.Context) bool
}

// Publish publishes what has changed, once that is committed. It never blocks.
type Publish func(topic string, data any)

// Requests runs each request as a process of its own, as many as there are places.
type Requests interface {
	// Do runs fn and returns its error, or why fn could not run to its end. fn's
	// context ends with ctx, or when the process is told to end. Do never returns
	// while fn runs: fn uses what belongs to its caller. Errors beside fn's:
	// Overloaded, Unavailable. One that has a method Overload is shown with rule,
	// load and limit.
	Do(ctx context.Context, w store.Work, fn func(ctx context.Context) error) error
}

// Heijunka shows and changes how the load is levelled. Changes hold for while, or
// for ever if that is 0, on all controllers; they are in force once they are
// saved. Errors: InvalidArgument, NotFound, Conflict, Unavailable.
type Heijunka interface {
	Status() store.HeijunkaStatus
	SetLimits(ctx context.Context, soft, hard *int, reserved *float64, while time.Duration) error
	ResetLimits(ctx context.Context) error
	SetBounds(ctx context.Context, pool string, low, high *int, while time.Duration) error
	SetAffinity(ctx context.Context, domain string, pools []string, while time.Duration) error
	SetBurst(ctx context.Context, enabled bool, while time.Duration) error
	// Scale, surges and moves are this controller's alone, and are not saved.
	Scale(pool string, by, to *int) error
	StartSurge(d time.Duration) error
	StopSurge() error
	Rebalance(dryRun bool) (store.HeijunkaRebalance, error)
}

// Operator changes the supervision tree: it restarts what runs, with whom the
// strategy ties to it, or stops it until it is started. Paths are those of
// Deps.Tree. Each method returns when the order was carried out, or ctx has ended,
// which ends the wait only. Errors: NotFound, Conflict, Timeout, Unavailable.
type Operator interface {
	Restart(ctx context.Context, path string) error
	Terminate(ctx context.Context, path string) error
	StartChild(ctx context.Context, path string) error
}

// Audit keeps what operators did.
type Audit interface {
	Append(ctx context.Context, e store.AuditEntry) (id int64, err error)
	Conclude(ctx context.Context, id int64, outcome string) error
	List(ctx context.Context, limit int) ([]store.AuditEntry, error)
}

// Auditor checks what holds in the database at every moment, and with repair mends
// what can be mended without losing anything.
type Auditor interface {
	Check(ctx context.Context, repair bool) ([]store.Invariant, error)
}

// Heartbeat holds the time-outs of builds and workers.
type Heartbeat interface {
	Timeouts(ctx context.Context) (store.Timeouts, error)
	// Update checks, applies and saves t.
	Update(ctx context.Context, t store.Timeouts) error
}

// DeploymentStore is where deployments are kept.
type DeploymentStore interface {
	Find(ctx context.Context, id string) (store.Deployment, error)
	List(ctx context.Context, limit int) ([]store.Deployment, error)
	Progress(ctx context.Context, ids ...string) (map[string]store.DeploymentProgress, error)
	// Repos returns what has changed at since or later, all if that is zero.
	Repos(ctx context.Context, id string, since time.Time) ([]store.DeploymentRepo, error)
}

// Deployments copy organisations' repositories. It never waits for the forge.
type Deployments interface {
	// Start begins one with a forge credential, "" for takt's own, which only an
	// operator may spend.
	Start(ctx context.Context, r store.DeploymentRequest, token string, operator bool) (store.Deployment, error)
	Cancel(ctx context.Context, id string) error
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Retry tries one repository again, or with repo "" all that failed.
	Retry(ctx context.Context, id, repo, token string, operator bool) (revived int, err error)
	Estimate(r store.DeploymentRequest, p store.DeploymentProgress) store.DeploymentEstimate
}

// Files is where builds' files are kept: on the local disk, in S3 or both.
type Files interface {
	// Create takes in all of content, sealed for the file of a name unless that is "".
	Create(ctx context.Context, limit int64, sealFor string, content io.Reader) (*storage.Upload, error)
	// Duplicate returns an upload with the content of a file, sealed anew for sealFor.
	Duplicate(ctx context.Context, f store.File, sealFor string) (*storage.Upload, error)
	// Open and OpenSealed find a file wherever it is. ctx bounds the reading.
	Open(ctx context.Context, f store.File) (*storage.File, error)
	OpenSealed(ctx context.Context, f store.File) (*storage.SealedFile, error)
	RemoveBuild(id string) error
	// Remove removes a file from the local disk.
	Remove(name string) (bool, error)
	// Room is DiskFull while the disk is nearly full.
	Room() error
	Health() storage.Health
}

// Throttle takes HubSpot's actions and paces them.
type Throttle interface {
	// Accept returns when the action is durable. InvalidArgument if nobody has set
	// a rate for it.
	Accept(ctx context.Context, a store.Action) (store.Acceptance, error)
	PutConfig(ctx context.Context, c store.ThrottleConfig) (store.ThrottleConfig, error)
	DeleteConfig(ctx context.Context, portal, action int64) error
	// Look has a queue served now.
	Look(ctx context.Context, queue string) error
}

// ThrottleStore is where rates and queues are kept.
type ThrottleStore interface {
	Config(ctx context.Context, portal, action int64) (store.ThrottleConfig, error)
	Configs(ctx context.Context, portal int64) ([]store.ThrottleConfig, error)
	Queues(ctx context.Context, portal int64, limit int) ([]store.QueueStatus, error)
	Queue(ctx context.Context, id string) (store.QueueStatus, error)
	Pause(ctx context.Context, id string, paused bool) error
	Redrive(ctx context.Context, id string) (int, error)
}

// OAuth gets and keeps the tokens of HubSpot's portals.
type OAuth interface {
	// Authorize returns the page on which a portal installs the app, and a secret
	// that its installer brings back.
	Authorize(ctx context.Context) (url, secret string, err error)
	// Install ends an authorization and returns whose it was.
	Install(ctx context.Context, state, secret, code string) (portal int64, err error)
}

// Deps is what a Server works with. All are required, but TLS.
type Deps struct {
	Builds  Builds
	Workers Workers
	Queue   Queue
	// Tokens are those of workers.
	Tokens   *store.WorkerTokens
	Publish  Publish
	Requests Requests
	Files    Files
	// Ready reports whether work can be done: database reachable, migrated.
	Ready func() bool
	// VacuumHeldBack is for how long the database could not be vacuumed; 0 if that
	// is no reason to worry.
	VacuumHeldBack func() time.Duration
	// Tree describes the supervision tree; all lists dynamic children, too.
	Tree      func(all bool) api.TreeNode
	Operator  Operator
	Heartbeat Heartbeat
	Heijunka  Heijunka
	Audit     Audit
	Auditor   Auditor
	// Dashboard reads what pages show.
	Dashboard Dashboard
	// Throttle, ThrottleStore and OAuth are HubSpot's.
	Throttle        Throttle
	ThrottleStore   ThrottleStore
	OAuth           OAuth
	Deployments     Deployments
	DeploymentStore DeploymentStore
	// Background runs what has to outlive its request, and the endpoint: an
	// operator's order. It returns at once; run's context ends with the process.
	Background func(run func(ctx context.Context))
	// TLS is what the server shows who it is with; nil serves plain HTTP.
	TLS *Certificate
	// Metrics is shown at /metrics.
	Metrics prometheus.Gatherer
	Logger  zerolog.Logger
}
