package throttle

import (
	"context"
	"fmt"
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	// maxBatch is the most actions of a transaction. A transaction takes up to minBatch
	// actions even if that is more than its share.
	maxBatch = 500
	minBatch = 16
	// maxBatches is how many transactions run at once.
	maxBatches = 2
	// batchDelay is how long actions collect at most while a transaction runs.
	// returnDelay is the same while none runs, because callers that were just answered
	// soon send their next action.
	batchDelay  = 5 * time.Millisecond
	returnDelay = time.Millisecond
)

// Batcher is the handle of ActionBatcher.
type Batcher struct {
	ref     otp.Ref
	db      Store
	portals *Portals
	metrics *metrics
	most    int // how many may wait
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

// Accept returns when a is durable. After Unavailable a may be durable or not, and the
// caller may repeat it safely.
func (b *Batcher) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	return call[store.Acceptance](ctx, b.ref, a)
}

// waiting is an action whose caller waits.
type waiting struct {
	action store.Action
	from   otp.From
}

// The messages, besides the store.Action of a call to Accept.
type (
	ended struct { // a transaction has ended
		n      int
		queues map[store.QueueKey]int
	}
	woken   struct{}         // portals were woken for new actions
	resume  struct{}         // cast: wake the portals of all queues with actions
	busy    []store.QueueKey // the answer to resume
	overdue struct{}         // timer: the longest wait is over
)

// actionBatcher is the ActionBatcher actor. While its transactions run, further actions
// collect for the next one. When none runs, an action gets its own transaction at once. A
// restart fails the waiting calls, and their callers try again.
type actionBatcher struct {
	otp.Base
	b       *Batcher
	waiting []waiting
	running int                    // transactions that run
	rows    int                    // actions in them
	crowd   int                    // how many actions were being written or waited lately
	late    bool                   // the oldest waiting action has reached the longest wait
	timer   func()                 // cancels overdue, if its timer runs
	news    map[store.QueueKey]int // new actions per queue
	waking  bool
}

// Init starts with nothing.
func (s *actionBatcher) Init(*otp.Ctx) error { return nil }

// HandleBatch handles all messages that have arrived.
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
		case resume:
			c.Async(func(ctx context.Context) any { return s.b.busy(ctx) })
		case busy:
			for _, key := range msg {
				s.news[key] += 0
			}
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
		if s.timer != nil { // the timer was for the actions of this transaction
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
		s.waiting = nil // releases the batch's array
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

// busy returns the queues that have actions, once portal_queue_sup can serve them. After an
// error the queues' jobs wake the portals later.
func (b *Batcher) busy(ctx context.Context) busy {
	ctx, cancel := transaction(ctx)
	defer cancel()
	if _, err := b.portals.sup.Await(ctx); err != nil {
		return nil
	}
	queues, err := b.db.BusyQueues(ctx, 0, 0, restoreLimit)
	if err != nil {
		return nil
	}
	return queues
}

// share is one transaction's part of the crowd. While the database works on one
// transaction, the callers of the other are answered and send their next actions.
func (s *actionBatcher) share() int { return (s.crowd + maxBatches - 1) / maxBatches }

// company returns how long the waiting actions wait for more, 0 for not at all. While a
// transaction runs they may wait for its end. Otherwise the first caller to return waits
// for the others that were answered with it.
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

// start runs one transaction in a goroutine. The goroutine answers its callers itself,
// because they must get the result of a commit even if the actor crashes.
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

// batch is a batch that is being written to the database.
type batch struct {
	b      *Batcher
	queues map[store.QueueKey]int
	err    error
}

// run writes list and answers its callers. If the database refuses list, run splits it
// into halves until the refused action fails alone.
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

// count counts actions and notes their queues. It notes the queues of repeats too,
// because a caller may repeat an action whose queue nobody serves.
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

// Terminate answers the callers whose actions are in no transaction.
func (s *actionBatcher) Terminate(*otp.Ctx, error) {
	for _, w := range s.waiting {
		w.from.Reply(nil, errRestarting(nil))
	}
}
