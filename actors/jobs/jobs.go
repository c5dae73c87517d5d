// Package jobs runs the client of River, the job queue in PostgreSQL, for the subsystems that
// have jobs.
//
// Each subsystem describes its part as [Work]. The assembly of the tree passes it to [New],
// so that subsystems do not depend on each other.
//
// # State
//
// PostgreSQL has the jobs. A restart interrupts the running ones, which run again. There is no
// client until a subsystem needs one, see [Work].
//
// # Failure
//
// The client is stopped when its connection pool is about to be closed, and another one is
// started on the next pool. Meanwhile the actor is suspended. A client that ends by itself
// is a crash of the actor.
//
// A job may run while the subsystem that it belongs to restarts. It must then snooze.
//
// # Concurrency
//
// The handle may be used by any goroutine. Jobs run in River's goroutines.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog" // River logs with it
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/store/backoff"
)

const (
	jobTimeout = 20 * time.Second
	// rescueAfter is the age at which a running job counts as dead, because its
	// controller was killed. With River's default, an hour, its work would stand still
	// for too long.
	rescueAfter = time.Minute
	// stopTime is how long jobs get to end once their contexts have ended.
	stopTime = 4 * time.Second
	// startTime is how long a start may take, and restartPause the pause after a failed one.
	startTime    = 5 * time.Second
	restartPause = time.Second
	// deadRetention is how long jobs that were given up are kept, so that they can be redriven.
	deadRetention = 7 * 24 * time.Hour
	// neededEvery is how often a controller without a client checks whether one is needed,
	// besides the calls of Check.
	neededEvery = time.Minute
	// failedCheck is the time until a check that failed is repeated.
	failedCheck = 5 * time.Second
)

// Work is what River does for a subsystem.
type Work struct {
	// Add adds queues, workers and periodic jobs to the configuration of a client.
	// Subsystems must not share queues, because River fails jobs that it has no worker for,
	// and other controllers may serve other subsystems.
	Add func(c *river.Config, log zerolog.Logger)
	// Take, if not nil, chooses which jobs of Queue run next instead of River, which takes the
	// oldest. It marks at most free jobs as running for the client and returns their ids.
	Queue string
	Take  Take
	// Started is called when a client has started, also after a restart or an outage.
	Started func()
	// Needed reports whether there is, or may soon be, a job. No client is started before,
	// because even an idle one costs more than the rest of an idle controller. nil means
	// always.
	Needed func(ctx context.Context) (bool, error)
}

// Take chooses jobs, see [Work].
type Take func(ctx context.Context, client string, free int) (ids []int64, err error)

// Jobs is the handle of the actor that runs River's client. It is a sink of the pool.
// Each pool gets a client of its own.
type Jobs struct {
	work  []Work
	pool  atomic.Pointer[pool]
	check chan struct{} // has a value when a client may be needed
	every time.Duration // neededEvery; immutable
}

// pool is the current connection pool, nil if there is none. replaced is closed when the
// pool is no longer current.
type pool struct {
	*pgxpool.Pool
	replaced chan struct{}
}

// New returns the handle for the actor that Spec describes. It starts nothing.
func New(work ...Work) *Jobs {
	j := &Jobs{work: work, check: make(chan struct{}, 1), every: neededEvery}
	j.Use(nil)
	return j
}

// Spec describes the actor to its supervisor.
func (j *Jobs) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "jobs",
		Server:   func() otp.Server { return &jobs{j: j} },
		Shutdown: 2 * stopTime,
	}
}

// Use starts a client on the pool.
func (j *Jobs) Use(p *pgxpool.Pool) {
	if old := j.pool.Swap(&pool{p, make(chan struct{})}); old != nil {
		close(old.replaced)
	}
	j.Check()
}

// Check makes a controller without a client check now whether one is needed. It does not wait.
func (j *Jobs) Check() {
	select {
	case j.check <- struct{}{}:
	default: // requested already
	}
}

// Drop ends the client, because its pool is about to be closed.
func (j *Jobs) Drop(error) { j.Use(nil) }

// suspended is the only message, a cast: the reason why run waits; "" if it does not.
type suspended string

// jobs is the actor. It runs at most one client, on the current pool. When the pool is
// gone, the client ends; that is an outage. A client that ends by itself ends the actor.
type jobs struct {
	otp.Base
	j *Jobs
}

// Init does not wait for a client, because nothing depends on it.
func (s *jobs) Init(c *otp.Ctx) error {
	j, self, log, hard := s.j, c.Self(), c.Logger(), c.Context()
	c.Async(func(ctx context.Context) any {
		return j.run(ctx, hard, *log, func(why string) { otp.Cast(self, suspended(why)) })
	})
	return nil
}

// HandleCast shows what the actor waits for.
func (s *jobs) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case suspended:
		c.Suspend(string(msg))
	default:
		s.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (s *jobs) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case error:
		c.Stop(msg)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// run starts a client for each pool in turn, until ctx ends. It returns an error if a
// client ends by itself. Clients end with hard at the latest.
func (j *Jobs) run(ctx, hard context.Context, log zerolog.Logger, suspend func(why string)) error {
	for ctx.Err() == nil {
		p := j.pool.Load()
		if p.Pool == nil {
			suspend("database unavailable")
			select {
			case <-p.replaced:
			case <-ctx.Done():
			}
			continue
		}
		if needed, err := j.needed(ctx); !needed {
			suspend("") // it waits for work, not for the end of an outage
			every := j.every
			if err != nil {
				every = min(every, failedCheck)
			}
			_ = backoff.PauseUntil(ctx, every, j.check)
			continue
		}
		client, err := j.start(ctx, hard, p.Pool, log)
		if err != nil {
			if ctx.Err() != nil {
				continue // the actor ends, which is no failure of the start
			}
			log.Warn().Err(err).Msg("River's client did not start")
			suspend("River's client does not start")
			_ = backoff.Pause(ctx, restartPause)
			continue
		}
		suspend("")
		if err := j.serve(ctx, hard, client, p.replaced); err != nil {
			return err
		}
	}
	return nil
}

// needed reports whether a subsystem needs a client.
func (j *Jobs) needed(ctx context.Context) (yes bool, err error) {
	for _, w := range j.work {
		if w.Needed == nil {
			return true, nil
		}
		if yes, failed := w.Needed(ctx); failed == nil && yes {
			return true, nil
		} else if failed != nil {
			err = failed
		}
	}
	return false, err
}

// serve runs a client until its pool is replaced or ctx ends.
func (j *Jobs) serve(ctx, hard context.Context, client *river.Client[pgx.Tx], replaced <-chan struct{}) error {
	for _, w := range j.work {
		w.Started()
	}
	select {
	case <-client.Stopped():
		return errors.New("the River client ended by itself")
	case <-replaced: // jobs that do not end now end with the pool
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeoutCause(hard, stopTime, errSlowStop)
	defer cancel()
	// The jobs' contexts end first, because a job may wait for something that stops too.
	// A job that was interrupted runs again.
	_ = client.StopAndCancel(limit)
	select {
	case <-client.Stopped():
	case <-ctx.Done():
	}
	return nil
}

var errSlowStop = errors.New("the River client did not stop in time")

// start makes and starts a client.
func (j *Jobs) start(ctx, hard context.Context, pool *pgxpool.Pool, log zerolog.Logger) (*river.Client[pgx.Tx], error) {
	client, err := j.newClient(pool, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errSlowStart)
	defer cancel()
	return client, start(ctx, hard, client)
}

var errSlowStart = errors.New("the River client did not start in time")

// start starts a client that lives until hard ends or it is stopped. ctx bounds the
// start.
func start(ctx, hard context.Context, client *river.Client[pgx.Tx]) error {
	// live ends a start that takes too long, because River's Stop must not be called
	// while Start runs.
	live, end := context.WithCancelCause(hard)
	giveUp := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	err := client.Start(live)
	if !giveUp() {
		if err == nil {
			_ = client.StopAndCancel(hard) // ends what has begun
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		end(err)
		return fmt.Errorf("starting River's client: %w", err)
	}
	return nil
}

// newClient makes a client without starting it. The client polls, because NOTIFY
// serialises commits.
func (j *Jobs) newClient(pool *pgxpool.Pool, log zerolog.Logger) (*river.Client[pgx.Tx], error) {
	cfg := &river.Config{
		Logger:                      slog.New(zerolog.NewSlogHandler(log.Level(max(log.GetLevel(), zerolog.WarnLevel)).Hook(resigning{}))),
		Queues:                      map[string]river.QueueConfig{},
		Workers:                     river.NewWorkers(),
		PollOnly:                    true,
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		CompletedJobRetentionPeriod: time.Hour,
		CancelledJobRetentionPeriod: deadRetention,
		DiscardedJobRetentionPeriod: deadRetention,
	}
	takes := map[string]Take{}
	for _, w := range j.work {
		w.Add(cfg, log)
		takes[w.Queue] = w.Take
	}
	client, err := river.NewClient(newDriver(pool, cfg.Queues, takes), cfg)
	if err != nil {
		return nil, fmt.Errorf("making River's client: %w", err)
	}
	return client, nil
}

// resigning drops the log line of a leader that can't resign because its pool is closed.
// The leadership ends by itself.
type resigning struct{}

// Run implements zerolog.Hook.
func (resigning) Run(e *zerolog.Event, _ zerolog.Level, message string) {
	if strings.Contains(message, "Error attempting to resign") {
		e.Discard()
	}
}

// pausesEvery is how often the rows of River's queues are read to find out whether one
// was paused. A client that polls would do so every 2 s for each queue, without a setting to
// change that, and takt itself never pauses them.
const pausesEvery = 30 * time.Second

// presentFor is how long after the last report of a queue a client is assumed to work it.
// Clients report their queues every 10 minutes.
const presentFor = 15 * time.Minute

// driver is River's driver, adapted to clients that do not work the same queues, because the
// controllers may run different services. River assumes that the leader knows all kinds of jobs:
// it discards interrupted jobs of others, and it alone inserts periodic jobs.
type driver struct {
	*riverpgxv5.Driver
	executor *executor
}

func newDriver(pool *pgxpool.Pool, works map[string]river.QueueConfig, takes map[string]Take) riverdriver.Driver[pgx.Tx] {
	d := riverpgxv5.New(pool)
	return &driver{d, &executor{Executor: d.GetExecutor(), works: works, takes: takes, queues: map[string]queueRow{}}}
}

// GetExecutor implements riverdriver.Driver.
func (d *driver) GetExecutor() riverdriver.Executor { return d.executor }

type executor struct {
	riverdriver.Executor
	works map[string]river.QueueConfig
	takes map[string]Take

	mu     sync.Mutex
	queues map[string]queueRow // guarded by mu
}

type queueRow struct {
	row  *rivertype.Queue
	read time.Time
}

// QueueGet implements riverdriver.Executor.
func (e *executor) QueueGet(ctx context.Context, params *riverdriver.QueueGetParams) (*rivertype.Queue, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q, ok := e.queues[params.Name]; ok && time.Since(q.read) < pausesEvery {
		return q.row, nil
	}
	row, err := e.Executor.QueueGet(ctx, params)
	if err == nil && row != nil {
		e.queues[params.Name] = queueRow{row, time.Now()}
	}
	return row, err
}

// JobGetAvailable implements riverdriver.Executor. If the second statement fails, what the first
// one has marked is rescued as if the controller had been killed.
func (e *executor) JobGetAvailable(ctx context.Context, params *riverdriver.JobGetAvailableParams) (*riverdriver.JobGetAvailableResult, error) {
	take := e.takes[params.Queue]
	if take == nil {
		return e.Executor.JobGetAvailable(ctx, params)
	}
	found := &riverdriver.JobGetAvailableResult{}
	ids, err := take(ctx, params.ClientID, params.MaxToLock)
	if err == nil && len(ids) > 0 {
		found.Jobs, err = e.JobGetByIDMany(ctx, &riverdriver.JobGetByIDManyParams{ID: ids})
	}
	return found, err
}

// JobGetStuck implements riverdriver.Executor. It leaves out jobs of queues that this client
// does not work: a client that works them rescues them.
func (e *executor) JobGetStuck(ctx context.Context, params *riverdriver.JobGetStuckParams) ([]*rivertype.JobRow, error) {
	next := *params
	for {
		stuck, err := e.Executor.JobGetStuck(ctx, &next)
		n := len(stuck)
		if n > 0 {
			next.AfterID = stuck[n-1].ID
		}
		stuck = slices.DeleteFunc(stuck, func(j *rivertype.JobRow) bool { _, ok := e.works[j.Queue]; return !ok })
		if err != nil || len(stuck) > 0 || n < params.Max {
			return stuck, err
		}
	}
}

// mayLead returns ErrNotFound, with which River goes on without leadership, if other clients
// work queues that this one does not: one of them leads.
func (e *executor) mayLead(ctx context.Context, in riverdriver.Executor) error {
	queues, err := in.QueueList(ctx, &riverdriver.QueueListParams{Max: 100})
	for _, q := range queues {
		if _, ok := e.works[q.Name]; !ok && time.Since(q.UpdatedAt) < presentFor {
			return rivertype.ErrNotFound
		}
	}
	return err
}

// LeaderAttemptReelect implements riverdriver.Executor.
func (e *executor) LeaderAttemptReelect(ctx context.Context, params *riverdriver.LeaderReelectParams) (*riverdriver.Leader, error) {
	if err := e.mayLead(ctx, e.Executor); err != nil {
		return nil, err
	}
	return e.Executor.LeaderAttemptReelect(ctx, params)
}

// Begin implements riverdriver.Executor. Elections are held in transactions.
func (e *executor) Begin(ctx context.Context) (riverdriver.ExecutorTx, error) {
	tx, err := e.Executor.Begin(ctx)
	return &election{tx, e}, err
}

type election struct {
	riverdriver.ExecutorTx
	e *executor
}

// LeaderAttemptElect implements riverdriver.Executor.
func (t *election) LeaderAttemptElect(ctx context.Context, params *riverdriver.LeaderElectParams) (*riverdriver.Leader, error) {
	if err := t.e.mayLead(ctx, t.ExecutorTx); err != nil {
		return nil, err
	}
	return t.ExecutorTx.LeaderAttemptElect(ctx, params)
}
