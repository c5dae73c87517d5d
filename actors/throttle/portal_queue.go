package throttle

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/store"
	"takt/store/hubspot"
)

// The messages.
type (
	wake      map[string]int         // call: serve these queues; the values count new actions
	lookAgain struct{ queue string } // cast: a rate of the portal or this queue has changed
	makeRoom  struct{}               // call: end if there is nothing to do; replies whether it ends

	dueNow       struct{} // timer
	heartbeatNow struct{} // timer
	idleNow      struct{} // timer: no work has arrived for a while

	sent struct { // a call has ended; its outcome was recorded, or recording failed
		claim store.Claim
		sum   summary
		err   error
	}
)

const (
	// tokenPause is how long a portal without a token gets no calls.
	tokenPause = 30 * time.Second
	// outagePause is the pause after a claim that met an outage of the database.
	outagePause = time.Second
	// stagger is the time between the first calls of claims that were made together.
	// Simultaneous calls would each take longer, and budget is available again one period after
	// the answer.
	stagger = 10 * time.Millisecond
	// forGood is how long a portal without work counts as idle, which is longer than for any
	// portal with work.
	forGood = 1000 * 24 * time.Hour
	// minPause keeps a timer that fires early from looping.
	minPause = time.Millisecond
	// maxLinger is how long a batch waits at most for more actions.
	maxLinger = 900 * time.Millisecond
	// heartbeatEvery is how often a PortalQueue records that it serves its queues.
	heartbeatEvery = 10 * time.Second
)

// claimed is the result of a claim.
type claimed struct {
	asked   []string
	token   Token
	claims  store.Claims
	noToken error // why there is no token
}

// portalQueue is a PortalQueue actor. It claims the due actions of one portal's queues and
// sends them. A claim does not wait for the calls of the previous one. When it crashes,
// nothing is lost, because the queues' jobs start another PortalQueue.
type portalQueue struct {
	otp.Base
	p      *Portals
	id     int64
	queues *queues

	claims  otp.Job[claimed]
	running int // running calls
	start   slowStart
	until   time.Time // no claims before this time
	timer   func()    // cancels dueNow; nil if that is not set
	idle    func()    // cancels idleNow; nil if that is not set
}

// Init starts without queues: whoever starts the actor then calls it with wake.
func (s *portalQueue) Init(c *otp.Ctx) error {
	s.claims = otp.Job[claimed]{Begin: s.claim, Done: s.claimed, Outage: store.DescribeOutage}
	s.queues = newQueues(maxLinger, s.p.cfg.Ahead)
	c.SendEvery(heartbeatEvery, heartbeatNow{})
	s.p.metrics.portals.Inc()
	s.step(c)
	return nil
}

// Terminate implements otp.Server.
func (s *portalQueue) Terminate(*otp.Ctx, error) {
	s.p.resting.Delete(s.id)
	s.p.metrics.portals.Dec()
}

// HandleCall handles wake and makeRoom.
func (s *portalQueue) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case wake:
		now := time.Now()
		for id, n := range req {
			s.queues.arrive(id, n, now)
		}
		s.step(c)
		return nil, nil // the answer is that it was taken
	case makeRoom:
		until, resting := s.rests()
		ends := resting && time.Until(until) > s.p.cfg.Snooze || s.quiet()
		if ends {
			c.Stop(nil)
		}
		return ends, nil
	default:
		return s.Base.HandleCall(c, from, req)
	}
}

// rests reports whether no claim and no call runs, and when the next claim is due.
func (s *portalQueue) rests() (until time.Time, resting bool) {
	until, any := s.queues.next()
	return later(until, s.until), any && s.running == 0 && !s.claims.Running()
}

// HandleCast implements otp.Server.
func (s *portalQueue) HandleCast(c *otp.Ctx, msg any) {
	m, ok := msg.(lookAgain)
	if !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	s.queues.lookAgain(time.Now())
	if m.queue != "" {
		s.queues.arrive(m.queue, 0, time.Now())
	}
	s.step(c)
}

// HandleInfo implements otp.Server.
func (s *portalQueue) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case dueNow:
		s.timer = nil
	case sent:
		s.sent(c, msg)
	case heartbeatNow:
		s.heartbeat(c)
		return
	case idleNow:
		s.idle = nil
		if s.quiet() {
			c.Stop(nil)
			return
		}
	default:
		s.Base.HandleInfo(c, msg)
	}
	s.step(c)
}

// quiet reports whether there is nothing to serve.
func (s *portalQueue) quiet() bool {
	return len(s.queues.byID) == 0 && s.running == 0 && !s.claims.Running()
}

// step begins a claim if one is due, and sets the timers.
func (s *portalQueue) step(c *otp.Ctx) {
	if s.quiet() {
		s.p.resting.Store(s.id, time.Now().Add(forGood))
		if s.idle == nil {
			s.idle = c.SendAfter(s.p.cfg.Idle, idleNow{})
		}
		return
	}
	if s.idle != nil {
		s.idle()
		s.idle = nil
	}
	if until, resting := s.rests(); resting {
		s.p.resting.Store(s.id, until)
	} else {
		s.p.resting.Delete(s.id)
	}
	at, any := s.queues.next()
	if s.claims.Running() || !any || s.running >= s.start.calls(s.p.cfg.Calls) {
		return // step runs again when the running claim or call ends
	}
	if at.Before(s.until) {
		at = s.until
	}
	now := time.Now()
	if !at.After(now) {
		s.claims.Tick(c)
		return
	}
	if s.timer != nil {
		s.timer()
	}
	s.timer = c.SendAfter(max(at.Sub(now), minPause), dueNow{})
}

// claim gets a token and claims actions of the queues that are due.
func (s *portalQueue) claim() func(context.Context) (claimed, error) {
	queues := s.queues.take(time.Now())
	if len(queues) == 0 {
		return nil
	}
	p, id := s.p, s.id
	free, ahead := s.start.calls(p.cfg.Calls)-s.running, p.cfg.Ahead
	if free == 1 {
		ahead = 0
	} else if ahead > 0 {
		free-- // reserved for actions that are claimed ahead, which get a call of their own
	}
	return func(ctx context.Context) (claimed, error) {
		m := claimed{asked: queues}
		limit := free * hubspot.MaxBatch
		if m.token, m.noToken = p.tokens.Access(ctx, id); m.noToken != nil {
			limit = 0 // claim nothing, only end expired actions
		}
		ctx, cancel := transaction(ctx)
		defer cancel()
		var err error
		m.claims, err = p.db.Claim(ctx, store.ClaimRequest{
			PortalID: id, Queues: queues, Limit: limit, Batch: hubspot.MaxBatch, Lease: p.cfg.lease, MaxLinger: maxLinger, Ahead: ahead,
		})
		if err == nil && m.noToken != nil && !store.IsUnavailable(m.noToken) {
			err = p.db.Note(ctx, queues, "no token: "+explain(m.noToken))
		}
		return m, err
	}
}

func (s *portalQueue) claimed(c *otp.Ctx, m claimed, err error) (next time.Duration) {
	defer s.step(c)
	now := time.Now()
	logger := c.Logger()
	if err != nil {
		s.queues.retry(m.asked, now)
		s.until = later(s.until, now.Add(outagePause))
		if !store.IsUnavailable(err) {
			logger.Error().Err(err).Msg("claiming actions failed")
		}
		return 0
	}
	if n := m.claims.Expired; n > 0 {
		s.p.metrics.finished.WithLabelValues("expired").Add(float64(n))
		logger.Warn().Int("actions", n).Msg("actions expired before they were sent")
	}
	s.queues.claimed(m.asked, m.claims, now)
	if m.noToken != nil {
		if store.IsUnavailable(m.noToken) {
			s.until = later(s.until, now.Add(outagePause))
			return 0
		}
		s.until = later(s.until, now.Add(tokenPause))
		logger.Warn().Err(m.noToken).Msg("portal has no token")
		return 0
	}
	for i, claim := range m.claims.Claims {
		if claim.NotBefore.IsZero() && i > 0 {
			claim.NotBefore = now.Add(time.Duration(i) * stagger)
		}
		s.send(c, claim, m.token)
	}
	return 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// send completes a claim's actions at HubSpot and records the outcome, in a goroutine. A
// graceful stop does not abort it; a kill does.
func (s *portalQueue) send(c *otp.Ctx, claim store.Claim, token Token) {
	s.running++
	p, id, hard := s.p, s.id, c.Context()
	c.Async(func(context.Context) any {
		d := &delivery{p: p, portal: id, claim: claim, token: token}
		d.run(hard, claim.Actions)
		return sent{claim, d.sum, d.record(hard)}
	})
}

func (s *portalQueue) sent(c *otp.Ctx, m sent) {
	s.running--
	now := time.Now()
	logger := c.Logger()
	retry := m.sum.retry
	if m.err != nil {
		logger.Error().Err(m.err).Int("actions", len(m.claim.Actions)).Msg("recording a call's outcome failed; its actions will be sent again")
		retry = s.p.cfg.lease
	}
	s.queues.ended(m.claim, !m.sum.touched && m.err == nil, retry, now)
	pause := s.start.after(m.sum.worst)
	pause = max(pause, m.sum.pause)
	if pause > 0 {
		s.until = later(s.until, now.Add(pause))
	}
	if m.sum.text != "" {
		logger.Warn().Str("kind", m.sum.worst.String()).Int("failed", len(m.sum.failed)).Int("released", len(m.sum.released)).
			Dur("pause", pause).Msg(m.sum.text)
	}
	if r := m.sum.recorded; r.Held+r.GivenUp > 0 {
		logger.Warn().Int("held", r.Held).Int("given_up", r.GivenUp).Msg("actions failed repeatedly")
		if r.GivenUp > 0 {
			logger.Error().Int64("portal", s.id).Int("actions", r.GivenUp).Msg("actions given up: " + m.sum.text)
		}
	}
}

// heartbeat records that the queues are served. Its time limit is shorter than its interval.
func (s *portalQueue) heartbeat(c *otp.Ctx) {
	db, queues := s.p.db, s.queues.ids()
	if len(queues) == 0 {
		return
	}
	c.Async(func(ctx context.Context) any {
		ctx, cancel := transaction(ctx)
		defer cancel()
		_ = db.Heartbeat(ctx, queues)
		return nil
	})
}
