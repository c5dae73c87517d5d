package queue

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/metrics"
)

// Store is what QueueManager needs of the database. All methods fail at once with
// store.Unavailable during an outage.
type Store interface {
	// Assign serves the polls together. The result of polls[i] has index i.
	Assign(ctx context.Context, polls []store.Poll) ([]store.PollResult, error)
	// Recount counts pending builds by class, up to limit each, and returns which rows differ
	// from known. more are numbers of further classes to count.
	Recount(ctx context.Context, limit int, known []store.WorkerSession, more []int32) (store.Recount, error)
	// Elsewhere returns what workers can take whose polls are parked at other controllers: their
	// platforms and labels, up to limit different ones. here are numbers of workers that poll at
	// this one.
	Elsewhere(ctx context.Context, here []uint32, limit int) ([]store.WorkerSession, error)
	// LowerWatermark makes the next Assign include position, at which a build became pending.
	LowerWatermark(position int64)
	// RecordPresence writes heartbeats and returns the workers whose heartbeats need not be written
	// again.
	RecordPresence(ctx context.Context, heartbeats []store.Presence) ([]uint32, error)
}

// Config are QueueManager's settings. The zero value takes every default.
type Config struct {
	// Limit is how many builds may be pending. Defaults to 1000.
	Limit int
	// MaxParked is the most polls that may wait, for a batch or a build. Further ones are
	// answered immediately: with Overloaded if they need a batch. Defaults to 20 000.
	MaxParked int
	// BatchSize is the most polls in one batch, and Batches how many batches run at once.
	// They default to 256 and 2.
	BatchSize, Batches int
	// Recount is how often pending builds are counted and changed rows are read, in case
	// a notification was lost. It is half as often while no worker polls and nothing is
	// pending. Defaults to 2 s.
	Recount time.Duration
	// Timeout bounds one batch. Defaults to 5 s.
	Timeout time.Duration
	// Metrics observe batches and tokens. Defaults to metrics that are not exported.
	Metrics *metrics.Metrics
}

func (c Config) withDefaults() Config {
	if c.Metrics == nil {
		c.Metrics = metrics.New()
	}
	return Config{
		Limit: cmp.Or(c.Limit, store.DefaultQueueLimit), MaxParked: cmp.Or(c.MaxParked, 20_000),
		BatchSize: cmp.Or(c.BatchSize, 256), Batches: cmp.Or(c.Batches, 2),
		Recount: cmp.Or(c.Recount, 2*time.Second), Timeout: cmp.Or(c.Timeout, 5*time.Second), Metrics: c.Metrics,
	}
}

// Queue is the handle of QueueManager. It stays valid when the actor restarts, and may be
// used by any goroutine.
type Queue struct {
	ref    otp.Ref
	db     Store
	bus    pubsub.Bus
	tokens *store.WorkerTokens
	cfg    Config
	gauge  gauges
	// presence is the time between two writes of a worker's last contact, in nanoseconds.
	presence atomic.Int64
}

const (
	managerName = "takt/orchestration/queue_manager"
	monitorName = "takt/orchestration/heartbeat_monitor"

	// restartGap is how long callers wait for a restarting actor.
	restartGap = time.Second
	// maxPresence is the longest time between two writes of a worker's last contact.
	maxPresence = 30 * time.Second
)

// New returns the handle for the actor that Spec describes. It starts nothing.
func New(sys *otp.System, db Store, bus pubsub.Bus, tokens *store.WorkerTokens, cfg Config) *Queue {
	cfg = cfg.withDefaults()
	q := &Queue{ref: sys.Ref(managerName), db: db, bus: bus, tokens: tokens, cfg: cfg}
	q.presence.Store(int64(maxPresence))
	return q
}

// Spec describes the actor to its supervisor.
func (q *Queue) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "queue_manager", Name: managerName,
		Server:   func() otp.Server { return &manager{q: q} },
		Shutdown: q.cfg.Timeout + time.Second, // a stop waits for a running transaction
	}
}

// Arrive sends a poll to the actor. It waits only if the actor is restarting, for up to a
// second. The caller calls the returned function once, with the request's context. That waits
// for the reply: with a job, or without one if none was pending for the time wait or a newer
// poll of the worker superseded this one. It also returns when closing is closed.
//
// Errors: InvalidToken (the token was superseded), DuplicateWorker (another process holds the
// worker), NotFound (no such worker), Overloaded (too many polls wait), Unavailable (the
// database is unavailable, the worker's row stays locked, or the actor or the server stops).
// If ctx ends first, its cause is returned. A build that was assigned meanwhile is handed out
// again at the worker's next poll.
func (q *Queue) Arrive(ctx context.Context, req store.PollRequest, wait time.Duration) (store.AwaitReply, error) {
	p := &poll{req: req, wait: wait, arrived: time.Now(), out: make(chan answer, 1)}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		p.span = span
	}
	proc, err := q.proc(ctx)
	if err != nil {
		return nil, err
	}
	if !otp.Cast(proc, p) {
		return nil, restarting(proc.Reason())
	}
	return func(ctx context.Context, closing <-chan struct{}) (store.PollReply, error) {
		a, err := p.receive(ctx, closing, proc, 2*q.cfg.Timeout)
		return q.reply(p, a), err
	}, nil
}

// reply returns the reply for a, with a signed token. It runs in the caller's goroutine.
func (q *Queue) reply(p *poll, a answer) store.PollReply {
	a.Token = p.req.Presented
	if a.next.Worker != 0 {
		a.Token = q.tokens.Issue(a.next)
		q.cfg.Metrics.TokensRotated.WithLabelValues().Inc()
	}
	return a.PollReply
}

// Enqueued reports that this controller has added a pending build, which wakes a parked poll.
// Other controllers hear of it by NOTIFY, whose echo this one ignores.
// A worker for which Warm was called with the build's cache label is preferred, or else one
// with the labels that the build prefers. It never blocks.
func (q *Queue) Enqueued(b store.Build) {
	otp.Cast(q.ref, enqueued{class: b.Class(), defined: true, n: 1, sender: b.Sender, cache: b.Labels.Cache(), prefer: b.Prefer, last: b.LastWorkerID})
}

// Requeued reports that this controller has made builds pending again. It never blocks.
func (q *Queue) Requeued(refs []store.BuildRef) {
	type kind struct {
		class  int32
		last   string
		sender uint32
	}
	counts := map[kind]int{}
	for _, ref := range refs {
		counts[kind{ref.ClassID, ref.WorkerID, ref.Sender}]++
	}
	for k, n := range counts {
		otp.Cast(q.ref, enqueued{class: store.Class{ID: k.class}, n: n, last: k.last, sender: k.sender})
	}
}

// Warm reports that a worker has finished a build with a cache label. For 24 hours that
// worker is preferred for builds with the same label. It never blocks.
func (q *Queue) Warm(workerID, cache string) {
	if cache != "" {
		otp.Cast(q.ref, warmed{workerID, cache})
	}
}

// Freed reports that a build that a worker held has ended. It never blocks.
func (q *Queue) Freed(workerID string) { otp.Cast(q.ref, freed{workerID}) }

// Able reports that a worker may get builds again. It never blocks.
func (q *Queue) Able(workerID string) { otp.Cast(q.ref, able{workerID}) }

// Full returns QueueFull if every submit would be refused now, so that its body need not be read. If
// it can't tell, it returns nil, and the submit itself decides. It reads the database before it
// refuses, because the number in memory may be too high, for example after builds were cancelled.
func (q *Queue) Full(ctx context.Context) error {
	last, _ := q.Counted()
	room := store.QueueRoom{Limit: q.cfg.Limit, Pending: q.Stats().Pending, Unmatched: last.Room.Unmatched}
	if !room.Full() {
		return nil
	}
	now, err := q.db.Recount(ctx, room.Limit+room.Share()+1, nil, nil)
	if err != nil {
		return nil //nolint:nilerr // it can't tell
	}
	room = now.Room(room.Limit)
	return room.Admit(false)
}

// keepPresence sets how often the last contact of workers is written: often enough for the
// worker timeout.
func (q *Queue) keepPresence(timeout time.Duration) {
	q.presence.Store(int64(min(maxPresence, timeout/4)))
}

// proc returns the running actor. If it is restarting, it waits up to restartGap.
func (q *Queue) proc(ctx context.Context) (*otp.Proc, error) {
	if proc := q.ref.Whereis(); proc != nil {
		return proc, nil
	}
	gap, cancel := context.WithTimeoutCause(ctx, restartGap, errors.New("queue manager did not come back in time"))
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

func restarting(cause error) error {
	return store.NewUnavailable("Queue is restarting, try again", cause)
}

// isOutage reports whether err means that the database is unavailable or too slow. It is
// false for a wrong request and for contention.
func isOutage(err error) bool {
	return store.IsOutage(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// gauges are QueueManager's figures, which other goroutines read. They outlive restarts of
// the actor, which then overwrites all but the counters. All fields are atomic.
type gauges struct {
	classes                            atomic.Pointer[[]*class]
	counted                            atomic.Pointer[store.QueueCount]
	changes                            atomic.Uint64
	waiting, batched, parked, sessions atomic.Int64

	batches, polls, idle, assigned, redelivered, failed, woken atomic.Int64
}

// Waiting returns how many polls wait for a batch or are in one.
func (q *Queue) Waiting() int { return int(q.gauge.waiting.Load() + q.gauge.batched.Load()) }

// Stats are QueueManager's figures.
type Stats struct {
	// Pending is the estimated number of pending builds, rather too high than too low. Until
	// the next recount (about 2 s), submissions and changes of priority may count twice, and
	// cancellations and what other controllers assign still count.
	Pending int
	// Waiting polls wait for a batch, Batched ones are in one, Parked ones wait for a
	// build. Sessions is the number of workers remembered.
	Waiting, Batched, Parked, Sessions int
	// Counts since the process started: Batches and the Polls in them, polls answered or
	// parked from memory (Idle), builds Assigned and Redelivered, polls that Failed in a
	// batch, and parked polls Woken.
	Batches, Polls, Idle, Assigned, Redelivered, Failed, Woken int64
}

// Counted returns how many builds were pending at the last count (about every 2 s), and false
// if that is more than 5 s old.
func (q *Queue) Counted() (store.QueueCount, bool) {
	c := q.gauge.counted.Load()
	if c == nil || time.Since(c.At) > maxAge {
		return store.QueueCount{}, false
	}
	count := *c
	count.Changes = q.gauge.changes.Load()
	return count, true
}

// Stats returns QueueManager's figures.
func (q *Queue) Stats() Stats {
	g := &q.gauge
	return Stats{
		Pending: g.pendingOf(nil),
		Waiting: int(g.waiting.Load()), Batched: int(g.batched.Load()), Parked: int(g.parked.Load()), Sessions: int(g.sessions.Load()),
		Batches: g.batches.Load(), Polls: g.polls.Load(), Idle: g.idle.Load(), Assigned: g.assigned.Load(),
		Redelivered: g.redelivered.Load(), Failed: g.failed.Load(), Woken: g.woken.Load(),
	}
}

// shown returns the classes that may have pending builds.
func (g *gauges) shown() []*class {
	if classes := g.classes.Load(); classes != nil {
		return *classes
	}
	return nil
}

// pendingOf estimates how many pending builds a worker can take, or how many there are if s
// is nil.
func (g *gauges) pendingOf(s *store.WorkerSession) (n int) {
	for _, c := range g.shown() {
		if pending := int(c.shown.Load()); pending > 0 && (s == nil || s.Takes(&c.Class)) {
			n += pending
		}
	}
	return n
}
