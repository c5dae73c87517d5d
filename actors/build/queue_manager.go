package build

import (
	"context"
	"errors"
	"runtime"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// The messages, besides a *poll that arrives.
type (
	leave    struct{ poll *poll } // nobody waits for this poll any more
	enqueued [laneCount]int       // so many builds became pending
	labelled struct {             // a build with a cache label became pending
		lane  int
		cache string
	}
	freed    struct{ worker string }        // the worker has a slot again
	finished struct{ worker, cache string } // the worker's cache is warm

	countNow struct{} // timer: count the pending builds
	dueNow   struct{} // timer: a parked poll's time is up
	showNow  struct{} // timer: publish queue:updated
	hurry    struct{} // timer: launch what waits for company

	counted struct { // a count has ended
		pending map[store.Platform]int
		seen    [laneCount]uint64
		err     error
	}
)

const (
	// showEvery is how often queue:updated is published at most.
	showEvery = 100 * time.Millisecond
	// linger is how long polls wait for company while a batch is under way.
	linger = 5 * time.Millisecond
	// doubtDelay is how soon a count is taken when the hints are in doubt.
	doubtDelay = 100 * time.Millisecond
)

var errTransactionTooSlow = errors.New("transaction exceeded its time limit")

// manager is the QueueManager actor: a thin shell that lets the board decide,
// runs its flights and arms its timers. A restart loses hints and parked polls,
// whose callers learn of it at once; the database knows everything else.
type manager struct {
	otp.Base
	q     *Queue
	board *board

	counting bool // a count is under way
	again    bool // and another is wanted: it may have begun too early
	recount  alarm
	due      alarm
	late     alarm
	hurry    bool // what waits has waited long enough
	showing  bool // show is armed
	shown    QueueUpdated
}

// Init starts with the last incarnation's hints and has them counted anew.
func (m *manager) Init(c *otp.Ctx) error {
	m.board = newBoard(m.q.cfg.MaxParked, &m.q.gauge.pending)
	m.q.bus.Listen(c, pubsub.JobAvailable, pubsub.ListenerResumed)
	m.count(c)
	m.step(c)
	return nil
}

// HandleBatch takes everything that has arrived at once, so that one
// transaction serves all of it.
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

// HandleCast implements otp.Server; HandleBatch is what runs.
func (m *manager) HandleCast(c *otp.Ctx, msg any) { m.HandleInfo(c, msg) }

// HandleInfo implements otp.Server; HandleBatch is what runs.
func (m *manager) HandleInfo(c *otp.Ctx, msg any) {
	m.handle(c, msg)
	m.step(c)
}

func (m *manager) handle(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case *poll:
		m.board.arrive(msg)
	case leave:
		m.board.leave(msg.poll)
	case *flight:
		m.land(c, msg)
	case enqueued:
		for lane, n := range msg {
			m.board.hints.enqueued(lane, n)
		}
	case labelled:
		m.board.hints.enqueued(msg.lane, 1)
		m.board.warmth.appeared(msg.lane, msg.cache)
	case finished:
		m.board.warmth.finished(msg.worker, msg.cache, time.Now())
	case freed:
		m.board.freed(msg.worker)
	case pubsub.Event:
		m.notified(c, msg)
	case counted:
		m.counted(c, msg)
	case dueNow:
		m.due = alarm{}
		m.board.expire(time.Now())
	case countNow:
		m.recount = alarm{}
		m.count(c)
	case hurry:
		m.late, m.hurry = alarm{}, true
	case showNow:
		m.show()
	case pubsub.Heard:
		m.count(c) // tells what could not be heard until now
	case pubsub.Unheard: // Heard comes
	default:
		logger := c.Logger()
		logger.Error().Type("message", msg).Msg("unexpected message")
	}
}

// step does what the news allow: wake parked polls, launch flights, arm timers.
func (m *manager) step(c *otp.Ctx) {
	g, b := m.q.gauge, m.board
	g.woken.Add(int64(b.wake(time.Now())))
	for len(b.aloft) < m.q.cfg.Batches && b.line.size > 0 {
		if !m.hurry && !b.worthwhile(m.q.cfg.BatchSize) {
			m.late.set(c, time.Now().Add(linger), hurry{})
			break
		}
		m.launch(c, b.take(m.q.cfg.BatchSize))
	}
	m.hurry = false
	if at, ok := b.room.nextDue(); ok {
		m.due.set(c, at, dueNow{})
	}
	if !m.counting {
		wait := m.q.cfg.Recount
		if b.doubtful() {
			wait = doubtDelay
		}
		m.recount.set(c, time.Now().Add(wait), countNow{})
	}
	g.lined.Store(int64(b.line.size))
	g.parked.Store(int64(b.room.size()))
	g.flying.Store(int64(b.flying()))
	if !m.showing && m.shown != m.depth() {
		m.showing = true
		c.SendAfter(showEvery, showNow{})
	}
}

// launch lets f serve its polls beside the actor. The goroutine answers them
// itself: a committed assignment reaches its worker whatever happens here. A
// stop does not abort it, only the process's hard deadline does.
func (m *manager) launch(c *otp.Ctx, f *flight) {
	q, hard := m.q, c.Context()
	c.Async(func(context.Context) any {
		ctx, cancel := context.WithTimeoutCause(hard, q.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		f.fly(ctx, q.db, &q.gauge.pending)
		q.gauge.flew(f)
		q.announce(f)
		// Those that were just answered tend to poll again at once. Let them go
		// first, so that the next flight finds them in the line.
		runtime.Gosched()
		return f
	})
}

// announce publishes what f assigned.
func (q *Queue) announce(f *flight) {
	for i := range f.landings {
		l := &f.landings[i]
		if l.err == nil && l.Job != nil && !l.Redelivered {
			q.bus.Publish(pubsub.BuildAssigned, Assigned{
				BuildID: l.Job.BuildID, WorkerID: l.WorkerID, Platform: l.Job.Platform, Attempt: l.Job.Attempt,
			})
		}
	}
}

// land takes a flight back. One that met no database empties the line at once:
// what waits there would only meet the same.
func (m *manager) land(c *otp.Ctx, f *flight) {
	weather, defect := f.failures()
	m.board.land(f)
	if defect != nil {
		logger := c.Logger()
		logger.Error().Err(defect).Msg("polls could not be served")
	}
	if weather != nil {
		m.board.fail(refusal(weather))
		m.weather(c, true)
		return
	}
	m.weather(c, false)
}

// weather notes whether the database is away, and has the pending builds
// counted when it is back.
func (m *manager) weather(c *otp.Ctx, away bool) {
	if m.board.away == away {
		return
	}
	m.board.away = away
	if away {
		c.Suspend("database unavailable")
		return
	}
	c.Resume()
	m.count(c)
}

// count has the pending builds counted, one count at a time.
func (m *manager) count(c *otp.Ctx) {
	if m.counting {
		m.again = true
		return
	}
	m.counting, m.again = true, false
	q, seen := m.q, m.board.hints.news
	c.Async(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeoutCause(ctx, q.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		pending, err := q.db.Pending(ctx, q.cfg.CountLimit)
		return counted{pending: pending, seen: seen, err: err}
	})
}

// counted corrects the hints. While the database is away the count skips its
// turn and parked polls stay parked.
func (m *manager) counted(c *otp.Ctx, r counted) {
	m.counting = false
	switch {
	case r.err == nil:
		m.board.hints.counted(r.pending, r.seen, m.q.cfg.CountLimit)
		m.weather(c, false)
	case isWeather(r.err):
		m.weather(c, true)
	default:
		logger := c.Logger()
		logger.Error().Err(r.err).Msg("pending builds could not be counted")
	}
	if m.again {
		m.count(c)
	}
}

// notified takes another controller's word that a build is pending. Our own
// words come back as remote events too; the hints know how many to expect.
func (m *manager) notified(c *otp.Ctx, e pubsub.Event) {
	switch {
	case e.Topic == pubsub.ListenerResumed:
		m.count(c)
	case e.Remote:
		if p, ok := e.Data.(string); ok {
			if lane := laneOf(store.Platform(p)); lane != noLane {
				m.board.hints.notified(lane)
			}
		}
	}
}

func (m *manager) depth() QueueUpdated {
	h := &m.board.hints
	return QueueUpdated{
		Pending:        h.pending[laneIOS] + h.pending[laneAndroid],
		PendingIOS:     h.pending[laneIOS],
		PendingAndroid: h.pending[laneAndroid],
		Parked:         m.board.room.size(),
	}
}

func (m *manager) show() {
	m.showing = false
	m.shown = m.depth()
	m.q.bus.Publish(pubsub.QueueUpdated, m.shown)
}

// Terminate answers every poll: those in the line are refused, parked ones get
// an empty answer, and those that fly get theirs when they land, for which it
// waits as long as one transaction may take.
func (m *manager) Terminate(_ *otp.Ctx, reason error) {
	m.board.close(restarting(reason))
	patience := time.NewTimer(m.q.cfg.Timeout)
	defer patience.Stop()
	for _, f := range m.board.aloft {
		select {
		case <-f.landed:
		case <-patience.C:
			return
		}
	}
}

// alarm is a timer that is moved forward when something earlier comes up.
type alarm struct {
	at     time.Time
	cancel func()
}

// set has msg sent at the time given, unless it is due earlier already.
func (a *alarm) set(c *otp.Ctx, at time.Time, msg any) {
	if a.cancel != nil {
		if !at.Before(a.at) {
			return
		}
		a.cancel()
	}
	a.at, a.cancel = at, c.SendAfter(time.Until(at), msg)
}
