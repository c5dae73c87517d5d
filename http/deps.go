package http

import (
	"context"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/http/attention"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/storage"
	"takt/store"
	"takt/store/metrics"
)

// Lists are read in pages: each method that returns a part of one also returns the position of
// its last row, or "" if nothing follows.

// Builds is the store of builds.
type Builds interface {
	Find(ctx context.Context, id string) (store.Build, error)
	List(ctx context.Context, f store.BuildFilter, p store.Page) ([]store.Build, store.Cursor, error)
	// Tail returns lines of a log, oldest first, and the build's state at the same
	// moment.
	Tail(ctx context.Context, id string, after int64, limit int) (store.Tail, error)
	// RetryWaits returns RetryWaiting if a retry of a build would be refused.
	RetryWaits(ctx context.Context, id string) error
	// KeyRoom returns KeyQueueFull if a submit by a key would be refused. Submit decides.
	KeyRoom(ctx context.Context, key string) error
	LogMarks(ctx context.Context, ids []string) (map[string]store.LogMark, error)
	Counts(ctx context.Context) (store.Counts, error)
	Totals(ctx context.Context) (store.Totals, error)
	// Submit settles files, as Finish and [Workers.Report] do; see [store.Staged]. If the
	// error wraps *store.Repeated, the submission was made before.
	Submit(ctx context.Context, s store.Submission, files ...store.Staged) (store.Build, error)
	Cancel(ctx context.Context, id, by, why string) error
	// Requeue works on builds that a worker holds.
	Requeue(ctx context.Context, id string) (store.BuildRef, error)
	// SetPriority works on pending builds only.
	SetPriority(ctx context.Context, id string, priority int) (store.BuildRef, error)
	// The following methods are for the worker that holds a build. RecordHeartbeat, Heartbeat and
	// Telemetry record heartbeats; Telemetry adds figures.
	Held(ctx context.Context, heartbeat store.Heartbeat) (store.Build, error)
	RecordHeartbeat(ctx context.Context, heartbeat store.Heartbeat) (store.HeartbeatReply, error)
	Heartbeat(ctx context.Context, heartbeat store.Heartbeat) (store.HeartbeatReply, error)
	Telemetry(ctx context.Context, heartbeat store.Heartbeat, t store.Telemetry) (store.HeartbeatReply, error)
	Finish(ctx context.Context, result store.Result, files ...store.Staged) (store.Finished, error)
	GiveBack(ctx context.Context, result store.Result) (store.GiveBack, error)
}

// Workers is the store of workers and of their diagnostic reports.
type Workers interface {
	Register(ctx context.Context, r store.Registration) (store.Registered, error)
	// Conflict records that Register returned DuplicateWorker for a process at address. It
	// returns when to try again, and whether the conflict is to be reported.
	Conflict(ctx context.Context, id, address string) (again time.Duration, report bool, err error)
	Unregister(ctx context.Context, token store.WorkerToken) (store.Departure, error)
	Leaving(ctx context.Context, token store.WorkerToken) (id string, status store.WorkerStatus, err error)
	// UnregisterID returns DuplicateWorker if another process than instance, unless that is "",
	// holds the worker.
	UnregisterID(ctx context.Context, id, instance string) (store.Departure, error)
	// IDOf returns the id of the worker with a number.
	IDOf(ctx context.Context, number uint32) (string, error)
	Show(ctx context.Context, id string) (store.WorkerDetail, error)
	List(ctx context.Context, f store.WorkerFilter, p store.Page) ([]store.WorkerDetail, store.Cursor, error)
	Drain(ctx context.Context, id string, draining bool) (store.WorkerStatus, error)
	Delete(ctx context.Context, id string) (store.Departure, error)
	Report(ctx context.Context, r store.DiagnosticReport, files ...store.Staged) error
	// TrimReports deletes all but the newest keep reports of a worker and returns the
	// files of the deleted ones.
	TrimReports(ctx context.Context, worker string, keep int) ([]store.File, error)
	Reports(ctx context.Context, worker string, limit int) ([]store.DiagnosticReport, error)
}

// Queue hands out builds.
type Queue interface {
	// Arrive takes a poll, which waits for a build for at most wait. The caller must call
	// the result once, even if the client is gone.
	Arrive(ctx context.Context, r store.PollRequest, wait time.Duration) (store.AwaitReply, error)
	// The following methods are called after a commit: Enqueued for a new pending build,
	// Requeued for builds that are pending again, Freed for a
	// worker that may have a free slot, Warm for a worker that has finished a build with
	// this cache label.
	Enqueued(b store.Build)
	Requeued(refs []store.BuildRef)
	Freed(workerID string)
	Able(workerID string)
	Warm(workerID, cache string)
	// Full returns QueueFull if every submit would be refused now, so that its body need not be
	// read. It returns nil if in doubt, because Submit decides.
	Full(ctx context.Context) error
}

// Publish publishes a change after its commit. It never blocks.
type Publish func(topic string, data any)

// Heijunka shows and changes load levelling. A change holds for while, or for ever if
// while is 0, on all controllers. It takes effect once it is saved. Errors:
// InvalidArgument, NotFound, Conflict, Unavailable.
type Heijunka interface {
	Status() store.HeijunkaStatus
	SetLimits(ctx context.Context, soft, hard *int, reserved *float64, while time.Duration) error
	ResetLimits(ctx context.Context) error
	SetBounds(ctx context.Context, pool string, low, high *int, while time.Duration) error
	ResetBounds(ctx context.Context, pool string) error
	SetAffinity(ctx context.Context, domain string, pools []string, while time.Duration) error
	ResetAffinity(ctx context.Context, domain string) error
	SetBurst(ctx context.Context, enabled bool, while time.Duration) error
	// Scaling, surges and moves apply to this controller only and are not saved.
	Scale(pool string, by, to *int) error
	StartSurge(d time.Duration) error
	StopSurge() error
	Rebalance(dryRun bool) (store.HeijunkaRebalance, error)
}

// Operator changes the supervision tree. It restarts a node with the siblings that the
// strategy ties to it, stops a node, or starts it again. Paths are those of Deps.Tree.
// Each method returns when the order was carried out or when ctx has ended; the end of
// ctx ends the wait only, not the order. Errors: NotFound, Conflict, Timeout,
// Unavailable.
type Operator interface {
	Restart(ctx context.Context, path string) error
	Terminate(ctx context.Context, path string) error
	StartChild(ctx context.Context, path string) error
}

// Audit stores what operators did.
type Audit interface {
	Append(ctx context.Context, e store.AuditEntry) (id int64, err error)
	Conclude(ctx context.Context, id int64, outcome string) error
	List(ctx context.Context, text string, p store.Page) ([]store.AuditEntry, store.Cursor, error)
}

// Keys stores named keys and updates [Deps.Ring].
type Keys interface {
	// List returns them, those in force first.
	List(ctx context.Context) ([]store.NamedKey, error)
	Create(ctx context.Context, k store.NamedKey) error
	// Limit changes the limits that are not nil.
	Limit(ctx context.Context, name string, to store.KeyLimits) (store.NamedKey, error)
	Revoke(ctx context.Context, name string) error
	// Refresh reads the keys if they have changed. An actor does it at each notification.
	Refresh(ctx context.Context) error
	// Enroll spends a token for k.
	Enroll(ctx context.Context, token string, k store.NamedKey) error
}

// Secrets stores the values that builds ask for by name.
type Secrets interface {
	List(ctx context.Context) ([]store.Secret, error)
	// Set adds or replaces a secret that was checked.
	Set(ctx context.Context, s store.Secret, value []byte) (store.Secret, error)
	Remove(ctx context.Context, name string) error
	// May returns nil if builds of a key, "" for the API key, may have secrets, whose values say how
	// each is given. HandOut decides.
	May(ctx context.Context, key string, secrets map[string]string) error
	// MayAgain returns nil if a retry of a build may have its secrets, else SecretGone.
	MayAgain(ctx context.Context, build string, secrets map[string]string) error
	// HandOut returns the values for the worker that holds a build, and records that. It returns
	// SecretGone if one is missing.
	HandOut(ctx context.Context, h store.Heartbeat, names []string, actor string) ([]store.SecretValue, error)
}

// Notices stores subscriptions, and shows what was sent to them.
type Notices interface {
	List(ctx context.Context) ([]store.Subscription, error)
	Find(ctx context.Context, id string) (store.Subscription, error)
	// Make and Rotate return the new secret. A token makes a subscription of GitHub.
	Make(ctx context.Context, s store.Subscription, token string) (made store.Subscription, secret string, err error)
	Rotate(ctx context.Context, id string) (secret string, err error)
	// Change returns a new secret if fresh. Both it and token are for a new URL.
	Change(ctx context.Context, id, token string, fresh bool, change func(*store.Subscription)) (s store.Subscription, secret string, err error)
	Delete(ctx context.Context, id string) error
	// Deliveries returns those of all subscriptions that are not delivered if id is "".
	Deliveries(ctx context.Context, id string, limit int) ([]store.Delivery, error)
	// Redrive has a dead notice sent again, or with number 0 all.
	Redrive(ctx context.Context, id string, number int64) (int, error)
	Test(ctx context.Context, id string) error
}

// Auditor checks the invariants of the database.
type Auditor interface {
	Check(ctx context.Context) ([]store.Invariant, error)
}

// Heartbeat holds the time-outs of builds and workers.
type Heartbeat interface {
	Timeouts(ctx context.Context) (store.Timeouts, error)
	// Update checks, applies and saves t.
	Update(ctx context.Context, t store.Timeouts) error
}

// DeploymentStore stores deployments.
type DeploymentStore interface {
	Find(ctx context.Context, id string) (store.Deployment, error)
	List(ctx context.Context, p store.Page) ([]store.Deployment, store.Cursor, error)
	Progress(ctx context.Context, ids ...string) (map[string]store.DeploymentProgress, error)
	// Repos returns the repositories that changed at since or later; all if since is
	// zero.
	Repos(ctx context.Context, id string, since time.Time) ([]store.DeploymentRepo, error)
}

// Deployments copies organisations' repositories. Its methods never wait for the forge.
type Deployments interface {
	// Start begins a deployment with a forge credential. "" means takt's own, which only
	// an operator may spend.
	Start(ctx context.Context, r store.DeploymentRequest, token string, operator bool) (store.Deployment, error)
	// Cancel, Pause and Resume refuse others than operators a deployment that spends
	// takt's own credential.
	Cancel(ctx context.Context, id string, operator bool) error
	Pause(ctx context.Context, id string, operator bool) error
	Resume(ctx context.Context, id string, operator bool) error
	// Retry retries one repository, or with repo "" all that failed.
	Retry(ctx context.Context, id, repo, token string, operator bool) (revived int, err error)
	Estimate(r store.DeploymentRequest, p store.DeploymentProgress) store.DeploymentEstimate
}

// Files stores builds' files on the local disk, in S3 or in both.
type Files interface {
	// Create stores all of content. It seals the content for the file name sealFor unless
	// that is "".
	Create(ctx context.Context, limit int64, sealFor string, content io.Reader) (*storage.Upload, error)
	// CreateNew is Create for the file of a new build that will be called name.
	CreateNew(ctx context.Context, name string, limit int64, seal bool, content io.Reader) (*storage.Upload, error)
	// Duplicate returns an upload with the content of a file, sealed again for sealFor.
	Duplicate(ctx context.Context, f store.File, sealFor string) (*storage.Upload, error)
	// Open and OpenSealed find a file on the disk or in S3. ctx bounds the reading.
	Open(ctx context.Context, f store.File) (*storage.File, error)
	OpenSealed(ctx context.Context, f store.File) (*storage.SealedFile, error)
	// Remove removes a file from the local disk.
	Remove(name string) (bool, error)
	// Room returns DiskFull while the disk is nearly full.
	Room() error
	Health() storage.Health
}

// Throttle accepts HubSpot's actions and limits their rates.
type Throttle interface {
	// Accept returns when the action is durable. It returns InvalidArgument if no rate is
	// set for the action.
	Accept(ctx context.Context, a store.Action) (store.Acceptance, error)
	PutConfig(ctx context.Context, c store.ThrottleConfig) (store.ThrottleConfig, error)
	DeleteConfig(ctx context.Context, portal, action int64) error
	// Look has a queue served now.
	Look(ctx context.Context, queue string) error
}

// ThrottleStore stores rates and queues.
type ThrottleStore interface {
	Config(ctx context.Context, portal, action int64) (store.ThrottleConfig, error)
	Configs(ctx context.Context, portal int64, p store.Page) ([]store.ThrottleConfig, store.Cursor, error)
	Queues(ctx context.Context, portal int64, oldest bool, p store.Page) ([]store.QueueStatus, store.Cursor, error)
	Queue(ctx context.Context, id string) (store.QueueStatus, error)
	Pause(ctx context.Context, id string, paused bool) error
	Redrive(ctx context.Context, id string) (int, error)
}

// OAuth gets and stores the tokens of HubSpot's portals.
type OAuth interface {
	// Authorize returns the page on which a portal installs the app, and a secret that
	// the installer's browser must send back.
	Authorize(ctx context.Context) (url, secret string, err error)
	// Install ends an authorization and returns its portal.
	Install(ctx context.Context, state, secret, code string) (portal int64, err error)
}

// Deps are the dependencies of a Server. All are required except Serving, TLS and
// those of services that are left out.
type Deps struct {
	Builds  Builds
	Workers Workers
	Queue   Queue
	// Tokens checks workers' tokens.
	Tokens   *store.WorkerTokens
	Publish  Publish
	Requests edge.Requests
	Files    Files
	// Forecast says why builds wait.
	Forecast *forecast.Reader
	// Attention says what needs attention.
	Attention *attention.Reader
	// Ready reports whether this process can work: the database is reachable and
	// migrated.
	Ready func() bool
	// VacuumHeldBack is how long vacuuming the database has been held back; 0 if that is
	// harmless.
	VacuumHeldBack func() time.Duration
	// Tree describes the supervision tree; all includes dynamic children.
	Tree      func(all bool) api.TreeNode
	Operator  Operator
	Heartbeat Heartbeat
	Heijunka  Heijunka
	Audit     Audit
	// Keys and Ring are the keys with names.
	Keys    Keys
	Ring    *store.KeyRing
	Notices Notices
	Secrets Secrets
	Auditor Auditor
	// Repair checks the invariants and makes the repairs that lose no data.
	Repair func(ctx context.Context) ([]store.Invariant, error)
	// Debug describes the process's internal state, without secrets.
	Debug func(ctx context.Context) api.Debug
	// Throttle, ThrottleStore and OAuth serve HubSpot.
	Throttle        Throttle
	ThrottleStore   ThrottleStore
	OAuth           OAuth
	Deployments     Deployments
	DeploymentStore DeploymentStore
	// Background runs what must outlive its request and the endpoint, such as an
	// operator's order. It returns at once; run's context ends with the process.
	Background func(run func(ctx context.Context))
	// Serving is called when a Serve begins to accept connections, and end when it returns.
	// ctx ends with the last request. nil does nothing.
	Serving func(ctx context.Context) (end func())
	// TLS is the server's certificate; nil serves plain HTTP.
	TLS *edge.Certificate
	// Observed are the metrics that handlers observe. Defaults to unregistered ones.
	Observed *metrics.Metrics
	// Metrics is the source of /metrics.
	Metrics prometheus.Gatherer
	Logger  zerolog.Logger
}
