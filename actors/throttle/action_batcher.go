package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"takt/actors/otp"
	"takt/store"
	"takt/store/batching"
)

// pace decides when ActionBatcher begins a transaction. The callers of the previous one soon
// send their next actions, so a transaction waits briefly for these.
var pace = batching.Pace{
	Parallel: 2, Most: 500, Least: 16, Linger: 5 * time.Millisecond, Return: time.Millisecond,
}

// Batcher is the handle of ActionBatcher.
type Batcher struct {
	ref       otp.Ref
	db        Store
	portals   *Portals
	metrics   *figures
	most      int                                            // how many may wait
	committer atomic.Pointer[batching.Committer[*accepting]] // the actor's; nil before its first start
}

// accepting is an action whose caller waits, and later also the result.
type accepting struct {
	store.Action
	store.Acceptance
}

// Spec describes the actor to its supervisor.
func (b *Batcher) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "action_batcher",
		Server:   func() otp.Server { return &actionBatcher{b: b, news: news{}} },
		Shutdown: 2*transactionTime + time.Second, // running transactions are awaited
	}
}

// Accept returns when a is durable. After Unavailable, a may be durable or not; repeating it
// is harmless.
func (b *Batcher) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	w := &accepting{Action: a}
	switch err := b.commit(ctx, w); {
	case err == nil:
		return w.Acceptance, nil
	case errors.Is(err, batching.ErrFull):
		b.metrics.refused.WithLabelValues("full").Inc()
		return store.Acceptance{}, errFull()
	case errors.Is(err, batching.ErrClosed):
		return store.Acceptance{}, errRestarting(err)
	case ctx.Err() != nil:
		return store.Acceptance{}, context.Cause(ctx)
	default:
		b.metrics.refused.WithLabelValues("database").Inc()
		return store.Acceptance{}, fmt.Errorf("action of %s: %w", a.Queue.ID(), err)
	}
}

// commit commits w. If the actor is restarting, it waits up to restartGap for it.
func (b *Batcher) commit(ctx context.Context, w *accepting) error {
	err := error(batching.ErrClosed)
	if c := b.committer.Load(); c != nil {
		err = c.Do(ctx, w)
	}
	if !errors.Is(err, batching.ErrClosed) {
		return err
	}
	gap, cancel := context.WithTimeout(ctx, restartGap)
	defer cancel()
	if _, down := b.ref.Await(gap); down != nil {
		return err
	}
	if c := b.committer.Load(); c != nil {
		return c.Do(ctx, w)
	}
	return err
}

// waiting returns how many actions wait for their transaction.
func (b *Batcher) waiting() float64 {
	if c := b.committer.Load(); c != nil {
		return float64(c.Waiting())
	}
	return 0
}

// write makes a batch of actions durable. hard is cancelled when the actor is killed.
func (s *actionBatcher) write(hard context.Context, list []*accepting) error {
	b := s.b
	actions := make([]store.Action, len(list))
	for i, w := range list {
		actions[i] = w.Action
	}
	ctx, cancel := transaction(hard)
	defer cancel()
	answers, err := b.db.Accept(ctx, actions)
	if err != nil {
		return err
	}
	b.metrics.flushes.Observe(float64(len(list)))
	fresh, queues := 0, news{}
	for i, a := range answers {
		list[i].Acceptance = a
		switch {
		case !a.Repeat:
			fresh++
			queues[actions[i].Queue]++
		case a.State == store.ActionWaiting: // repeated, perhaps because its queue is not served
			queues[actions[i].Queue] += 0
		}
	}
	b.metrics.received.WithLabelValues("new").Add(float64(fresh))
	b.metrics.received.WithLabelValues("repeat").Add(float64(len(list) - fresh))
	if len(queues) > 0 {
		otp.Cast(b.ref, queues)
	}
	return nil
}

// busy waits until portal_queue_sup runs, and returns the queues that have actions. After an
// error, the queues' jobs wake the portals later.
func (b *Batcher) busy(ctx context.Context) ([]store.QueueKey, error) {
	ctx, cancel := transaction(ctx)
	defer cancel()
	if _, err := b.portals.sup.Await(ctx); err != nil {
		return nil, err
	}
	return b.db.BusyQueues(ctx, 0, 0, restoreLimit)
}

// The messages, casts.
type (
	news   map[store.QueueKey]int // how many new actions each queue has got
	resume struct{}               // wake the portals of all queues with actions
)

// actionBatcher is the ActionBatcher actor. It makes the Committer that commits actions, and
// wakes the portals of their queues. While it restarts, callers wait or get Unavailable;
// transactions that have begun still reply to their callers.
type actionBatcher struct {
	otp.Base
	b       *Batcher
	news    news
	wakes   otp.Job[any]              // wakes the portals of news
	resumes otp.Job[[]store.QueueKey] // finds the queues with actions
}

// Init makes the Committer.
func (s *actionBatcher) Init(c *otp.Ctx) error {
	s.wakes = otp.Job[any]{Begin: s.wake, Done: func(*otp.Ctx, any, error) time.Duration { return 0 }}
	s.resumes = otp.Job[[]store.QueueKey]{
		Begin: func() func(context.Context) ([]store.QueueKey, error) { return s.b.busy },
		Done: func(c *otp.Ctx, queues []store.QueueKey, _ error) time.Duration {
			for _, key := range queues {
				s.news[key] += 0
			}
			s.wakes.Start(c)
			return 0
		},
	}
	hard := c.Context()
	s.b.committer.Store(batching.New(batching.Config[*accepting]{
		Commit:  func(list []*accepting) error { return s.write(hard, list) },
		Refused: func(err error) bool { return !store.IsUnavailable(err) && hard.Err() == nil },
		Full:    s.b.most, Pace: pace,
	}))
	return nil
}

// HandleCast handles news and resume.
func (s *actionBatcher) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case news:
		for key, n := range msg {
			s.news[key] += n
		}
		s.wakes.Start(c)
	case resume:
		s.resumes.Start(c)
	default:
		s.Base.HandleCast(c, msg)
	}
}

// wake returns the work of waking the portals of news; nil if there are none.
func (s *actionBatcher) wake() func(context.Context) (any, error) {
	if len(s.news) == 0 {
		return nil
	}
	queues, portals := s.news, s.b.portals
	s.news = news{}
	return func(ctx context.Context) (any, error) {
		portals.wakeAll(ctx, queues)
		return struct{}{}, nil
	}
}

// Terminate refuses the actions that are in no transaction, and waits for the others.
func (s *actionBatcher) Terminate(*otp.Ctx, error) { s.b.committer.Load().Close() }
