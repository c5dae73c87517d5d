package heijunka

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/store"
)

const top = "takt/heijunka"

// everyChild lists the processes of heijunka that have names.
func everyChild() []string {
	return []string{
		top, top + "/pool_sup", top + "/load_regulator", top + "/balancer", top + "/burst_handler",
		top + "/pool_sup/b", top + "/pool_sup/b/workers", top + "/pool_sup/b/manager",
	}
}

func TestAnOrderlyRestartCostsNoRequest(t *testing.T) {
	t.Parallel()
	for _, path := range everyChild() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			inBubble(t, separate(steady(3, "a", "b")), func(w *world) {
				running := append(w.holdAll("a", 2), w.holdAll("b", 3)...)
				waiting := w.holdAll("b", 2)
				passes(time.Millisecond)
				require.NoError(w, w.restart(path))
				passes(time.Millisecond)
				require.EqualValues(w, 7, w.h.gate.load.Load(), "old holders count")
				busy := 0
				for _, p := range w.h.Status().Pools {
					require.Equal(w, 3, p.Workers)
					busy += p.Busy
				}
				require.Equal(w, 5, busy)
				w.end(append(running, waiting...))
				w.requireNothingHeld()
				require.NoError(w, w.serve(w.Context(), "b", time.Second))
			})
		})
	}
}

func TestACrashOfAnyActorComesBackAndCountsOn(t *testing.T) {
	t.Parallel()
	for _, path := range everyChild() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			inBubble(t, steady(3, "a", "b"), func(w *world) {
				running := w.holdAll("b", 3)
				passes(time.Millisecond)
				proc := w.sys.Whereis(path)
				proc.Kill()
				// For a moment there may be two managers, the dead supervisor's and its
				// successor's, who both start what is missing.
				passes(10 * time.Second)
				require.NotSame(w, proc, w.sys.Whereis(path))
				for _, p := range w.h.Status().Pools {
					require.Equal(w, 3, p.Workers)
				}
				// Workers whose supervisor was killed die with it, and cost their
				// requests; all other crashes cost nothing.
				for _, r := range running {
					close(r.letGo)
					if err := <-r.done; err != nil {
						require.Equal(w, store.Unavailable, store.CodeOf(err))
					}
				}
				synctest.Wait()
				w.requireNothingHeld()
				require.NoError(w, w.serve(w.Context(), "b", time.Second))
			})
		})
	}
}

func TestACrashedManagerLosesNoRequest(t *testing.T) {
	t.Parallel()
	inBubble(t, steady(3, "a", "b"), func(w *world) {
		running := w.holdAll("b", 3)
		passes(time.Millisecond)
		for range 5 {
			w.sys.Whereis(top + "/pool_sup/b/manager").Kill()
			passes(time.Second)
		}
		require.Equal(w, 3, w.h.Pool("b").Status().Workers)
		w.end(running)
		w.requireNothingHeld()
	})
}

func TestACrashedWorkerCostsOneRequestAndIsReplaced(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(3, "a", "b")), func(w *world) {
		p := w.h.Pool("b")
		running := w.holdAll("b", 3)
		passes(time.Millisecond)
		for proc := range p.lanes.workers() {
			proc.Kill()
			break
		}
		synctest.Wait()
		failed := 0
		for _, r := range running {
			select {
			case err := <-r.done:
				failed++
				require.Equal(w, store.Unavailable, store.CodeOf(err))
				require.ErrorIs(w, err, errLaneLost)
			default:
			}
		}
		require.Equal(w, 1, failed)
		s := p.Status()
		require.Equal(w, 2, s.Workers)
		require.EqualValues(w, 1, s.Crashed)
		passes(p.h.cfg.Health.BackoffMin - time.Millisecond)
		require.Equal(w, 2, p.Status().Workers, "not at once")
		passes(2 * time.Millisecond)
		require.Equal(w, 3, p.Status().Workers)

		// A run of crashes is answered slower and slower, and ends no supervisor.
		supervisor := w.sys.Whereis(top + "/pool_sup/b/workers")
		var delays []time.Duration
		for range 10 {
			for proc := range p.lanes.workers() {
				proc.Kill()
				break
			}
			synctest.Wait()
			begin := time.Now()
			for p.Status().Workers < 3 {
				passes(10 * time.Millisecond)
			}
			delays = append(delays, time.Since(begin))
		}
		require.Less(w, delays[0], 300*time.Millisecond)
		require.InDelta(w, 30*time.Second, delays[9], float64(time.Second))
		require.Same(w, supervisor, w.sys.Whereis(top+"/pool_sup/b/workers"))
		for _, r := range running {
			close(r.letGo)
		}
		synctest.Wait()
		w.requireNothingHeld()
	})
}

func TestAWorkerThatDoesNotAnswerIsReplaced(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(3, "a", "b"))
	cfg.Health.Timeout = 50 * time.Millisecond
	w := start(t, cfg)
	defer w.stop()
	p := w.h.Pool("b")
	e, err := p.HealthCheck(t.Context())
	require.NoError(t, err)
	require.Equal(t, Examination{Workers: 3}, e)

	// A worker looks at its lane's pool when it answers: this one finds another
	// pool there, and that locked.
	locked := newLanes(PoolConfig{}, time.Minute, time.Now())
	proc, err := otp.StartDynamic(t.Context(), p.workers, &lane{pool: locked})
	require.NoError(t, err)
	require.True(t, p.lanes.up(&lane{pool: p.lanes}, proc))
	locked.mu.Lock()
	e, err = p.HealthCheck(t.Context())
	require.NoError(t, err)
	require.Equal(t, Examination{Workers: 4, Failed: 1}, e)
	<-proc.Done()
	require.ErrorIs(t, proc.Reason(), otp.ErrKilled)
	locked.mu.Unlock()
}

func TestWithoutWorkersRequestsWaitForTheRestartGap(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(3, "a", "b")), func(w *world) {
		ctx := w.Context()
		require.NoError(w, otp.TerminateChild(ctx, w.sys.Ref("takt"), "heijunka"))
		begin := time.Now()
		err := w.serve(ctx, "b", 0)
		require.Equal(w, store.Unavailable, store.CodeOf(err))
		require.Equal(w, w.h.cfg.RestartGap, time.Since(begin))
		_, err = w.h.Pool("b").ScaleUp(ctx, 1)
		require.Equal(w, store.Unavailable, store.CodeOf(err))

		bridged := make(chan error, 1)
		go func() { bridged <- w.serve(context.Background(), "b", 0) }()
		passes(w.h.cfg.RestartGap / 2)
		_, err = otp.RestartChild(ctx, w.sys.Ref("takt"), "heijunka")
		require.NoError(w, err)
		require.NoError(w, <-bridged)
		w.requireNothingHeld()
	})
}

func TestAWaiterThatGivesUpLeaksNoWorker(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(1, "a", "b"))
	cfg.Wait = 2 * time.Second
	cfg.Pools[1].Queue = 3
	inBubble(t, cfg, func(w *world) {
		p := w.h.Pool("b")
		first := w.hold("b")
		passes(time.Millisecond)
		waiting := w.holdAll("b", 3)
		passes(time.Millisecond)
		requireOverload(w, w.serve(w.Context(), "b", 0), RuleQueue, 3, 3)

		waiting[1].cancel(errDisconnected)
		require.ErrorIs(w, <-waiting[1].done, errDisconnected)
		require.Equal(w, 2, p.Status().Waiting)
		passes(2 * time.Second)
		for _, i := range []int{0, 2} {
			var o *OverloadError
			require.ErrorAs(w, <-waiting[i].done, &o)
			require.Equal(w, RuleWait, o.Rule)
		}
		require.NoError(w, first.end())
		require.EqualValues(w, 2, p.Status().Expired)
		require.EqualValues(w, 1, p.Status().Refused)
		require.Equal(w, 3, p.Status().Peak)
		w.requireNothingHeld()

		// First come, first served; the last lane that was returned is taken.
		hold := w.hold("b")
		passes(time.Millisecond)
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				_ = w.h.Do(context.Background(), Work{Domain: "b"}, func(context.Context) error { order <- i; return nil })
			}()
			passes(time.Millisecond)
		}
		require.NoError(w, hold.end())
		synctest.Wait()
		require.Equal(w, []int{0, 1, 2}, []int{<-order, <-order, <-order})
		w.requireNothingHeld()
	})
}

func TestOverflowComesAtOnceAndGoesWhenIdle(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(2, "a", "b"))
	cfg.Pools[1].Overflow = 6
	inBubble(t, cfg, func(w *world) {
		p := w.h.Pool("b")
		load := w.holdAll("b", 12)
		passes(time.Millisecond)
		require.Equal(w, 8, p.Status().Workers)
		require.Equal(w, 4, p.Status().Waiting)
		w.end(load)
		require.Equal(w, 8, p.Status().Workers)
		passes(w.h.cfg.Scaling.Linger - time.Second)
		require.Equal(w, 8, p.Status().Workers)
		passes(3 * time.Second)
		require.Equal(w, 2, p.Status().Workers)
		w.requireNothingHeld()
	})
}

func TestSlotsAndTokensOfProcessesComeBackWhenTheyEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, steady(2, "a", "b"), func(w *world) {
		ctx := w.Context()
		p := w.h.Pool("b")
		holder := func() *otp.Proc {
			proc, err := w.sys.Start("", func() otp.Server { return &idler{} })
			require.NoError(w, err)
			return proc
		}
		dies, lives := holder(), holder()
		token, err := w.h.RequestAdmission("b", Metadata{Holder: dies})
		require.NoError(w, err)
		slot, err := p.GetWorker(ctx, dies)
		require.NoError(w, err)
		other, err := p.GetWorker(ctx, lives)
		require.NoError(w, err)
		require.NotSame(w, slot.Worker(), other.Worker())
		require.Equal(w, 2, p.Status().Busy)

		dies.Kill()
		synctest.Wait()
		require.Equal(w, 1, p.Status().Busy)
		require.Zero(w, w.h.gate.load.Load())
		require.False(w, w.h.Release(token))
		require.False(w, p.ReturnWorker(slot))
		require.True(w, p.ReturnWorker(other))
		require.False(w, p.ReturnWorker(other))
		again, err := p.GetWorker(ctx, lives)
		require.NoError(w, err)
		require.False(w, p.ReturnWorker(other), "another holder's")
		require.True(w, p.ReturnWorker(again))
		lives.Kill()
		synctest.Wait()
		w.requireNothingHeld()
	})
}

func TestFailuresShowInHealth(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(2, "a", "b")), func(w *world) {
		p := w.h.Pool("b")
		do := func(err error) error {
			return w.h.Do(w.Context(), Work{Domain: "b"}, func(context.Context) error { return err })
		}
		for range 19 {
			require.NoError(w, do(nil))
		}
		refused := store.NewError(store.NotFound, "no such thing")
		require.Equal(w, refused, do(refused))
		require.Equal(w, Healthy, p.Status().Health, "a client's mistake is none of ours")
		require.ErrorIs(w, do(errDefect), errDefect)
		require.Equal(w, Healthy, p.Status().Health, "1 of 21 is below 5 %")
		var crash *otp.PanicError
		require.ErrorAs(w, w.h.Do(w.Context(), Work{Domain: "b"}, func(context.Context) error { panic("boom") }), &crash)
		require.Equal(w, Degraded, p.Status().Health)
		require.InDelta(w, 2.0/22, p.Status().ErrorRate, 1e-9)
		passes(2 * time.Minute)
		require.Equal(w, Healthy, p.Status().Health, "it is forgotten")
		require.EqualValues(w, 2, p.Status().Failed)
		w.requireNothingHeld()
	})
}
