package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// bench is a running QueueManager on a fake database.
type bench struct {
	*testing.T
	sys   *otp.System
	bus   pubsub.Bus
	db    *fakeStore
	queue *Queue
	// tokens are those of the fake store's workers.
	tokens *store.WorkerTokens
}

// inBubble runs f as a test of its own, with a QueueManager in a bubble of fake time.
func inBubble(t *testing.T, name string, cfg Config, f func(b *bench)) {
	t.Helper()
	inTime(t, name, func(t bubbled) { run(t.T, cfg, f) })
}

type bubbled struct{ *testing.T }

// inTime runs f as a test of its own in a bubble of fake time.
func inTime(t *testing.T, name string, f func(t bubbled)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { f(bubbled{t}) })
	})
}

func bubble(t *testing.T, cfg Config, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, cfg, f) })
}

func run(t *testing.T, cfg Config, f func(b *bench)) {
	t.Helper()
	b := &bench{T: t, sys: otp.New(otp.Options{Logger: zerolog.New(t.Output())}), bus: pubsub.New(), db: newFakeStore()}
	b.tokens = store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32))
	b.queue = New(b.sys, b.db, b.bus, b.tokens, cfg)
	_, err := b.sys.StartRoot(t.Context(), "takt", otp.SupSpec{
		Intensity: 100,
		Children:  []otp.ChildSpec{b.bus.Spec(), b.queue.Spec()},
	})
	require.NoError(t, err)
	defer func() { b.sys.Shutdown(context.Background()); synctest.Wait() }()
	synctest.Wait()
	f(b)
	require.Empty(t, b.db.broken)
}

// asked is a poll under way.
type asked struct {
	reply  store.PollReply
	err    error
	at     time.Time
	over   chan struct{} // closed when the fields above are final
	cancel context.CancelCauseFunc
}

func (a *asked) done() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// asks lets a worker poll by id, in a goroutine of its own.
func (b *bench) asks(worker string, wait time.Duration) *asked {
	return b.sends(store.PollRequest{WorkerID: worker}, wait)
}

// shows returns the request with the token that a reply brought.
func (b *bench) shows(r store.PollReply) store.PollRequest {
	b.Helper()
	token, err := b.tokens.Check(r.Token)
	require.NoError(b, err)
	return store.PollRequest{Token: token, Presented: r.Token}
}

func (b *bench) sends(req store.PollRequest, wait time.Duration) *asked {
	b.Helper()
	ctx, cancel := context.WithCancelCause(b.Context())
	a := &asked{cancel: cancel, over: make(chan struct{})}
	go func() {
		defer cancel(nil)
		a.reply, a.err = b.queue.Poll(ctx, req, wait)
		a.at = time.Now()
		close(a.over)
	}()
	synctest.Wait()
	return a
}

// submits makes a build pending and says so.
// sender is the process that notifies the controllers of what submits submits.
const sender = 4711

func (b *bench) submits(id string, p store.Platform) {
	b.db.submit(id, p)
	b.queue.Enqueued(store.Build{Platform: p, ClassID: store.PlainClass(p), Sender: sender})
	synctest.Wait()
}

func (b *bench) passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (b *bench) gotJob(a *asked, build string) {
	b.Helper()
	require.True(b, a.done())
	require.NoError(b, a.err)
	require.NotNil(b, a.reply.Jobs.First())
	require.Equal(b, build, a.reply.Jobs.First().BuildID)
}

func (b *bench) gotNothing(a *asked) {
	b.Helper()
	require.True(b, a.done())
	require.NoError(b, a.err)
	require.Nil(b, a.reply.Jobs.First())
}

func TestPoll(t *testing.T) {
	t.Parallel()

	inBubble(t, "a poll gets a build and a new token", Config{}, func(b *bench) {
		b.db.worker("w")
		b.db.submit("x", store.IOS)
		a := b.sends(b.db.shows("w"), 0)
		b.gotJob(a, "x")
		require.Len(b, a.reply.Token, 32)
		b.db.finish("w")
		b.gotNothing(b.sends(b.shows(a.reply), 0))
	})

	inBubble(t, "polls that come while transactions run share the next one", Config{}, func(b *bench) {
		gate := make(chan struct{})
		b.db.set(func(s *fakeStore) { s.gate = gate })
		for i := range 9 {
			b.db.worker(fmt.Sprint(i))
			b.asks(fmt.Sprint(i), 0)
		}
		require.Equal(b, 7, b.queue.Stats().Waiting)
		close(gate)
		synctest.Wait()
		require.Equal(b, [][]string{{"0"}, {"1"}, {"2", "3", "4", "5", "6", "7", "8"}}, b.db.batches)
	})

	inBubble(t, "replies and statistics show the queue", Config{}, func(b *bench) {
		b.db.worker("w", store.Android)
		for i := range 3 {
			b.submits(fmt.Sprint("ios", i), store.IOS)
		}
		b.submits("android", store.Android)
		require.Equal(b, 4, b.queue.Stats().Pending)
		a := b.asks("w", 0)
		b.gotJob(a, "android")
		require.Zero(b, a.reply.QueueSize, "it took the only one that it could")
		require.Equal(b, 3, b.queue.Stats().Pending)
		require.Equal(b, int64(1), b.queue.Stats().Assigned)
	})
}

func TestParkedPoll(t *testing.T) {
	t.Parallel()

	inBubble(t, "a submit wakes the longest parked match at once", Config{}, func(b *bench) {
		b.db.worker("droid", store.Android)
		b.db.worker("first")
		b.db.worker("second")
		droid, first, second := b.asks("droid", time.Minute), b.asks("first", time.Minute), b.asks("second", time.Minute)
		require.Equal(b, 3, b.queue.Stats().Parked)
		before := time.Now()
		b.submits("x", store.IOS)
		b.gotJob(first, "x")
		require.Equal(b, before, first.at)
		require.False(b, droid.done() || second.done())
		b.submits("y", store.IOS)
		b.gotJob(second, "y")
		b.submits("z", store.Android)
		b.gotJob(droid, "z")
		require.Equal(b, int64(3), b.queue.Stats().Woken)
	})

	inBubble(t, "a notification of another controller wakes one", Config{}, func(b *bench) {
		b.db.worker("w")
		b.db.worker("v")
		w, v := b.asks("w", time.Minute), b.asks("v", time.Minute)
		b.db.submit("x", store.IOS)
		b.bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
		synctest.Wait()
		b.gotJob(w, "x")
		require.False(b, v.done())
		require.Equal(b, int64(1), b.queue.Stats().Woken)
	})

	for _, first := range []bool{false, true} {
		inBubble(t, fmt.Sprint("the echo of a submission wakes nobody, although it comes first: ", first), Config{}, func(b *bench) {
			for _, w := range []string{"u", "v", "w"} {
				b.db.worker(w)
				b.asks(w, time.Minute)
			}
			echo := func() { b.bus.PublishRemote(pubsub.JobAvailable, "ios", sender) }
			if first {
				echo()
			}
			b.submits("x", store.IOS)
			if !first {
				echo()
			}
			synctest.Wait()
			require.Equal(b, int64(1), b.queue.Stats().Woken)
			b.db.submit("y", store.IOS)
			b.bus.PublishRemote(pubsub.JobAvailable, "ios", sender+1)
			synctest.Wait()
			require.Equal(b, int64(2), b.queue.Stats().Woken, "that of another controller's does")
		})
	}

	inBubble(t, "requeued builds wake as many", Config{}, func(b *bench) {
		for i := range 3 {
			b.db.worker(fmt.Sprint(i))
			b.asks(fmt.Sprint(i), time.Minute)
		}
		b.db.submit("x", store.IOS)
		b.db.submit("y", store.Android)
		b.queue.Requeued([]store.BuildRef{{ID: "x", Platform: store.IOS, ClassID: ios}, {ID: "y", Platform: store.Android, ClassID: android}})
		b.queue.Requeued(nil)
		b.bus.PublishRemote(pubsub.JobAvailable, "ios", sender)
		b.bus.PublishRemote(pubsub.JobAvailable, "android", sender)
		synctest.Wait()
		require.Equal(b, 1, b.queue.Stats().Parked)
		require.Equal(b, int64(2), b.queue.Stats().Woken, "the echoes wake nobody")
	})

	inBubble(t, "a poll whose time is up gets a new token and no build", Config{}, func(b *bench) {
		b.db.worker("w")
		before := time.Now()
		a := b.sends(b.db.shows("w"), 30*time.Second)
		b.passes(29 * time.Second)
		require.False(b, a.done())
		b.passes(time.Second)
		b.gotNothing(a)
		require.Equal(b, 30*time.Second, a.at.Sub(before))
		require.NotEqual(b, "token-w", a.reply.Token)
		b.gotNothing(b.sends(b.shows(a.reply), 0))
	})

	inBubble(t, "a caller that leaves is replaced and loses nothing", Config{}, func(b *bench) {
		b.db.worker("gone")
		b.db.worker("w")
		gone := b.sends(b.db.shows("gone"), time.Minute)
		w := b.asks("w", time.Minute)
		reason := errors.New("client disconnected")
		gone.cancel(reason)
		synctest.Wait()
		require.ErrorIs(b, gone.err, reason)
		b.submits("x", store.IOS)
		b.gotJob(w, "x")
		require.Zero(b, b.queue.Stats().Parked)
	})

	inBubble(t, "a build that was assigned to a caller that left comes with the next poll", Config{}, func(b *bench) {
		b.db.worker("w")
		a := b.sends(b.db.shows("w"), time.Minute)
		gate := make(chan struct{})
		b.db.set(func(s *fakeStore) { s.gate = gate })
		b.submits("x", store.IOS)
		a.cancel(errors.New("client disconnected"))
		synctest.Wait()
		require.True(b, a.done())
		close(gate)
		synctest.Wait()
		again := b.sends(b.db.shows("w"), time.Minute)
		b.gotJob(again, "x")
		require.Equal(b, 1, b.db.handed["x"])
	})

	inBubble(t, "a busy worker's poll is woken once its slot is free", Config{}, func(b *bench) {
		b.db.worker("w")
		b.db.submit("x", store.IOS)
		b.gotJob(b.asks("w", 0), "x")
		b.db.set(func(s *fakeStore) { s.workers["w"].holds[0].building = true })
		a := b.asks("w", time.Minute)
		b.submits("y", store.IOS)
		require.False(b, a.done())
		b.db.finish("w")
		b.queue.Freed("w")
		synctest.Wait()
		b.gotJob(a, "y")
	})

	inBubble(t, "a worker that may get builds again still holds what it holds", Config{}, func(b *bench) {
		b.db.worker("w")
		b.db.submit("x", store.IOS)
		b.gotJob(b.asks("w", 0), "x")
		b.queue.Able("w")
		b.gotJob(b.asks("w", 0), "x")
	})

	inBubble(t, "the end of a build makes no row be read", Config{}, func(b *bench) {
		b.db.worker("w")
		b.submits("x", store.IOS)
		b.submits("y", store.IOS)
		b.gotJob(b.asks("w", 0), "x")
		b.db.finish("w")
		b.queue.Freed("w")
		b.gotJob(b.asks("w", 0), "y")
		require.Equal(b, 1, b.db.unknown, "the worker's first poll")
	})

	inBubble(t, "events are published and come in bunches", Config{}, func(b *bench) {
		events := make(chan pubsub.Event, 100)
		defer b.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.QueueUpdated, pubsub.BuildAssigned)()
		for i := range 5 {
			b.submits(fmt.Sprint(i), store.IOS)
		}
		b.passes(time.Second)
		require.Equal(b, Updated{Pending: 5, PendingIOS: 5, ByPlatform: map[store.Platform]int{store.IOS: 5}}, (<-events).Data)
		b.db.worker("w")
		b.asks("w", 0)
		assigned, _ := (<-events).Data.(Assigned)
		require.Positive(b, assigned.Waited)
		assigned.Waited = 0
		require.Equal(b, Assigned{BuildID: "0", WorkerID: "w", Platform: store.IOS, Attempt: 1}, assigned)
		b.passes(time.Second)
		require.Equal(b, Updated{Pending: 4, PendingIOS: 4, ByPlatform: map[store.Platform]int{store.IOS: 4}}, (<-events).Data)
		require.Empty(b, events)
	})
}

func TestABuildWakesTheWorkerWithItsCache(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(b *bench) {
		b.db.worker("cold")
		b.db.worker("warm")
		cold, warm := b.asks("cold", time.Minute), b.asks("warm", time.Minute)
		b.queue.Warm("warm", "app")
		b.db.submit("x", store.IOS)
		b.queue.Enqueued(store.Build{Platform: store.IOS, ClassID: ios, Labels: store.Labels{store.CacheLabel: "app"}})
		synctest.Wait()
		b.gotJob(warm, "x")
		require.False(b, cold.done())
		b.submits("y", store.IOS)
		b.gotJob(cold, "y")
	})
}

func TestSessions(t *testing.T) {
	t.Parallel()

	// meets lets worker w poll once, so that it is known, and returns its next poll.
	meets := func(b *bench) store.PollRequest {
		b.Helper()
		b.db.worker("w")
		a := b.sends(b.db.shows("w"), 0)
		b.gotNothing(a)
		return b.shows(a.reply)
	}
	batches := func(b *bench) (n int) { b.db.set(func(s *fakeStore) { n = len(s.batches) }); return n }

	inBubble(t, "polls of a known worker need no database while nothing is pending", Config{}, func(b *bench) {
		req := meets(b)
		for range 50 {
			a := b.sends(req, 0)
			b.gotNothing(a)
			req = b.shows(a.reply)
		}
		require.Equal(b, 1, batches(b))
		require.EqualValues(b, 50, b.queue.Stats().Idle)
		require.Equal(b, 1, b.queue.Stats().Sessions)
		b.submits("x", store.IOS)
		b.gotJob(b.sends(req, 0), "x")
	})

	t.Run("presence is written every 30 s, or a quarter of the worker time-out, or 10 s", func(t *testing.T) {
		t.Parallel()
		for name, c := range map[string]struct {
			timeout     time.Duration
			instance    string
			least, most int // in two minutes: a look every 2 s writes what is due
		}{"long": {5 * time.Minute, "", 4, 5}, "short": {20 * time.Second, "", 20, 25}, "of a process that names itself": {5 * time.Minute, "a", 10, 13}} {
			bubble(t, Config{}, func(b *bench) {
				b.queue.keepPresence(c.timeout)
				req := meets(b)
				for range 120 {
					req.Instance = c.instance
					a := b.sends(req, 0)
					req = b.shows(a.reply)
					b.passes(time.Second)
				}
				b.db.set(func(s *fakeStore) {
					require.LessOrEqual(b, s.heartbeats, c.most, name)
					require.GreaterOrEqual(b, s.heartbeats, c.least, name)
					require.GreaterOrEqual(b, s.workers["w"].Used, uint64(80), "with the counter")
				})
			})
		}
	})

	t.Run("what changed is read anew, at once when told and else within 2 s", func(t *testing.T) {
		t.Parallel()
		for _, told := range []bool{true, false} {
			bubble(t, Config{}, func(b *bench) {
				a := b.sends(meets(b), time.Minute)
				b.db.set(func(s *fakeStore) {
					s.workers["w"].Used += 1 << 20 // as when it unregisters elsewhere
				})
				if told {
					b.bus.PublishRemote(pubsub.WorkerChanged, "1", 0)
					synctest.Wait()
				} else {
					b.passes(2 * time.Second)
				}
				b.gotNothing(a)
				require.Equal(b, store.InvalidToken, store.CodeOf(b.sends(b.shows(a.reply), 0).err))
			})
		}
	})

	inBubble(t, "a worker that was deleted is refused", Config{}, func(b *bench) {
		a := b.sends(meets(b), time.Minute)
		b.db.set(func(s *fakeStore) { delete(s.workers, "w") })
		b.passes(2 * time.Second)
		require.Equal(b, store.InvalidToken, store.CodeOf(a.err))
		require.Zero(b, b.queue.Stats().Sessions)
	})

	inBubble(t, "nothing is judged from memory once notifications may have been missed", Config{}, func(b *bench) {
		req := meets(b)
		gate := make(chan struct{})
		b.bus.Publish(pubsub.ListenerResumed, nil)
		b.db.set(func(s *fakeStore) { s.gate = gate })
		synctest.Wait()
		a := b.sends(req, 0)
		require.False(b, a.done(), "it asks the database")
		close(gate)
		synctest.Wait()
		b.gotNothing(a)
	})
}

func TestAQueueThatNobodyUsesIsCountedHalfAsOften(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(b *bench) {
		counts := func(d time.Duration) (n int) {
			b.db.set(func(s *fakeStore) { s.counts = 0 })
			b.passes(d)
			b.db.set(func(s *fakeStore) { n = s.counts })
			return n
		}
		require.InDelta(b, 15, counts(time.Minute), 1)
		b.passes(100 * time.Millisecond)
		b.db.worker("w")
		w := b.asks("w", time.Minute)
		b.db.submit("x", store.IOS) // and no notification comes
		b.passes(2 * time.Second)
		b.gotJob(w, "x")
		require.InDelta(b, 30, counts(time.Minute), 1, "a worker was here")
	})
}

// Before a body is read, only what every submit would be refused for is refused.
func TestFullAgreesWithSubmit(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Limit: 10, Recount: time.Hour}, func(b *bench) {
		pend := func(n, unmatched int) {
			b.db.set(func(s *fakeStore) { s.unmatched = unmatched })
			for range n {
				b.submits(store.NewID(), store.IOS)
			}
			synctest.Wait()
		}
		require.NoError(b, b.queue.Full(b.Context()))
		pend(10, 0)
		require.NoError(b, b.queue.Full(b.Context()), "C17: one more than the limit fits")
		pend(1, 0)
		require.Equal(b, &store.Error{
			Code: store.QueueFull, Message: "Build queue full, try again later", Details: "The queue's limit is 10, and 11 builds wait.", RetryAfter: 5 * time.Second,
		}, b.queue.Full(b.Context()))
		pend(0, 5)
		require.NoError(b, b.queue.Full(b.Context()), "one of these does not count")
		pend(1, 5)
		require.Equal(b, store.QueueFull, store.CodeOf(b.queue.Full(b.Context())))
		b.db.set(func(s *fakeStore) { s.err = store.NewUnavailable("away", nil) })
		require.NoError(b, b.queue.Full(b.Context()), "it can't tell")
	})
}
