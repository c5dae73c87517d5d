package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// Batcher is the handle of ActionBatcher.
type Batcher struct {
	ref     otp.Ref
	db      Actions
	portals *Portals
	metrics *metrics
	cfg     Config
}

// Spec describes the actor to its supervisor.
func (b *Batcher) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "action_batcher",
		Server:   func() otp.Server { return &actionBatcher{b: b} },
		Shutdown: 2*b.cfg.Timeout + time.Second, // running transactions are awaited
		Mailbox:  b.cfg.MaxBuffered,
	}
}

// Accept returns when a is durable. Unavailable means: it may be or not; a repeat
// is harmless.
func (b *Batcher) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	r, err := otp.CallWait[store.Acceptance](ctx, b.ref, b.cfg.RestartGap, a)
	switch {
	case err == nil || store.CodeOf(err) != store.Internal:
		return r, err
	case errors.Is(err, otp.ErrOverload):
		return r, errFull()
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	}
	var down *otp.DownError
	if errors.As(err, &down) || errors.Is(err, otp.ErrTimeout) {
		return r, store.NewUnavailable("Throttle is restarting, try again", err)
	}
	return r, err
}

func errFull() error {
	return store.NewUnavailable("Too many actions wait to be written, try again", nil)
}

// waiting is an action whose caller waits.
type waiting struct {
	action store.Action
	from   otp.From
}

// The messages, besides a store.Action that is asked to be accepted.
type (
	ended struct { // a transaction has ended
		n      int
		queues map[store.QueueKey]int
	}
	woken   struct{} // portals have been told
	overdue struct{} // timer: what waits has waited long enough
)

// actionBatcher is the ActionBatcher actor. While its transactions run, further
// actions collect for the next one; when none runs, an action has one to itself at
// once. A restart loses callers, who learn of it and try again.
type actionBatcher struct {
	otp.Base
	b       *Batcher
	line    []waiting
	running int
	rows    int                    // under way in transactions
	crowd   int                    // how many were under way or in line lately
	late    bool                   // the first of the line has waited long enough
	timer   func()                 // takes overdue back, if it is under way
	news    map[store.QueueKey]int // how many actions are new
	waking  bool
}

// Init starts with nothing.
func (s *actionBatcher) Init(*otp.Ctx) error {
	s.news = map[store.QueueKey]int{}
	return nil
}

// HandleBatch takes everything that has arrived at once.
func (s *actionBatcher) HandleBatch(c *otp.Ctx, msgs []otp.Msg) {
	for _, m := range msgs {
		if m.Kind == otp.CallMsg {
			a, ok := m.Body.(store.Action)
			switch {
			case !ok:
				m.From.Reply(s.HandleCall(c, m.From, m.Body))
			case len(s.line) >= s.b.cfg.MaxBuffered:
				s.b.metrics.refused.WithLabelValues("full").Inc()
				m.From.Reply(nil, errFull())
			default:
				s.line = append(s.line, waiting{a, m.From})
			}
			continue
		}
		s.handle(c, m.Body)
	}
	s.step(c)
}

func (s *actionBatcher) handle(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case ended:
		s.running--
		s.rows -= msg.n
		for key, n := range msg.queues {
			s.news[key] += n
		}
	case woken:
		s.waking = false
	case overdue:
		s.timer, s.late = nil, true
	default:
		s.HandleInfo(c, msg)
	}
}

// step launches what may fly and has portals told.
func (s *actionBatcher) step(c *otp.Ctx) {
	s.crowd = max(s.crowd, s.rows+len(s.line))
	for len(s.line) > 0 && s.running < s.b.cfg.Batches {
		if wait := s.company(); wait > 0 {
			if s.timer == nil {
				s.timer = c.SendAfter(wait, overdue{})
			}
			break
		}
		s.late = false
		if s.timer != nil { // it was for those that fly now
			s.timer()
			s.timer = nil
		}
		n := min(len(s.line), s.b.cfg.FlushRows, max(s.share(), minBatch))
		s.rows += n
		s.crowd = max(s.rows+len(s.line)-n, s.crowd-s.crowd/8)
		list := s.line[:n:n]
		s.line = s.line[n:]
		s.start(c, list)
	}
	if len(s.line) == 0 {
		s.line = nil // lets go of the batch's array
	}
	s.b.metrics.buffered.Set(float64(len(s.line)))
	if len(s.news) > 0 && !s.waking {
		s.waking = true
		news := s.news
		s.news = map[store.QueueKey]int{}
		portals := s.b.portals
		c.Async(func(ctx context.Context) any {
			portals.tell(ctx, news)
			return woken{}
		})
	}
}

// returning is how long a batch waits for callers who were answered just now and
// come back with their next action.
const returning = time.Millisecond

// minBatch is what a transaction takes even if it is more than its share.
const minBatch = 16

// share is a transaction's part of the crowd: while the database works on one, the
// callers of another are answered and come back.
func (s *actionBatcher) share() int { return (s.crowd + s.b.cfg.Batches - 1) / s.b.cfg.Batches }

// company returns how long the line should wait for more; 0: not at all. While a
// transaction runs it may wait for its end. Otherwise the first of those who were
// just answered must not begin without the others.
func (s *actionBatcher) company() time.Duration {
	switch {
	case s.late, len(s.line) >= s.b.cfg.FlushRows, len(s.line) >= s.share()*7/8:
		return 0
	case s.running > 0:
		return s.b.cfg.FlushDelay
	default:
		return min(returning, s.b.cfg.FlushDelay)
	}
}

// start runs one transaction beside the actor. The goroutine answers its callers
// itself: who was committed hears of it whatever happens here.
func (s *actionBatcher) start(c *otp.Ctx, list []waiting) {
	s.running++
	b, hard, logger := s.b, c.Context(), c.Logger()
	c.Async(func(context.Context) any {
		f := batch{b: b, queues: map[store.QueueKey]int{}}
		f.run(hard, list)
		if f.err != nil {
			logger.Error().Err(f.err).Msg("actions could not be written")
		}
		return ended{len(list), f.queues}
	})
}

// batch is a batch on its way to the database.
type batch struct {
	b      *Batcher
	queues map[store.QueueKey]int
	err    error
}

// run writes list and answers it. One that the database refuses is searched for
// by halves, so that it fails alone.
func (f *batch) run(hard context.Context, list []waiting) {
	answers, err := f.write(hard, list)
	switch {
	case err == nil:
		f.b.metrics.flushes.Observe(float64(len(list)))
		for i := range list {
			list[i].from.Reply(answers[i], nil)
		}
		f.count(list, answers)
	case len(list) == 1 || store.IsUnavailable(err) || hard.Err() != nil:
		if !store.IsUnavailable(err) {
			f.err = fmt.Errorf("action of %s: %w", list[0].action.Queue.ID(), err)
		}
		f.b.metrics.refused.WithLabelValues("database").Add(float64(len(list)))
		for _, w := range list {
			w.from.Reply(nil, err)
		}
	default:
		f.run(hard, list[:len(list)/2])
		f.run(hard, list[len(list)/2:])
	}
}

// count counts actions and notes their queues; those of repeats too, which may
// come because nobody looks after the first.
func (f *batch) count(list []waiting, answers []store.Acceptance) {
	fresh := 0
	for i := range list {
		switch a := answers[i]; {
		case !a.Repeat:
			fresh++
			f.queues[list[i].action.Queue]++
		case a.State == store.ActionWaiting:
			f.queues[list[i].action.Queue] += 0
		}
	}
	f.b.metrics.received.WithLabelValues("new").Add(float64(fresh))
	f.b.metrics.received.WithLabelValues("repeat").Add(float64(len(list) - fresh))
}

func (f *batch) write(hard context.Context, list []waiting) ([]store.Acceptance, error) {
	actions := make([]store.Action, len(list))
	for i, w := range list {
		actions[i] = w.action
	}
	ctx, cancel := context.WithTimeoutCause(hard, f.b.cfg.Timeout, errTransactionTooSlow)
	defer cancel()
	return f.b.db.Accept(ctx, actions)
}

// Terminate lets those know whose actions were not begun with.
func (s *actionBatcher) Terminate(*otp.Ctx, error) {
	for _, w := range s.line {
		w.from.Reply(nil, store.NewUnavailable("Throttle is restarting, try again", nil))
	}
}
