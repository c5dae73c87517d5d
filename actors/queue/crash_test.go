package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// fuse makes an actor crash at the next message of one type, before or after
// it has been handled.
type fuse struct {
	at    string
	after bool
	lit   atomic.Bool
}

func (f *fuse) burn(msg any, handle func()) {
	_, name, _ := strings.Cut(fmt.Sprintf("%T", msg), ".")
	f.burnAt(name, handle)
}

func (f *fuse) burnAt(name string, handle func()) {
	bang := f.lit.Load() && name == f.at
	if bang && !f.after {
		f.lit.Store(false)
		panic("before " + f.at)
	}
	handle()
	if bang {
		f.lit.Store(false)
		panic("after " + f.at)
	}
}

// shakyManager is a manager with a fuse.
type shakyManager struct {
	*manager
	fuse *fuse
}

func (s *shakyManager) Init(c *otp.Ctx) error {
	err := s.manager.Init(c)
	begin, done := s.reads.Begin, s.reads.Done
	s.reads.Begin = func() (work func(context.Context) (recounted, error)) {
		s.fuse.burnAt("read", func() { work = begin() })
		return work
	}
	s.reads.Done = func(c *otp.Ctx, r recounted, err error) (next time.Duration) {
		s.fuse.burnAt("recounted", func() { next = done(c, r, err) })
		return next
	}
	return err
}

func (s *shakyManager) HandleBatch(c *otp.Ctx, msgs []otp.Msg) {
	for _, m := range msgs {
		s.fuse.burn(m.Body, func() { s.manager.HandleBatch(c, []otp.Msg{m}) })
	}
}

func TestCrashInEveryMessage(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"poll", "leave", "expired", "enqueued", "freed", "batch", "recounted", "read", "showNow", "Event",
	} {
		for _, after := range []bool{false, true} {
			inTime(t, fmt.Sprintf("%s, after it %t", at, after), func(t bubbled) { crashAt(t.T, at, after) })
		}
	}
}

// crashAt lets workers build all that there is while the actor crashes once.
func crashAt(t *testing.T, at string, after bool) {
	t.Helper()
	const workers, builds = 4, 20
	b := &bench{T: t, sys: otp.New(otp.Options{Logger: zerolog.Nop()}), bus: pubsub.New(), db: newFakeStore()}
	b.tokens = store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32))
	b.queue = New(b.sys, b.db, b.bus, b.tokens, Config{})
	f := &fuse{at: at, after: after}
	spec := b.queue.Spec()
	spec.Server = func() otp.Server { return &shakyManager{manager: &manager{q: b.queue}, fuse: f} }
	_, err := b.sys.StartRoot(t.Context(), "takt", otp.SupSpec{Intensity: 3, Children: []otp.ChildSpec{b.bus.Spec(), spec}})
	require.NoError(t, err)
	defer func() { b.sys.Shutdown(context.Background()); synctest.Wait() }()
	synctest.Wait()
	first, bystander := b.sys.Whereis(managerName), b.sys.Whereis("takt/pubsub")
	f.lit.Store(true)

	ctx, cancel := context.WithCancelCause(t.Context())
	var fleet sync.WaitGroup
	defer func() { cancel(nil); fleet.Wait() }()
	for i := range workers {
		id := fmt.Sprint("w", i)
		b.db.worker(id)
		fleet.Go(func() { b.works(ctx, id) })
	}
	for i := range builds {
		b.submits(fmt.Sprint("b", i), store.IOS)
		b.bus.PublishRemote(pubsub.JobAvailable, "ios", 0) // the echo of the submit's NOTIFY
		b.queue.Freed("w0")
		b.passes(700 * time.Millisecond)
	}
	b.passes(time.Minute)

	require.False(t, f.lit.Load(), "the message came")
	require.NotSame(t, first, b.sys.Whereis(managerName), "it crashed")
	require.Same(t, bystander, b.sys.Whereis("takt/pubsub"), "nobody else did")
	b.db.set(func(s *fakeStore) {
		require.Empty(t, s.pending)
		for i := range builds {
			require.Equal(t, 1, s.handed[fmt.Sprint("b", i)], "each build was handed out once")
		}
		for id, w := range s.workers {
			require.Empty(t, w.holds, "worker %s has nothing that it does not know of", id)
		}
	})
}

// works is a worker that polls with its last token, gives up now and then, and
// finishes what it gets.
func (b *bench) works(ctx context.Context, id string) {
	req := b.db.shows(id)
	for n := 0; ctx.Err() == nil; n++ {
		poll, cancel := context.WithTimeoutCause(ctx, time.Duration(3+n%3)*time.Second, errors.New("patience"))
		reply, err := b.queue.Poll(poll, req, time.Duration(2+n%5)*time.Second)
		cancel()
		switch {
		case err != nil:
			<-time.After(10 * time.Millisecond)
		case reply.Jobs.First() != nil:
			<-time.After(50 * time.Millisecond)
			b.db.finish(id)
			b.queue.Freed(id)
			req = b.shows(reply)
		default:
			if reply.Token != req.Presented { // superseded
				req = b.shows(reply)
			}
		}
	}
}

// shakyMonitor is a heartbeatMonitor with a fuse.
type shakyMonitor struct {
	*heartbeatMonitor
	fuse *fuse
}

// Init puts the fuse into the jobs too.
func (s *shakyMonitor) Init(c *otp.Ctx) error {
	h := s.heartbeatMonitor
	err := h.Init(c)
	h.pulses.Begin = sparks(s.fuse, "pulse", h.pulse)
	h.sweeps.Begin = sparks(s.fuse, "sweep", h.sweep)
	h.pulses.Done = func(c *otp.Ctx, a answered, err error) (next time.Duration) {
		s.fuse.burnAt("answered", func() { next = h.answered(c, a, err) })
		return next
	}
	h.sweeps.Done = func(c *otp.Ctx, r store.SweepResult, err error) (next time.Duration) {
		s.fuse.burnAt("swept", func() { next = h.swept(c, r, err) })
		return next
	}
	h.settings.Apply = func(c *otp.Ctx, t store.Timeouts) { s.fuse.burnAt("found", func() { h.found(c, t) }) }
	return err
}

// sparks puts the fuse into the beginning of a job.
func sparks[R any](f *fuse, name string, begin func() func(context.Context) (R, error)) func() func(context.Context) (R, error) {
	return func() (work func(context.Context) (R, error)) { f.burnAt(name, func() { work = begin() }); return work }
}

func (s *shakyMonitor) HandleCall(c *otp.Ctx, from otp.From, req any) (reply any, err error) {
	s.fuse.burn(req, func() { reply, err = s.heartbeatMonitor.HandleCall(c, from, req) })
	return reply, err
}

func (s *shakyMonitor) HandleCast(c *otp.Ctx, msg any) {
	s.fuse.burn(msg, func() { s.heartbeatMonitor.HandleCast(c, msg) })
}

func (s *shakyMonitor) HandleInfo(c *otp.Ctx, msg any) {
	s.fuse.burn(msg, func() { s.heartbeatMonitor.HandleInfo(c, msg) })
}

func TestMonitorCrashInEveryMessage(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"askTimeouts", "update", "pulse", "answered", "sweep", "swept", "Event", "found",
		"written[takt/store.Timeouts]",
	} {
		onWatch(t, at, func(w *watch) {
			f := &fuse{at: at}
			f.lit.Store(true)
			require.NoError(w, otp.TerminateChild(w.Context(), w.sys.Ref("takt"), "heartbeat_monitor"))
			require.NoError(w, otp.DeleteChild(w.Context(), w.sys.Ref("takt"), "heartbeat_monitor"))
			spec := w.monitor.Spec()
			spec.Server = func() otp.Server { return &shakyMonitor{&heartbeatMonitor{m: w.monitor}, f} }
			_, err := otp.StartChild(w.Context(), w.sys.Ref("takt"), spec)
			require.NoError(w, err)

			mine := store.Timeouts{CheckInterval: time.Second, BuildTimeout: 5 * time.Second, WorkerTimeout: 5 * time.Second}
			w.bus.Publish(pubsub.ListenerResumed, nil)
			w.passes(12 * time.Second)
			for range 10 { // until it is out
				_, err = w.monitor.Timeouts(w.Context())
				if err == nil {
					err = w.monitor.Update(w.Context(), mine)
				}
				synctest.Wait()
			}
			require.False(w, f.lit.Load(), "it crashed")
			require.True(w, err == nil || store.CodeOf(err) == store.Unavailable)
			require.NoError(w, w.monitor.Update(w.Context(), mine))
			before := w.sweeps()
			w.passes(12 * time.Second)
			require.Greater(w, w.sweeps(), before)
		})
	}
}
