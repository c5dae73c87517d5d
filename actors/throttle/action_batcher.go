package throttle

import (
	"context"
	"fmt"
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	// maxBatch is the most actions of a transaction, minBatch what it takes even if
	// that is more than its share.
	maxBatch = 500
	minBatch = 16
	// maxBatches is how many transactions are under way at once.
	maxBatches = 2
	// batchDelay is how long actions collect at most while a transaction runs,
	// returnDelay while none does: those who were answered just now come back with
	// their next action.
	batchDelay  = 5 * time.Millisecond
	returnDelay = time.Millisecond
)

// Batcher is the handle of ActionBatcher.
type Batcher struct {
	ref     otp.Ref
	db      Actions
	portals *Portals
	metrics *metrics
	most    int // that may wait
}

// Spec describes the actor to its supervisor.
func (b *Batcher) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "action_batcher",
		Server:   func() otp.Server { return &actionBatcher{b: b, news: map[store.QueueKey]int{}} },
		Shutdown: 2*transactionTime + time.Second, // running transactions are awaited
		Mailbox:  b.most,
	}
}

// Accept returns when a is durable. Unavailable means: it may be or not; a repeat
// is harmless.
func (b *Batcher) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	return call[store.Acceptance](ctx, b.ref, a)
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
	woken   struct{} // portals know of new actions
	overdue struct{} // timer: what waits has waited long enough
)

// actionBatcher is the ActionBatcher actor. While its transactions run, further
// actions collect for the next one; when none runs, an action has one to itself at
// once. A restart loses callers, who learn of it and try again.
type actionBatcher struct {
	otp.Base
	b       *Batcher
	waiting []waiting
	running int                    // transactions under way
	rows    int                    // actions in them
	crowd   int                    // how many actions were under way or waited lately
	late    bool                   // the first that waits has waited long enough
	timer   func()                 // takes overdue back, if it is under way
	news    map[store.QueueKey]int // how many actions are new
	waking  bool
}

// Init starts with nothing.
func (s *actionBatcher) Init(*otp.Ctx) error { return nil }

// HandleBatch takes everything that has arrived at once.
func (s *actionBatcher) HandleBatch(c *otp.Ctx, msgs []otp.Msg) {
	for _, m := range msgs {
		switch msg := m.Body.(type) {
		case store.Action:
			if len(s.waiting) >= s.b.most {
				s.b.metrics.refused.WithLabelValues("full").Inc()
				m.From.Reply(nil, errFull())
				continue
			}
			s.waiting = append(s.waiting, waiting{msg, m.From})
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
			m.From.Reply(s.HandleCall(c, m.From, msg))
		}
	}
	s.step(c)
}

// step begins transactions, and wakes portals.
func (s *actionBatcher) step(c *otp.Ctx) {
	s.crowd = max(s.crowd, s.rows+len(s.waiting))
	for len(s.waiting) > 0 && s.running < maxBatches {
		if wait := s.company(); wait > 0 {
			if s.timer == nil {
				s.timer = c.SendAfter(wait, overdue{})
			}
			break
		}
		s.late = false
		if s.timer != nil { // it was for the actions of this transaction
			s.timer()
			s.timer = nil
		}
		n := min(len(s.waiting), maxBatch, max(s.share(), minBatch))
		s.rows += n
		s.crowd = max(s.rows+len(s.waiting)-n, s.crowd-s.crowd/8)
		list := s.waiting[:n:n]
		s.waiting = s.waiting[n:]
		s.start(c, list)
	}
	if len(s.waiting) == 0 {
		s.waiting = nil // lets go of the batch's array
	}
	s.b.metrics.buffered.Set(float64(len(s.waiting)))
	if len(s.news) > 0 && !s.waking {
		s.waking = true
		news, portals := s.news, s.b.portals
		s.news = map[store.QueueKey]int{}
		c.Async(func(ctx context.Context) any {
			portals.wakeAll(ctx, news)
			return woken{}
		})
	}
}

// share is a transaction's part of the crowd: while the database works on one, the
// callers of another are answered and come back.
func (s *actionBatcher) share() int { return (s.crowd + maxBatches - 1) / maxBatches }

// company returns how long what waits should wait for more; 0: not at all. While a
// transaction runs it may wait for its end. Otherwise the first of those who were
// just answered must not begin without the others.
func (s *actionBatcher) company() time.Duration {
	switch {
	case s.late, len(s.waiting) >= maxBatch, len(s.waiting) >= s.share()*7/8:
		return 0
	case s.running > 0:
		return batchDelay
	default:
		return returnDelay
	}
}

// start runs one transaction beside the actor. The goroutine answers its callers
// itself, because who was committed is to learn of it whatever happens here.
func (s *actionBatcher) start(c *otp.Ctx, list []waiting) {
	s.running++
	f, hard, logger := batch{b: s.b, queues: map[store.QueueKey]int{}}, c.Context(), c.Logger()
	c.Async(func(context.Context) any {
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
// come because nobody serves the first.
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
	ctx, cancel := transaction(hard)
	defer cancel()
	return f.b.db.Accept(ctx, actions)
}

// Terminate answers those whose actions were not begun with.
func (s *actionBatcher) Terminate(*otp.Ctx, error) {
	for _, w := range s.waiting {
		w.from.Reply(nil, errRestarting(nil))
	}
}
