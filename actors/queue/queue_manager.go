package queue

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/backoff"
	"takt/store/batching"
)

// The messages, besides a *poll that arrives and a *batch that is done.
type (
	leave struct { // the poll's caller has left
		poll   *poll
		closed bool // because the worker's connection has closed
	}
	expired  struct{ poll *poll } // a parked poll's time is up
	unlocked struct{ poll *poll } // timer: try a postponed poll again
	enqueued struct {             // n builds of a class became pending
		class store.Class
		// defined is false if only the number of class is known.
		defined bool
		n       int
		sender  uint32 // the PostgreSQL process that notifies the controllers, 0 if it is not known
		cache   string
		prefer  store.Require
		last    string // the last worker that had these builds, or those that they retry
	}
	freed  struct{ worker string }        // a build that the worker held has ended
	able   struct{ worker string }        // the worker may get builds again
	warmed struct{ worker, cache string } // the worker has a warm cache

	showNow  struct{} // timer: publish queue:updated
	lingered struct{} // timer: the waiting polls have waited long enough for others
)

// recounted is a read of the database: first its input, then also its results.
type recounted struct {
	known []store.WorkerSession // sessions to compare with their rows
	store.Recount
	err        error
	seen       seen             // when the read began
	classes    []int32          // to be counted
	at         time.Time        // when the read began
	heartbeats []store.Presence // to be written
	// here are workers that poll here, if polls elsewhere are to be read; nil if not. elsewhere
	// is what was read, elsewhereErr why it could not be.
	here         []uint32
	elsewhere    []store.WorkerSession
	elsewhereErr error
	written      []uint32 // workers whose heartbeats need not be written again
	presenceErr  error    // why heartbeats could not be written
}

const (
	// showEvery is the shortest time between two queue:updated.
	showEvery = 100 * time.Millisecond
	// linger is how long polls wait at most for further polls while a batch is running.
	linger = 5 * time.Millisecond
	// Up to alone polls share one batch. It waits for those that were just answered for at most
	// returning, unless they are few.
	alone, few = 96, 16
	returning  = 2 * time.Millisecond
	// doubtDelay is how soon builds are counted again when a count is in doubt.
	doubtDelay = 100 * time.Millisecond
	// firstRead bounds the read of the database in Init.
	firstRead = time.Second
)

var errTransactionTooSlow = errors.New("transaction exceeded its time limit")

// Updated is the data of queue:updated, published at most ten times a second.
type Updated struct {
	Pending        int `json:"pending"`
	PendingIOS     int `json:"pending_ios"`
	PendingAndroid int `json:"pending_android"`
	// ByPlatform has all platforms of which builds are pending.
	ByPlatform map[store.Platform]int `json:"pending_by_platform"`
	Parked     int                    `json:"parked"`
}

func (u *Updated) equal(v *Updated) bool {
	return u.Pending == v.Pending && u.Parked == v.Parked && maps.Equal(u.ByPlatform, v.ByPlatform)
}

// Assigned is the data of build:assigned.
type Assigned struct {
	BuildID  string         `json:"build_id"`
	WorkerID string         `json:"worker_id"`
	Platform store.Platform `json:"platform"`
	Attempt  int            `json:"attempt"`
	// Priority and Waited (since it became pending) are not published outside this process.
	Priority int           `json:"-"`
	Waited   time.Duration `json:"-"`
}

// manager is the QueueManager actor. Its memory decides; the actor runs batches and
// sets timers. A restart loses memory, and the callers of its polls get an error at once.
type manager struct {
	otp.Base
	q *Queue
	*memory

	reads    otp.Job[recounted] // reads of the database
	pace     batching.Pace
	noLinger func() // cancels the timer of lingered; nil if none is set
	lingered bool   // that timer has just fired
	// lingersTo is when it fires.
	lingersTo time.Time
	showing   bool    // the timer of showNow is set
	shown     Updated // what was published last
	now       Updated // see depth
}

// Init counts the pending builds, so that memory can answer the first polls. During an
// outage it starts without a count, and reads go on.
func (m *manager) Init(c *otp.Ctx) error {
	m.memory = newMemory(m.q.cfg.MaxParked, &m.q.gauge)
	m.pace = batching.Pace{Parallel: m.q.cfg.Batches, Most: m.q.cfg.BatchSize, Linger: linger, Return: returning, Alone: alone, Few: few}
	m.q.bus.Listen(c, pubsub.QueuePosition, pubsub.JobAvailable, pubsub.WorkerChanged, pubsub.ListenerResumed)
	ctx, cancel := context.WithTimeoutCause(c.Context(), firstRead, errTransactionTooSlow)
	defer cancel()
	m.reads = otp.Job[recounted]{Begin: m.read, Done: m.recounted}
	m.recounted(c, m.q.read(ctx, m.input()), nil)
	return nil
}

// HandleBatch handles all messages that have arrived, and then starts batches, so that one
// transaction can serve all their polls.
func (m *manager) HandleBatch(c *otp.Ctx, msgs []otp.Msg) {
	for _, msg := range msgs {
		if msg.Kind == otp.CallMsg {
			msg.From.Reply(m.HandleCall(c, msg.From, msg.Body))
			continue
		}
		m.handle(c, msg.Body)
	}
	m.step(c)
}

func (m *manager) handle(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case *poll:
		m.arrive(msg, time.Now())
	case *batch:
		m.served(c, msg)
	case leave:
		m.leave(msg.poll, msg.closed, time.Now())
	case unlocked:
		if msg.poll.state == postponed {
			m.recall(msg.poll)
		}
	case expired:
		m.expire(msg.poll, time.Now())
	case enqueued:
		m.enqueued(msg, time.Now())
	case warmed:
		m.caches.finished(msg.worker, msg.cache, time.Now())
	case freed:
		m.freed(m.byID[msg.worker])
	case able:
		m.changed(m.byID[msg.worker])
	case pubsub.Event:
		m.notified(c, msg)
	case lingered:
		m.noLinger, m.lingered = nil, true
	case showNow:
		m.show()
	default:
		logger := c.Logger()
		logger.Error().Type("message", msg).Msg("unexpected message")
	}
}

// linger sets the timer of lingered to wait from now, unless it fires before that; 0 ends it.
func (m *manager) linger(c *otp.Ctx, wait time.Duration) {
	at := time.Now().Add(wait)
	if m.noLinger != nil && (wait == 0 || at.Before(m.lingersTo)) {
		m.noLinger()
		m.noLinger = nil
	}
	if wait > 0 && m.noLinger == nil {
		m.noLinger, m.lingersTo = c.SendAfter(wait, lingered{}), at
	}
}

// step does what the new messages allow: wake parked polls, serve batches, set timers.
func (m *manager) step(c *otp.Ctx) {
	g := m.gauge
	m.wake()
	for {
		n, wait := m.pace.Next(m.waiting.Len(), m.lingered)
		if n == 0 {
			m.linger(c, wait)
			break
		}
		m.linger(c, 0)
		m.serve(c, m.take(n))
	}
	m.lingered = false
	m.arm(c)
	g.waiting.Store(int64(m.waiting.Len()))
	g.batched.Store(int64(m.batched()))
	g.parked.Store(int64(m.parkedPolls()))
	g.sessions.Store(int64(len(m.byNumber)))
	if !m.showing && !m.shown.equal(m.depth()) {
		m.showing = true
		c.SendAfter(showEvery, showNow{})
	}
}

// arm plans the next read of the database.
func (m *manager) arm(c *otp.Ctx) {
	if m.reads.Running() {
		return
	}
	wait := min(m.q.cfg.Recount, time.Duration(m.q.presence.Load())/2)
	switch {
	case m.doubtful():
		wait = min(wait, doubtDelay)
	case m.unused():
		wait = min(2*wait, maxAge)
	}
	m.reads.In(c, wait)
}

// unused reports whether no worker has polled here lately and nothing is pending. Counts then
// only confirm that, so they come half as often.
func (m *manager) unused() bool { return len(m.byNumber) == 0 && m.pending.total() == 0 }

// serve starts a goroutine for b. It answers the polls itself, so that a committed assignment
// reaches its worker even if the actor fails. A graceful stop of the actor does not abort
// it; a kill does.
func (m *manager) serve(c *otp.Ctx, b *batch) {
	q, hard := m.q, c.Context()
	c.Async(func(context.Context) any {
		ctx, cancel := context.WithTimeoutCause(hard, q.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		b.serve(ctx, q)
		for i := range b.results {
			r := &b.results[i]
			for _, job := range newJobs(r) {
				q.bus.Publish(pubsub.BuildAssigned, Assigned{
					BuildID: job.BuildID, WorkerID: r.Session.ID, Platform: job.Platform, Attempt: job.Attempt,
					Priority: job.Priority, Waited: time.Since(job.PendingSince),
				})
			}
		}
		// Workers that were just answered tend to poll again at once. Yield to them, so
		// that the next batch includes their polls.
		runtime.Gosched()
		return b
	})
}

// unlockWait is the pause before a poll whose worker's row was locked is tried again.
var unlockWait = backoff.Backoff{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}

// levelOf returns the level at which an error that is no outage is logged. Contention is
// only a warning, because it is no defect.
func levelOf(err error) zerolog.Level {
	if errors.Is(err, store.ErrContention) {
		return zerolog.WarnLevel
	}
	return zerolog.ErrorLevel
}

// served takes a batch back. If it failed because of an outage, the waiting polls would also
// fail, so they end now.
func (m *manager) served(c *otp.Ctx, b *batch) {
	now := time.Now()
	m.pace.Ended(len(b.polls))
	m.takeBack(b, now)
	for _, p := range m.postponed {
		c.SendAfter(unlockWait.Wait(p.locked-1), unlocked{p})
	}
	m.postponed = nil
	logger := c.Logger()
	for i := range b.results {
		if r := &b.results[i]; r.Outcome == store.PollFailed && !isOutage(r.Err) {
			logger.WithLevel(levelOf(r.Err)).Err(r.Err).Msg("serving polls failed")
			break
		}
	}
	m.outage(c, b.outage)
	if b.outage != nil {
		m.fail(m.q.answer(&store.PollResult{Outcome: store.PollFailed, Err: b.outage}).err, now)
	}
}

// outage records whether the database is unavailable, and reads it when it is available
// again. cause is nil if it is available.
func (m *manager) outage(c *otp.Ctx, cause error) {
	if away := cause != nil; m.away != away {
		m.away = away
		if away {
			c.Suspend("database unavailable")
			return
		}
		c.Resume()
		m.reads.Start(c)
	}
}

// input returns the input of a read of the database.
func (m *manager) input() recounted {
	now := time.Now()
	known := m.known(now) // before due, because it also records that parked workers are present
	return recounted{
		known: known, seen: m.pending.seen(), classes: m.pending.ids(), at: now, heartbeats: m.due(now, time.Duration(m.q.presence.Load())), here: m.here(now),
	}
}

// read returns the work of a read of the database.
func (m *manager) read() func(context.Context) (recounted, error) {
	q, r := m.q, m.input()
	return func(ctx context.Context) (recounted, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, q.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		return q.read(ctx, r), nil
	}
}

// read counts pending builds, reads changed rows and writes heartbeats.
func (q *Queue) read(ctx context.Context, r recounted) recounted {
	if r.Recount, r.err = q.db.Recount(ctx, q.cfg.Limit+1, r.known, r.classes); r.err == nil {
		r.err = q.tokens.Learn(r.Installation, r.Now)
	}
	if r.err == nil && r.here != nil {
		r.elsewhere, r.elsewhereErr = q.db.Elsewhere(ctx, r.here, maxElsewhere+1)
	}
	if r.err == nil && len(r.heartbeats) > 0 {
		r.written, r.presenceErr = q.db.RecordPresence(ctx, r.heartbeats)
	}
	return r
}

// recounted stores the result of a read of the database, or begins an outage if that failed.
func (m *manager) recounted(c *otp.Ctx, r recounted, _ error) (next time.Duration) {
	now := time.Now()
	logger := c.Logger()
	switch {
	case r.err == nil:
		for _, row := range r.Changed {
			m.corrected(row)
		}
		for _, number := range r.Gone {
			m.gone(number)
		}
		m.pending.recount(r.Recount, r.seen, m.q.cfg.Limit, now)
		m.learnElsewhere(r)
		m.outage(c, nil)
	case isOutage(r.err):
		m.outage(c, r.err)
	default:
		logger.WithLevel(levelOf(r.err)).Err(r.err).Msg("counting pending builds failed")
	}
	if r.elsewhereErr != nil && !isOutage(r.elsewhereErr) {
		logger.WithLevel(levelOf(r.elsewhereErr)).Err(r.elsewhereErr).Msg("polls at other controllers not read")
	}
	switch {
	case r.err != nil:
	case r.presenceErr == nil:
		m.recorded(r.heartbeats, r.written, r.at)
	case !isOutage(r.presenceErr):
		logger.WithLevel(levelOf(r.presenceErr)).Err(r.presenceErr).Msg("last contact of workers not recorded")
	}
	m.step(c)
	return 0 // step has planned the next read
}

// notified handles an event of another controller: a build is pending or a worker has
// changed. This controller's own notifications also come back as remote events.
func (m *manager) notified(c *otp.Ctx, e pubsub.Event) {
	argument, _ := e.Data.(string)
	switch {
	case e.Topic == pubsub.ListenerResumed:
		m.missed()
		m.reads.Start(c)
	case !e.Remote:
	case e.Topic == pubsub.WorkerChanged:
		if number, err := strconv.ParseUint(argument, 10, 32); err == nil {
			m.changed(m.byNumber[uint32(number)])
		}
	case e.Topic == pubsub.QueuePosition: // it comes before the job:available that wakes a poll
		if position, err := strconv.ParseInt(argument, 10, 64); err == nil {
			m.q.db.LowerWatermark(position)
		}
	default:
		m.pending.notified(argument, e.Sender)
	}
}

// depth returns how long the queue is now, until it is called again.
func (m *manager) depth() *Updated {
	by := m.now.ByPlatform
	if by == nil {
		by = map[store.Platform]int{}
	}
	clear(by)
	for _, c := range m.pending.classes {
		if c.n > 0 {
			by[c.Platform] += c.n
		}
	}
	m.now = Updated{Pending: m.pending.total(), PendingIOS: by[store.IOS], PendingAndroid: by[store.Android], ByPlatform: by, Parked: m.parkedPolls()}
	return &m.now
}

func (m *manager) show() {
	m.showing = false
	m.shown = *m.depth()
	m.shown.ByPlatform = maps.Clone(m.shown.ByPlatform)
	m.q.bus.Publish(pubsub.QueueUpdated, m.shown)
}

// Terminate answers every poll: parked ones without a build, others that are in no batch with
// an error. Polls in batches are answered by these, for which it waits up to Config.Timeout.
func (m *manager) Terminate(_ *otp.Ctx, reason error) {
	m.close(restarting(reason))
	patience := time.NewTimer(m.q.cfg.Timeout)
	defer patience.Stop()
	for _, b := range m.batches {
		select {
		case <-b.done:
		case <-patience.C:
			return
		}
	}
}
