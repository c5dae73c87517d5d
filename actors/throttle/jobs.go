package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog" //nolint:depguard // River logs with it
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
	// rescueAfter is when a job counts as dead whose controller was killed.
	// River's own hour would strand its queue.
	rescueAfter = time.Minute
	// softStop is how long jobs get to end when the client stops.
	softStop = 3 * time.Second
	// restartPause is how soon a client that could not be started is tried again.
	restartPause = time.Second
	// backlogEvery is how often what waits is counted, for the figures.
	backlogEvery = 15 * time.Second
	// cleanEvery is how often queues without a job are looked for.
	cleanEvery = 5 * time.Minute
	jobWorkers = 8
)

// Jobs is the handle of the actor that runs River's client. It is a sink of the
// pool: the client lives as long as its pool does.
type Jobs struct {
	db      Queues
	portals *Portals
	metrics *metrics
	snooze  time.Duration
	pool    atomic.Pointer[pgxpool.Pool]
	proc    atomic.Pointer[otp.Proc]
}

// Spec describes the actor to its supervisor.
func (j *Jobs) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "jobs",
		Server:   func() otp.Server { return &jobs{j: j} },
		Shutdown: softStop + 5*time.Second,
	}
}

// Use gives a new client the pool.
func (j *Jobs) Use(pool *pgxpool.Pool) { j.setPool(pool) }

// Drop ends the client: its pool is about to be closed.
func (j *Jobs) Drop(error) { j.setPool(nil) }

func (j *Jobs) setPool(pool *pgxpool.Pool) {
	j.pool.Store(pool)
	if proc := j.proc.Load(); proc != nil {
		otp.Cast(proc, poolChanged{})
	}
}

// The messages.
type (
	poolChanged struct{} // cast
	clientUp    struct { // info: a client was started, or not
		pool   *pgxpool.Pool
		client *river.Client[pgx.Tx]
		err    error
	}
	clientDown struct{ client *river.Client[pgx.Tx] } // info: it has ended
	startAgain struct{}                               // timer
	countNow   struct{}                               // timer
)

// jobs is the actor. It owns at most one client, with the pool of the moment; a
// client whose pool is gone ends, which is an outage, and one that ends by itself
// takes the actor with it.
type jobs struct {
	otp.Base
	j        *Jobs
	pool     *pgxpool.Pool // the client's, or that of the one that starts
	client   *river.Client[pgx.Tx]
	busy     bool // a client starts or stops
	stopping bool // it does so because we want it
}

// Init begins to start the client and does not wait: nobody depends on it.
func (s *jobs) Init(c *otp.Ctx) error {
	s.j.proc.Store(c.Self())
	c.SendEvery(backlogEvery, countNow{})
	s.step(c)
	return nil
}

// HandleCast implements otp.Server.
func (s *jobs) HandleCast(c *otp.Ctx, msg any) {
	if _, ok := msg.(poolChanged); !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	s.step(c)
}

// HandleInfo implements otp.Server.
func (s *jobs) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case clientUp:
		s.up(c, msg)
	case clientDown:
		s.down(c, msg)
	case startAgain:
		s.step(c)
	case countNow:
		s.count(c)
	case nil: // what was waiting has been counted, or clientDown follows
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// step brings the client in line with the pool.
func (s *jobs) step(c *otp.Ctx) {
	want := s.j.pool.Load()
	switch {
	case s.busy || want == s.pool && (s.client != nil) == (want != nil):
	case s.client != nil:
		s.stop(c)
	case want == nil:
		c.Suspend("database unavailable")
	default:
		s.start(c, want)
	}
}

// start builds a client and starts it, beside the actor.
func (s *jobs) start(c *otp.Ctx, pool *pgxpool.Pool) {
	s.busy, s.pool = true, pool
	j, log, hard := s.j, c.Logger(), c.Context()
	c.Async(func(ctx context.Context) any {
		client, err := j.newClient(pool, log)
		if err == nil {
			ctx, cancel := context.WithTimeoutCause(ctx, transactionTime, errSlowStart)
			defer cancel()
			err = start(ctx, hard, client)
		}
		if err != nil {
			return clientUp{pool, nil, err}
		}
		j.resume(ctx)
		return clientUp{pool, client, nil}
	})
}

var errSlowStart = errors.New("the River client did not start in time")

// start starts a client that lives until hard ends, or somebody stops it; ctx
// bounds the start.
func start(ctx, hard context.Context, client *river.Client[pgx.Tx]) error {
	// Its context ends a start that takes too long: River's Stop must not be called
	// while Start runs.
	live, end := context.WithCancelCause(hard)
	giveUp := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	err := client.Start(live)
	if !giveUp() {
		if err == nil {
			_ = client.StopAndCancel(hard) // what has begun ends
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		end(err)
		return fmt.Errorf("starting River's client: %w", err)
	}
	return nil
}

// resume wakes what the jobs of a killed controller would wake in a minute.
func (j *Jobs) resume(ctx context.Context) {
	busy, err := j.db.BusyQueues(ctx, 0, 0, restoreLimit)
	if err == nil {
		j.portals.Resume(ctx, busy)
	}
}

func (s *jobs) up(c *otp.Ctx, m clientUp) {
	s.busy = false
	if m.err != nil {
		logger := c.Logger()
		logger.Warn().Err(m.err).Msg("River's client did not start")
		s.pool = nil
		c.Suspend("River's client does not start")
		c.SendAfter(restartPause, startAgain{})
		return
	}
	s.client = m.client
	c.Resume()
	client := m.client
	stopped := client.Stopped()
	c.Async(func(ctx context.Context) any {
		select {
		case <-stopped:
		case <-ctx.Done():
			// We are to end; Terminate cannot wait for what this goroutine does.
			limit, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), softStop+time.Second, errSlowStop)
			defer cancel()
			_ = client.Stop(limit)
		}
		return clientDown{client}
	})
	s.step(c)
}

var errSlowStop = errors.New("the River client did not stop in time")

// stop ends the client whose pool is gone.
func (s *jobs) stop(c *otp.Ctx) {
	s.busy, s.stopping = true, true
	c.Suspend("database unavailable")
	client, hard := s.client, c.Context()
	c.Async(func(context.Context) any {
		ctx, cancel := context.WithTimeoutCause(hard, softStop+time.Second, errSlowStop)
		defer cancel()
		_ = client.StopAndCancel(ctx) // what does not end now ends with its pool
		return nil
	})
}

func (s *jobs) down(c *otp.Ctx, m clientDown) {
	if m.client != s.client {
		return
	}
	wanted := s.stopping
	s.client, s.pool, s.busy, s.stopping = nil, nil, false, false
	if !wanted {
		c.Stop(errors.New("the River client ended by itself"))
		return
	}
	s.step(c)
}

// count keeps the figures of what waits. It ends before the next one begins.
func (s *jobs) count(c *otp.Ctx) {
	if s.client == nil {
		return
	}
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

// newClient makes a client that is not started. It polls: NOTIFY serialises
// commits, and portals are told of new actions directly.
func (j *Jobs) newClient(pool *pgxpool.Pool, log zerolog.Logger) (*river.Client[pgx.Tx], error) {
	maintenance := &river.InsertOpts{Queue: queueMaintenance}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:                      slog.New(zerolog.NewSlogHandler(log.Level(max(log.GetLevel(), zerolog.WarnLevel)))),
		Queues:                      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: jobWorkers}, queueMaintenance: {MaxWorkers: 2}},
		Workers:                     j.workers(log),
		PollOnly:                    true,
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		SoftStopTimeout:             softStop,
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

// Terminate forgets the incarnation; the client ends by its context.
func (s *jobs) Terminate(c *otp.Ctx, _ error) { s.j.proc.CompareAndSwap(c.Self(), nil) }
