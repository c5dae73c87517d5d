package actors

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/auditor"
	"takt/actors/database"
	"takt/actors/deployment"
	"takt/actors/heijunka"
	"takt/actors/janitor"
	"takt/actors/jobs"
	"takt/actors/keys"
	"takt/actors/notices"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/queue"
	"takt/actors/request"
	"takt/actors/telemetry"
	"takt/actors/throttle"
	"takt/store"
	"takt/store/metrics"
)

// root is the name of the tree's root, and of takt's own database objects.
const root = "takt"

// Config is the configuration of the tree's children. Zero values mean the defaults of
// each child.
type Config struct {
	// Embedded runs a PostgreSQL server; nil means Database is external.
	Embedded *database.PostgresConfig
	// Database is where the external database is; unused with Embedded.
	Database database.Source
	// Version is the controller's.
	Version string
	// Pool is given without Source and Sinks, because the tree sets these.
	Pool     database.PoolConfig
	Heijunka heijunka.Config

	// The others are of services.
	Queue queue.Config
	// Timeouts and Rule are the heartbeat monitor's.
	Timeouts store.Timeouts
	Rule     store.LostRule
	// Unmatched is how long builds may wait that no known worker can take; 0 for ever.
	Unmatched time.Duration
	// Retain is how long the janitor keeps files, logs and reports.
	Retain      janitor.Retention
	Throttle    throttle.Config
	Deployments deployment.Config
}

// Deps are what the tree works with but does not make.
type Deps struct {
	Logger zerolog.Logger
	// DB gets each new connection pool.
	DB database.PoolUser
	// Heijunka stores what operators change of load levelling.
	Heijunka heijunka.Settings
	// Invariants is the SQL of the auditor, Rows is that of the janitor.
	Invariants auditor.Invariants
	Rows       janitor.Rows
	// Metrics observe what happens. Defaults to new ones.
	Metrics *metrics.Metrics

	// Keys is the SQL of the keys with names.
	Keys keys.Store
	// Notices sends notices; nil sends none.
	Notices *notices.Notices

	// Builds, Throttle and Deployments are the services. One that is nil is left out: it
	// has no processes, handles and metrics.
	Builds *Builds
	// Throttle is given without Bus, because the tree sets it.
	Throttle    *throttle.Deps
	Deployments *Deployments
}

// Builds is what the service builds works with.
type Builds struct {
	// Queue and Monitor are the SQL of the two actors.
	Queue   queue.Store
	Monitor queue.MonitorStore
	// Tokens are those of workers.
	Tokens *store.WorkerTokens
	// Files is the storage.
	Files janitor.Files
	// Fleet counts the workers by state. Disk returns the free bytes and the size of the
	// disk of builds' files. Both are for metrics and may be nil.
	Fleet func(ctx context.Context) (map[string]int, error)
	Disk  func() (free, size int64, err error)
}

// Deployments is what the service deployments works with.
type Deployments struct {
	Store deployment.Store
	// Forge is where repositories are.
	Forge deployment.Forge
}

// Tree is the supervision tree and the handles of what lives in it.
type Tree struct {
	Telemetry *telemetry.Telemetry
	Bus       pubsub.Bus
	Postgres  *database.Postgres // nil with an external database
	Pool      *database.Pool
	Listener  *database.Listener
	Janitor   *janitor.Janitor
	Auditor   *auditor.Auditor
	Heijunka  *heijunka.Heijunka
	Jobs      *jobs.Jobs // nil without a part that has jobs

	// The handles of services are nil if their service is left out. Queue and Monitor are
	// of the service builds. Deployments copy organisations' repositories.
	Queue       *queue.Queue
	Monitor     *queue.Monitor
	Throttle    *throttle.Throttle
	Deployments *deployment.Deployments

	sys      *otp.System
	keys     keys.Store
	disk     func() (free, size int64, err error)
	fleet    counted[map[string]int]
	backlog  counted[throttle.Backlog]
	notices  counted[store.NoticeBacklog]
	serving  atomic.Pointer[time.Time] // since when the endpoint runs
	endpoint func(context.Context) error
	top      *otp.Proc
	// responded is when the root was asked last that has answered, see Responds.
	responded atomic.Pointer[time.Time]

	terminate  sync.Once
	terminated chan struct{}
}

// New makes the handles. It starts nothing.
func New(cfg Config, deps Deps) *Tree {
	t := &Tree{Bus: pubsub.New(), terminated: make(chan struct{})}
	t.Telemetry = telemetry.New(deps.Logger, t.Bus)
	t.sys = otp.New(otp.Options{Logger: deps.Logger, OnEvent: t.Telemetry.Hook})

	if deps.Metrics == nil {
		deps.Metrics = metrics.New()
	}
	t.Telemetry.Register(deps.Metrics)
	source := cfg.Database
	if cfg.Embedded != nil {
		t.Postgres = database.NewPostgres(*cfg.Embedded)
		source = t.Postgres.ConnConfig
	}
	listen := source
	if cfg.Pool.Direct != nil {
		listen = cfg.Pool.Direct
	}
	t.Listener = database.NewListener(database.ListenerConfig{Source: listen, Version: cfg.Version, Bus: t.Bus})
	cfg.Pool.Sinks = []database.PoolUser{deps.DB, t.Listener}
	var work []jobs.Work
	if deps.Throttle != nil {
		deps.Throttle.Bus = t.Bus
		t.Throttle = throttle.New(t.sys, *deps.Throttle, cfg.Throttle)
		t.backlog.count, t.backlog.limit = t.Throttle.Backlog, 5*time.Second
		work = append(work, jobs.Work{Add: t.Throttle.Jobs.Add, Started: t.Throttle.Resume, Needed: deps.Throttle.Store.HasConfigs})
	}
	if n := deps.Notices; n != nil {
		work = append(work, jobs.Work{Add: n.Add, Queue: notices.Queue, Take: n.TakeJobs, Started: func() {}, Needed: n.Needed})
		t.notices.count, t.notices.limit = n.Backlog, time.Second
		t.Telemetry.Register(n.Metrics())
	}
	if len(work) > 0 {
		t.Jobs = jobs.New(work...)
		t.Bus.Subscribe(func(pubsub.Event) { t.Jobs.Check() }, pubsub.ThrottleConfig, pubsub.SettingsChanged, pubsub.ListenerResumed)
		cfg.Pool.Sinks = append(cfg.Pool.Sinks, t.Jobs)
	}
	cfg.Pool.Source, cfg.Pool.Metrics = source, deps.Metrics
	t.Pool = database.NewPool(cfg.Pool)

	var files janitor.Files
	if b := deps.Builds; b != nil {
		deps.Metrics.BeginBuilds()
		cfg.Queue.Metrics = deps.Metrics
		t.Queue = queue.New(t.sys, b.Queue, t.Bus, b.Tokens, cfg.Queue)
		t.Monitor = queue.NewMonitor(t.sys, b.Monitor, t.Queue, t.Bus, queue.MonitorConfig{
			Timeouts: cfg.Timeouts, Rule: cfg.Rule, Unmatched: cfg.Unmatched, Ready: t.ReadySince,
		})
		files, t.disk = b.Files, b.Disk
		t.fleet.count, t.fleet.limit = b.Fleet, time.Second
	}
	t.Janitor = janitor.New(t.sys, deps.Rows, files, cfg.Retain)
	t.keys = deps.Keys
	t.Auditor = auditor.New(t.sys, deps.Invariants)
	if d := deps.Deployments; d != nil {
		t.Deployments = deployment.New(t.sys, d.Store, d.Forge, t.Bus, cfg.Deployments)
	}
	requests, outside := request.New(t.sys, heijunka.Names()...), map[string]func() int{}
	if t.Queue != nil {
		outside[heijunka.Fleet] = t.Queue.Waiting
	}
	t.Heijunka = heijunka.New(t.sys, heijunka.Deps{
		Run: requests.Run, Bus: t.Bus, Settings: deps.Heijunka, Outside: outside, Metrics: deps.Metrics,
	}, cfg.Heijunka)
	t.Bus.Subscribe(lifecycle{deps.Logger, deps.Metrics}.observe)
	t.measure()
	return t
}

// spec describes the tree. Children start in this order, each when the one before it is
// up, and stop in reverse. Each child's Spec says what it does and how long it may take
// to stop; doc.go shows all of it.
func (t *Tree) spec() otp.SupSpec {
	var embedded []otp.ChildSpec // none with an external database
	if t.Postgres != nil {
		embedded = append(embedded, t.Postgres.Spec())
	}
	var builds, working, throttled, deployments []otp.ChildSpec // none if left out
	if t.Queue != nil {
		builds = append(builds, t.Queue.Spec(), t.Monitor.Spec())
	}
	if t.Jobs != nil {
		working = append(working, t.Jobs.Spec())
	}
	if t.Throttle != nil {
		throttled = append(throttled, supervisor("throttle", otp.OneForOne, 5*time.Second,
			t.Throttle.Cache.Spec(),
			t.Throttle.Tokens.Spec(),
			t.Throttle.Batcher.Spec(),
			t.Throttle.Portals.Spec(),
		))
	}
	if t.Deployments != nil {
		deployments = append(deployments, supervisor("deployments", otp.OneForOne, 5*time.Second,
			t.Deployments.DeploymentSup(),
			t.Deployments.RepoSup(),
			t.Deployments.Resumer(),
		))
	}
	top := supervisor(root, otp.OneForOne, 5*time.Second, slices.Concat(
		[]otp.ChildSpec{
			t.Telemetry.Spec(),
			// If the server is killed, the pool is restarted too. An operator may cause
			// three restarts in a minute; more mean that the machine has a defect.
			supervisor("database", otp.RestForOne, time.Minute, append(embedded,
				t.Pool.Spec(),
				t.Listener.Spec(),
			)...),
			t.Bus.Spec(),
			supervisor("orchestration", otp.OneForOne, 5*time.Second, append(builds,
				t.Janitor.Spec(),
				t.Auditor.Spec(),
				keys.Spec(t.keys, t.Bus),
			)...),
			supervisor("heijunka", otp.OneForAll, 5*time.Second,
				supervisor("pool_sup", otp.OneForOne, 5*time.Second, t.Heijunka.PoolManagers()...),
				t.Heijunka.LoadRegulator(),
				t.Heijunka.Balancer(),
				t.Heijunka.BurstHandler(),
			),
		},
		working,
		throttled,
		deployments,
		[]otp.ChildSpec{
			// Outside of heijunka, because its one_for_all must not end running requests.
			supervisor("request_sup", otp.OneForOne, 5*time.Second, request.Specs(heijunka.Names()...)...),
			{ID: "endpoint", Task: t.serve},
		},
	)...)
	return top.Supervisor()
}

// supervisor describes a supervisor that gives up after more than 3 restarts in period.
func supervisor(id string, strategy otp.Strategy, period time.Duration, children ...otp.ChildSpec) otp.ChildSpec {
	spec := otp.SupSpec{Strategy: strategy, Intensity: 3, Period: period, Children: children}
	return otp.ChildSpec{ID: id, Supervisor: func() otp.SupSpec { return spec }}
}

// Start starts the tree. endpoint serves HTTP until its context ends. Start returns when
// all children are up. If one does not start, it returns the error, and nothing is left
// running. After Done the tree may be started again.
func (t *Tree) Start(ctx context.Context, endpoint func(context.Context) error) error {
	t.endpoint = endpoint
	top, err := t.sys.StartRoot(ctx, root, t.spec())
	if err != nil {
		return err
	}
	t.top = top
	return nil
}

// serve runs the endpoint and records since when.
func (t *Tree) serve(ctx context.Context) error {
	now := time.Now()
	t.serving.Store(&now)
	defer t.serving.Store(nil)
	err := t.endpoint(ctx)
	if err == nil && ctx.Err() == nil {
		return errors.New("the HTTP server ended by itself")
	}
	return err
}

// Done is closed when the tree has ended. Reason says why: without Stop, either its root
// has given up, which ends the process, or an operator wants it started again.
func (t *Tree) Done() <-chan struct{} { return t.top.Done() }

// Reason is why the tree ended. It wraps ErrRestart if an operator wants it started again.
func (t *Tree) Reason() error { return t.top.Reason() }

// Terminated is closed when an operator has terminated the root: whoever started the tree
// calls Stop, in the order of any other end of the process.
func (t *Tree) Terminated() <-chan struct{} { return t.terminated }

// Stop ends the tree, last child first, until ctx ends. It returns the paths of the
// processes that did not end in time.
func (t *Tree) Stop(ctx context.Context) (leaked []string) { return t.sys.Shutdown(ctx) }

// Snapshot returns the tree as it is now. With all it lists the children of dynamic
// supervisors, without it only counts them.
func (t *Tree) Snapshot(all bool) otp.Node {
	if roots := t.sys.Tree(all); len(roots) > 0 {
		return roots[0]
	}
	return otp.Node{ID: root, Path: root, Type: otp.Supervisor, Status: otp.StatusTerminated}
}

// busyLimit is how long the root may start or stop one child: a recovery of the database, and
// what may precede it.
const busyLimit = 20 * time.Minute

// Responds asks the root supervisor and reports whether it answers before ctx ends. While it
// starts or stops a child it answers nobody, which counts as an answer for busyLimit.
func (t *Tree) Responds(ctx context.Context) bool {
	now := time.Now()
	if _, err := otp.CountChildren(ctx, t.sys.Ref(root)); err == nil {
		t.responded.Store(&now)
		return true
	}
	n := t.Snapshot(false)
	busy := n.Status != otp.StatusRunning || slices.ContainsFunc(n.Children, func(c otp.Node) bool {
		return c.Status != otp.StatusRunning && c.Status != otp.StatusSuspended
	})
	last := t.responded.Load()
	return busy && (last == nil || now.Sub(*last) < busyLimit)
}

// Ready reports whether work can be done: the HTTP server runs, the database
// answers and is migrated.
func (t *Tree) Ready() bool {
	_, ok := t.ReadySince()
	return ok
}

// ReadySince returns since when Ready has held without interruption.
func (t *Tree) ReadySince() (time.Time, bool) {
	serving := t.serving.Load()
	database, ok := t.Pool.ReadySince()
	if serving == nil || !ok {
		return time.Time{}, false
	}
	return slices.MaxFunc([]time.Time{*serving, database}, time.Time.Compare), true
}
