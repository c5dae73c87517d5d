package heijunka

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/store"
)

const (
	top      = "takt/heijunka"
	requests = "takt/request_sup"
)

// actors lists the processes of heijunka. None of them is in a request's way.
func actors() []string {
	return []string{
		top, top + "/pool_sup", top + "/pool_sup/b", top + "/load_regulator", top + "/balancer", top + "/burst_handler",
	}
}

// Whatever of heijunka restarts, in order or by a crash, no request ends, no
// place is lost and none is counted twice; who waits goes on waiting.
func TestARestartOfAnyActorCostsNothing(t *testing.T) {
	t.Parallel()
	for _, path := range actors() {
		for how, restart := range map[string]func(w *fixture) error{
			"in order":   func(w *fixture) error { return w.restart(path) },
			"by a crash": func(w *fixture) error { w.sys.Whereis(path).Kill(); return nil },
		} {
			t.Run(path+" "+how, func(t *testing.T) {
				t.Parallel()
				inBubble(t, separate(steady(3, "a", "b")), func(w *fixture) {
					running := append(w.holdAll("a", 2), w.holdAll("b", 3)...)
					waiting := w.holdAll("b", 2)
					passes(time.Millisecond)
					before := w.sys.Whereis(path)
					for range 3 {
						require.NoError(w, restart(w))
						passes(time.Second)
					}
					require.NotSame(w, before, w.sys.Whereis(path))
					require.Equal(w, 7, w.load())
					s := w.h.Status()
					require.Equal(w, []int{3, 2, 3, 3}, []int{s.Pools[0].Workers, s.Pools[0].Busy, s.Pools[1].Workers, s.Pools[1].Busy})
					require.Equal(w, 2, s.Pools[1].QueueLength)
					require.Zero(w, s.Pools[0].Crashed+s.Pools[1].Crashed)
					w.end(append(running, waiting...))
					w.requireNothingHeld()
					require.NoError(w, w.serve(w.Context(), "b", time.Second))
				})
			})
		}
	}
}

// While heijunka is away requests are levelled by what it decided last.
func TestWithoutItsActorsRequestsAreLevelledOn(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(3, "a", "b")), func(w *fixture) {
		ctx := w.Context()
		require.NoError(w, otp.TerminateChild(ctx, w.sys.Ref("takt"), "heijunka"))
		running := w.holdAll("b", 3)
		passes(time.Millisecond)
		waiting := w.hold("b")
		passes(time.Millisecond)
		require.Equal(w, 1, w.pool("b").status().QueueLength)
		begin := time.Now()
		require.Equal(w, store.Unavailable, store.CodeOf(w.h.ResetLimits(ctx)))
		require.Equal(w, restartGap, time.Since(begin))
		w.end(append(running, waiting))
		w.requireNothingHeld()
	})
}

func TestACrashOfARequestGivesItsPlaceAndTokenBack(t *testing.T) {
	t.Parallel()
	for how, crash := range map[string]func(){
		"panic":  func() { panic("a defect") },
		"goexit": runtime.Goexit,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			inBubble(t, separate(steady(1, "a", "b")), func(w *fixture) {
				done := make(chan error, 1)
				go func() {
					defer close(done) // all that Goexit leaves
					done <- w.h.Do(context.Background(), store.Work{Domain: "b"}, func(context.Context) error { crash(); return nil })
				}()
				synctest.Wait()
				if err := <-done; how == "panic" {
					var crash *otp.PanicError
					require.ErrorAs(w, err, &crash)
				}
				require.EqualValues(w, 1, w.pool("b").status().Crashed)
				require.EqualValues(w, 1, w.pool("b").status().Failed)
				w.requireNothingHeld()
				require.NoError(w, w.serve(w.Context(), "b", 0))
			})
		})
	}
}

// A request that does not end when it has to is leaked: dead for the tree,
// with its place taken until it returns.
func TestALeakedRequestKeepsItsPlace(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(1, "a", "b")), func(w *fixture) {
		letGo, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- w.h.Do(context.Background(), store.Work{Domain: "b"}, func(context.Context) error { <-letGo; return nil })
		}()
		synctest.Wait()
		children, err := otp.WhichChildren(w.Context(), w.sys.Ref(requests+"/b"))
		require.NoError(w, err)
		children[0].Proc.Kill()
		passes(time.Second)
		require.False(w, children[0].Proc.Alive())
		require.Equal(w, 1, w.sys.Leaked())
		require.Equal(w, 1, w.pool("b").status().Busy)
		require.Equal(w, 1, w.load())
		close(letGo)
		require.Equal(w, store.Unavailable, store.CodeOf(<-done))
		require.Zero(w, w.sys.Leaked())
		w.requireNothingHeld()
	})
}

// A request that runs past its route's limit is shown while it does and counted
// when it ends.
func TestARequestPastItsLimitIsShownAndCounted(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(2, "a", "b")), func(w *fixture) {
		letGo, done := make(chan struct{}), make(chan error, 1)
		go func() {
			work := store.Work{Domain: "b", Route: "/slow", ID: "7", Limit: time.Minute}
			done <- w.h.Do(context.Background(), work, func(context.Context) error { <-letGo; return nil })
		}()
		passes(time.Minute)
		require.Zero(w, w.pool("b").total.Overran+int64(w.h.Status().Pools[1].Overdue))
		passes(time.Second)
		s := w.h.Status()
		require.Equal(w, 1, s.Pools[1].Overdue)
		require.True(w, s.Regulator.Oldest[0].Overdue)
		close(letGo)
		require.NoError(w, <-done)
		require.Zero(w, w.h.Status().Pools[1].Overdue)
		require.EqualValues(w, 1, w.h.Status().Pools[1].Overran)
		require.NoError(w, w.serve(w.Context(), "b", time.Second))
		require.EqualValues(w, 1, w.h.Status().Pools[1].Overran)
	})
}

func TestAWaiterThatGivesUpLeaksNoPlace(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(1, "a", "b"))
	cfg.Wait = 2 * time.Second
	cfg.Pools[1].Queue = 3
	inBubble(t, cfg, func(w *fixture) {
		p := w.pool("b")
		first := w.hold("b")
		passes(time.Millisecond)
		waiting := w.holdAll("b", 3)
		passes(time.Millisecond)
		requireOverload(w, w.serve(w.Context(), "b", 0), RuleQueue, 3, 3)

		waiting[1].cancel(errDisconnected)
		require.ErrorIs(w, <-waiting[1].done, errDisconnected)
		require.Equal(w, 2, p.status().QueueLength)
		passes(2 * time.Second)
		for _, i := range []int{0, 2} {
			var o *store.Error
			require.ErrorAs(w, <-waiting[i].done, &o)
			require.Equal(w, RuleWait, o.Overload.Rule)
		}
		require.NoError(w, first.end())
		require.EqualValues(w, 2, p.status().Expired)
		require.EqualValues(w, 1, p.status().Refused)
		require.Equal(w, 3, p.status().QueuePeak)
		w.requireNothingHeld()
	})
}

func TestOverflowComesAtOnceAndGoesWhenIdle(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(2, "a", "b"))
	cfg.Pools[1].Overflow = 6
	inBubble(t, cfg, func(w *fixture) {
		p := w.pool("b")
		load := w.holdAll("b", 12)
		passes(time.Millisecond)
		require.Equal(w, 8, p.status().Workers)
		require.Equal(w, 4, p.status().QueueLength)
		w.end(load)
		require.Equal(w, 8, p.status().Workers)
		passes((lingers - 1) * time.Second)
		require.Equal(w, 8, p.status().Workers)
		passes(3 * time.Second)
		require.Equal(w, 2, p.status().Workers)
		w.requireNothingHeld()
	})
}

func TestFailuresShowInHealth(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(2, "a", "b")), func(w *fixture) {
		p := w.pool("b")
		do := func(err error) error {
			return w.h.Do(w.Context(), store.Work{Domain: "b"}, func(context.Context) error { return err })
		}
		for range 19 {
			require.NoError(w, do(nil))
		}
		refused := store.NewError(store.NotFound, "no such thing")
		require.Equal(w, refused, do(refused))
		require.Equal(w, store.PoolHealthy, p.status().Health, "a client's mistake is none of ours")
		require.ErrorIs(w, do(errDefect), errDefect)
		require.Equal(w, store.PoolHealthy, p.status().Health, "1 of 21 is below 5 %")
		var crash *otp.PanicError
		require.ErrorAs(w, w.h.Do(w.Context(), store.Work{Domain: "b"}, func(context.Context) error { panic("boom") }), &crash)
		require.Equal(w, store.PoolDegraded, p.status().Health)
		require.InDelta(w, 2.0/22, p.status().ErrorRate, 1e-9)
		passes(2 * time.Minute)
		require.Equal(w, store.PoolHealthy, p.status().Health, "it is forgotten")
		require.EqualValues(w, 2, p.status().Failed)
		w.requireNothingHeld()
	})
}
