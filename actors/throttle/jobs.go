package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog" //nolint:depguard // River logs with it
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/rs/zerolog"

	"takt/actors/otp"
)

const (
	jobTimeout = 20 * time.Second
	// rescueAfter is the age at which a running job counts as dead, because its
	// controller was killed. River's default of an hour would leave its queue unserved
	// too long.
	rescueAfter = time.Minute
	// stopTime is how long jobs get to end once their contexts have ended.
	stopTime = 4 * time.Second
	// restartPause is the pause before the next try to start a client.
	restartPause = time.Second
	// backlogEvery is how often waiting actions are counted for the metrics.
	backlogEvery = 15 * time.Second
	// cleanEvery is how often CleanJob runs.
	cleanEvery = 5 * time.Minute
	jobWorkers = 8
)

// Jobs is the handle of the actor that runs River's client. It is a sink of the pool.
// Each pool gets a client of its own.
type Jobs struct {
	db      Queues
	portals *Portals
	metrics *metrics
	snooze  time.Duration
	pool    atomic.Pointer[pool]
}

// pool is the current connection pool, nil if there is none. replaced is closed when the
// pool is no longer current.
type pool struct {
	*pgxpool.Pool
	replaced chan struct{}
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
}

// Drop ends the client, because its pool is about to be closed.
func (j *Jobs) Drop(error) { j.Use(nil) }

// The messages.
type (
	suspended string   // cast: what run waits for; "" if it does not wait
	countNow  struct{} // timer
)

// jobs is the actor. It runs at most one client, on the current pool. When the pool is
// gone, the client ends; that is an outage. A client that ends by itself ends the actor.
type jobs struct {
	otp.Base
	j *Jobs
}

// Init does not wait for a client, because nothing depends on it.
func (s *jobs) Init(c *otp.Ctx) error {
	c.SendEvery(backlogEvery, countNow{})
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
	case nil: // the count has ended, or the actor is to end
	case error:
		c.Stop(msg)
	case countNow:
		s.count(c)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// count updates the metrics of waiting actions. Its time limit is shorter than its
// interval.
func (s *jobs) count(c *otp.Ctx) {
	j := s.j
	c.Async(func(ctx context.Context) any {
		ctx, cancel := transaction(ctx)
		defer cancel()
		if n, oldest, err := j.db.Backlog(ctx); err == nil {
			j.metrics.backlog.Set(float64(n))
			j.metrics.oldest.Set(oldest.Seconds())
		}
		return nil
	})
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
		client, err := j.start(ctx, hard, p.Pool, log)
		if err != nil {
			if ctx.Err() != nil {
				continue // the actor ends, which is no failure of the start
			}
			log.Warn().Err(err).Msg("River's client did not start")
			suspend("River's client does not start")
			rest(ctx, restartPause)
			continue
		}
		suspend("")
		if err := j.serve(ctx, hard, client, p.replaced); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a client until its pool is replaced or ctx ends.
func (j *Jobs) serve(ctx, hard context.Context, client *river.Client[pgx.Tx], replaced <-chan struct{}) error {
	// Without this, the jobs of a killed controller would wake these queues a minute
	// later.
	if busy, err := j.db.BusyQueues(ctx, 0, 0, restoreLimit); err == nil {
		j.portals.Resume(ctx, busy)
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
	ctx, cancel := context.WithTimeoutCause(ctx, transactionTime, errSlowStart)
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
// serialises commits. New actions wake their portals directly, so polling delays nothing.
func (j *Jobs) newClient(pool *pgxpool.Pool, log zerolog.Logger) (*river.Client[pgx.Tx], error) {
	maintenance := &river.InsertOpts{Queue: queueMaintenance}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:                      slog.New(zerolog.NewSlogHandler(log.Level(max(log.GetLevel(), zerolog.WarnLevel)).Hook(resigning{}))),
		Queues:                      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: jobWorkers}, queueMaintenance: {MaxWorkers: 2}},
		Workers:                     j.workers(log),
		PollOnly:                    true,
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		CompletedJobRetentionPeriod: time.Hour,
		PeriodicJobs: []*river.PeriodicJob{
			river.NewPeriodicJob(river.PeriodicInterval(cleanEvery), func() (river.JobArgs, *river.InsertOpts) {
				return CleanJob{}, maintenance
			}, &river.PeriodicJobOpts{ID: "throttle_clean", RunOnStart: true}),
			river.NewPeriodicJob(river.PeriodicInterval(24*time.Hour), func() (river.JobArgs, *river.InsertOpts) {
				return ForgetJob{}, maintenance
			}, &river.PeriodicJobOpts{ID: "throttle_forget", RunOnStart: true}),
		},
	})
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
