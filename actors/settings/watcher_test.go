package settings_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/actors/pubsub"
	"takt/actors/settings"
	"takt/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// saved is a database with one setting, in which a transaction takes as long as
// one likes.
type saved struct {
	mu    sync.Mutex // guards what follows
	value int
	err   error
	takes time.Duration
	reads int
}

func (s *saved) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// read returns the value as it was when the transaction began.
func (s *saved) read(ctx context.Context) (int, error) {
	s.mu.Lock()
	value, err, takes := s.value, s.err, s.takes
	s.reads++
	s.mu.Unlock()
	select {
	case <-time.After(takes):
		return value, err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (s *saved) write(value int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.value = value
		}
		return value, s.err
	}
}

// keeper is an actor with a setting.
type keeper struct {
	otp.Base
	w       *fixture
	watcher settings.Watcher[int]
}

func (k *keeper) Init(c *otp.Ctx) error {
	k.watcher = settings.Watcher[int]{Key: "keeper", Read: k.w.db.read, Apply: func(_ *otp.Ctx, v int) {
		k.w.db.set(func() { k.w.applied = append(k.w.applied, v) })
	}}
	k.watcher.Start(c, k.w.bus)
	return nil
}

func (k *keeper) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	value, ok := req.(int)
	if !ok {
		return k.Base.HandleCall(c, from, req)
	}
	return k.watcher.Change(c, from, k.w.db.write(value))
}

func (k *keeper) HandleCast(c *otp.Ctx, msg any) {
	if !k.watcher.Handle(c, msg) {
		k.w.db.set(func() { k.w.others = append(k.w.others, msg) })
	}
}

func (k *keeper) HandleInfo(c *otp.Ctx, msg any) { k.HandleCast(c, msg) }

// fixture is a keeper at work.
type fixture struct {
	*testing.T
	bus     pubsub.Bus
	db      saved
	proc    *otp.Proc
	applied []int // guarded by db.mu, as others
	others  []any
}

func inBubble(t *testing.T, name string, f func(w *fixture)) {
	t.Helper()
	otptest.Bubble(t, name, func(t otptest.T) {
		w := &fixture{T: t.T, bus: pubsub.New(), db: saved{value: 1, takes: 100 * time.Millisecond}}
		w.proc = otptest.Start(t, func() otp.Server { return &keeper{w: w} })
		f(w)
	})
}

// passes returns what was applied within d.
func (w *fixture) passes(d time.Duration) (applied []int) {
	<-time.After(d)
	synctest.Wait()
	w.db.set(func() { applied, w.applied = w.applied, nil })
	return applied
}

// save is another controller's change.
func (w *fixture) save(value int) {
	w.db.set(func() { w.db.value = value })
	w.bus.PublishRemote(pubsub.SettingsChanged, "keeper", 0)
}

func TestWatcher(t *testing.T) {
	t.Parallel()

	inBubble(t, "what is saved is read at the start and after each change", func(w *fixture) {
		require.Equal(w, []int{1}, w.passes(time.Second))
		w.save(2)
		require.Equal(w, []int{2}, w.passes(time.Second))
		w.bus.PublishRemote(pubsub.SettingsChanged, "other", 0)
		require.Empty(w, w.passes(time.Second))
		require.Equal(w, 2, w.db.reads)
		require.Empty(w, w.others)
	})

	inBubble(t, "missed notifications have it read", func(w *fixture) {
		w.passes(time.Second)
		w.db.set(func() { w.db.value = 2 })
		w.bus.Publish(pubsub.ListenerResumed, nil)
		require.Equal(w, []int{2}, w.passes(time.Second))
	})

	inBubble(t, "a change while it is being read has it read again, and the old one is not applied", func(w *fixture) {
		for i := range 5 { // during the first read
			w.save(2 + i)
		}
		require.Equal(w, []int{6}, w.passes(time.Second))
		require.Equal(w, 2, w.db.reads)
	})

	inBubble(t, "an outage is outlasted with what is in force", func(w *fixture) {
		w.passes(time.Second)
		for _, err := range []error{store.NewError(store.Unavailable, "away"), errors.New("a defect")} {
			w.db.set(func() { w.db.err = err })
			w.save(w.db.value + 1)
			require.Empty(w, w.passes(10*time.Second))
			w.db.set(func() { w.db.err = nil })
			require.Equal(w, []int{w.db.value}, w.passes(2*time.Second))
		}
		w.db.set(func() { w.db.takes = time.Hour })
		w.save(9)
		require.Empty(w, w.passes(5*time.Second))
		w.db.set(func() { w.db.takes = 0 })
		require.Equal(w, []int{9}, w.passes(2*time.Second))
	})

	inBubble(t, "what the actor changes is in force when it is answered", func(w *fixture) {
		w.passes(time.Second)
		_, err := otp.Call[any](w.Context(), w.proc, 7)
		require.NoError(w, err)
		require.Equal(w, []int{7}, w.passes(0))
		require.Equal(w, []int{7}, w.passes(time.Second), "and read back")
	})

	inBubble(t, "of two changes at once the later one to be saved counts", func(w *fixture) {
		w.passes(time.Second)
		_, err := otp.Call[any](w.Context(), w.proc, 7)
		require.NoError(w, err)
		w.save(8) // the read after 7 may not have seen it
		require.Equal(w, []int{7, 8}, w.passes(time.Second))
	})

	inBubble(t, "a change that fails changes nothing and says so", func(w *fixture) {
		w.passes(time.Second)
		away := store.NewError(store.Unavailable, "away")
		w.db.set(func() { w.db.err = away })
		_, err := otp.Call[any](w.Context(), w.proc, 7)
		require.ErrorIs(w, err, away)
		require.Empty(w, w.passes(time.Second))
	})

	inBubble(t, "what is not its own is left to the actor", func(w *fixture) {
		other := pubsub.Event{Topic: pubsub.JobAvailable, Data: "keeper"}
		otp.Cast(w.proc, other)
		otp.Cast(w.proc, "what")
		w.passes(time.Second)
		require.Equal(w, []any{other, "what"}, w.others)
	})
}
