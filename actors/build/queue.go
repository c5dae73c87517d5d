package build

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// retryAfter is what a refused caller is told to wait.
const retryAfter = time.Second

// QueueStore is what QueueManager needs of the database. Both fail at once with
// store.Unavailable while it is away.
type QueueStore interface {
	// Serve serves the polls in one transaction; results by index.
	Serve(ctx context.Context, polls []store.Poll) ([]store.PollResult, error)
	// Pending counts pending builds per platform, each up to limit.
	Pending(ctx context.Context, limit int) (map[store.Platform]int, error)
}

// QueueConfig are QueueManager's settings. The zero value takes every default.
type QueueConfig struct {
	// Name is the registered name. Defaults to "takt/orchestration/queue_manager".
	Name string
	// BatchSize is the most polls in one transaction. Defaults to 256.
	BatchSize int
	// Batches is how many transactions run at once. Defaults to 2.
	Batches int
	// MaxParked is how many polls may wait for a build; one more is answered at
	// once. Defaults to 20 000.
	MaxParked int
	// Recount is how often pending builds are counted, which finds what no
	// notification told. Defaults to 2 s.
	Recount time.Duration
	// CountLimit bounds that count, per platform. Defaults to 10 000.
	CountLimit int
	// Timeout bounds one transaction. Defaults to 5 s.
	Timeout time.Duration
	// RestartGap is how long callers wait for a restarting actor. Defaults to 1 s.
	RestartGap time.Duration
}

func (c QueueConfig) withDefaults() QueueConfig {
	return QueueConfig{
		Name:       or(c.Name, "takt/orchestration/queue_manager"),
		BatchSize:  or(c.BatchSize, 256),
		Batches:    or(c.Batches, 2),
		MaxParked:  or(c.MaxParked, 20_000),
		Recount:    or(c.Recount, 2*time.Second),
		CountLimit: or(c.CountLimit, 10_000),
		Timeout:    or(c.Timeout, 5*time.Second),
		RestartGap: or(c.RestartGap, time.Second),
	}
}

// or returns v, or fallback if v is zero.
func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// Queue is the handle of QueueManager. It stays valid over restarts and may be
// used by any goroutine.
type Queue struct {
	ref   otp.Ref
	db    QueueStore
	bus   pubsub.Bus
	cfg   QueueConfig
	gauge *gauges
}

// NewQueue returns the handle for the actor that Spec describes. It starts
// nothing.
func NewQueue(sys *otp.System, db QueueStore, bus pubsub.Bus, cfg QueueConfig) *Queue {
	cfg = cfg.withDefaults()
	return &Queue{ref: sys.Ref(cfg.Name), db: db, bus: bus, cfg: cfg, gauge: &gauges{}}
}

// Spec describes the actor to its supervisor.
func (q *Queue) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "queue_manager", Name: q.cfg.Name,
		Server:   func() otp.Server { return &manager{q: q} },
		Shutdown: q.cfg.Timeout + time.Second, // a running transaction is awaited
	}
}

// PollRequest is what a worker sends to ask for a build.
type PollRequest struct {
	// Token is the worker's token, "" if it gave only its id.
	Token    string
	WorkerID string
	// Active lists the builds that the worker says it has; valid if Reconcile.
	Active    []string
	Reconcile bool
}

// Reply answers a poll.
type Reply struct {
	WorkerID string
	// Job is nil if there is nothing to do.
	Job *store.Job
	// Redelivered is true if Job had been handed out before.
	Redelivered bool
	// Token is for the worker's next poll: a new one, or the presented one if
	// the poll was superseded by a newer one ("" if it presented none).
	Token string
	// QueueSize is about how many pending builds the worker could take.
	QueueSize int
}

// Arrive asks for a build. The ticket is not nil if there is none and wait is
// not 0: then the poll is parked for up to wait, counted from this call, and
// its reply is the ticket's.
//
// Errors: InvalidToken (the token is unknown or expired), NotFound (no such
// worker), Unavailable (the database is away or the actor restarts). If ctx
// ends first its cause is returned; a build that was assigned meanwhile is
// handed out again at the worker's next poll.
func (q *Queue) Arrive(ctx context.Context, req PollRequest, wait time.Duration) (Reply, *Ticket, error) {
	p := newPoll(req, wait, time.Now())
	proc, err := q.proc(ctx)
	if err != nil {
		return Reply{}, nil, err
	}
	if !otp.Cast(proc, p) {
		return Reply{}, nil, restarting(proc.Reason())
	}
	t := &Ticket{poll: p, proc: proc}
	patience := time.NewTimer(2 * q.cfg.Timeout)
	defer patience.Stop()
	a, err := t.receive(ctx, patience.C)
	switch {
	case err != nil:
		return Reply{}, nil, err
	case a.parked:
		return Reply{}, t, nil
	default:
		return a.Reply, nil, nil
	}
}

var errTooSlow = errors.New("no batch took the poll in time")

// Poll is Arrive and Wait in one.
func (q *Queue) Poll(ctx context.Context, req PollRequest, wait time.Duration) (Reply, error) {
	reply, ticket, err := q.Arrive(ctx, req, wait)
	if ticket == nil || err != nil {
		return reply, err
	}
	return ticket.Wait(ctx)
}

// Enqueued tells that a build of platform p was committed as pending: a parked
// worker is woken at once. With a cache label ("" for none) that is one that Warm
// was told of with the same label, if there is one. It never blocks.
func (q *Queue) Enqueued(p store.Platform, cache string) {
	lane := laneOf(p)
	if lane == noLane {
		return
	}
	if cache != "" {
		otp.Cast(q.ref, labelled{lane, cache})
	} else {
		var e enqueued
		e[lane] = 1
		otp.Cast(q.ref, e)
	}
	q.bus.Publish(pubsub.JobAvailable, string(p))
}

// Warm tells that a worker has finished a build with a cache label, which makes it
// the first choice for another one within 24 hours. It never blocks.
func (q *Queue) Warm(workerID, cache string) {
	if cache != "" {
		otp.Cast(q.ref, finished{workerID, cache})
	}
}

// Requeued tells that builds are pending again. It never blocks.
func (q *Queue) Requeued(refs []store.BuildRef) {
	var e enqueued
	for _, ref := range refs {
		if lane := laneOf(ref.Platform); lane != noLane {
			e[lane]++
		}
	}
	if e != (enqueued{}) {
		otp.Cast(q.ref, e)
	}
}

// Freed tells that a worker may have a free slot again, so that its parked poll
// takes part in the next wake-up. It never blocks.
func (q *Queue) Freed(workerID string) { otp.Cast(q.ref, freed{worker: workerID}) }

// Depth returns about how many builds are pending, without asking anybody. It
// is at most one recount (2 s) old where other controllers and cancellations
// are concerned: refuse early only well over a limit, and let the transaction
// decide near it.
func (q *Queue) Depth() int { return q.gauge.pending.of(everything) }

// Stats returns QueueManager's figures.
func (q *Queue) Stats() QueueStats { return q.gauge.stats() }

// proc returns the running actor, waiting for one that restarts.
func (q *Queue) proc(ctx context.Context) (*otp.Proc, error) {
	if proc := q.ref.Whereis(); proc != nil {
		return proc, nil
	}
	gap, cancel := context.WithTimeoutCause(ctx, q.cfg.RestartGap, errRestarting)
	defer cancel()
	proc, err := q.ref.Await(gap)
	switch {
	case err == nil:
		return proc, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, restarting(err)
	}
}

var errRestarting = errors.New("queue manager did not come back in time")

func restarting(cause error) error { return unavailable("Queue is restarting, try again", cause) }

// Ticket stands for a parked poll. It holds no goroutine and no transaction.
type Ticket struct {
	poll *poll
	proc *otp.Proc
}

// Wait returns the parked poll's reply: a job, or none when its time is up or a
// newer poll of the worker superseded it. If ctx ends first the poll is taken
// back and ctx's cause returned. Errors as for Arrive. Call it once.
func (t *Ticket) Wait(ctx context.Context) (Reply, error) {
	a, err := t.receive(ctx, nil)
	return a.Reply, err
}

// receive waits for the poll's next answer, the actor's end, or the caller's
// patience or ctx to end. An answer that is there wins.
func (t *Ticket) receive(ctx context.Context, patience <-chan time.Time) (answer, error) {
	var err error
	select {
	case a := <-t.poll.out:
		return a, a.err
	case <-ctx.Done():
		err = context.Cause(ctx)
		otp.Cast(t.proc, leave{t.poll})
	case <-patience:
		err = unavailable("Queue is too slow, try again", errTooSlow)
		otp.Cast(t.proc, leave{t.poll})
	case <-t.proc.Done():
		err = restarting(&otp.DownError{Name: t.proc.Name(), Reason: t.proc.Reason()})
	}
	select {
	case a := <-t.poll.out:
		return a, a.err
	default:
		return answer{}, err
	}
}
