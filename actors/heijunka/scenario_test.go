package heijunka

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestSpikeScalesUpAndItsEndScalesDown(t *testing.T) {
	t.Parallel()
	cfg := steady(5, "a", "b")
	cfg.Pools[1].Max, cfg.Pools[1].Min = 8, 3
	cfg.balanceEvery = time.Hour
	inBubble(t, cfg, func(w *fixture) {
		p := w.pool("b")
		require.Equal(w, 5, p.status().Workers)
		spike := w.holdAll("b", 40)
		passes(time.Millisecond)
		workers := func() int { return p.status().Workers }
		for _, want := range []int{6, 7, 8, 8} {
			before := workers()
			passes(4900 * time.Millisecond)
			require.Equal(w, before, workers(), "one step in 5 s")
			passes(100 * time.Millisecond)
			require.Equal(w, want, workers())
		}
		s := p.status()
		require.EqualValues(w, 3, s.Scalings)
		require.NotNil(w, s.LastScalingAt)
		require.Equal(w, store.PoolCritical, s.Health)
		w.end(spike)
		passes(time.Minute)
		require.Equal(w, 3, workers())
		w.requireNothingHeld()
	})
}

func TestSustainedOverloadAdmitsTheLimitAndNotOneMore(t *testing.T) {
	t.Parallel()
	cfg := steady(10, "urgent", "usual")
	inBubble(t, cfg, func(w *fixture) {
		usual := w.holdAll("usual", 300)
		passes(time.Second)
		s := w.h.Status().Regulator
		require.Equal(w, 80, s.Load)
		require.EqualValues(w, 220, s.RejectedRegular)
		require.Equal(w, store.LoadCritical, s.Level)
		requireOverload(w, w.serve(w.Context(), "usual", 0), RuleRegular, 80, 80)

		urgent := w.holdAll("urgent", 50)
		passes(time.Second)
		s = w.h.Status().Regulator
		require.Equal(w, 100, s.Load)
		require.EqualValues(w, 30, s.RejectedHard)
		requireOverload(w, w.serve(w.Context(), "urgent", 0), RuleHard, 100, 100)
		require.Len(w, s.Oldest, 10)
		require.Equal(w, "usual", s.Oldest[0].Domain)
		require.EqualValues(w, 2000, s.Oldest[0].AgeMS)

		// Each token that comes back lets one in, and one only.
		for _, r := range append(usual, urgent...) {
			r.cancel(context.Canceled)
		}
		for _, r := range append(usual, urgent...) {
			require.Error(w, <-r.done)
		}
		again := w.holdAll("usual", 81)
		passes(time.Second)
		require.Equal(w, 80, w.load())
		for _, r := range again {
			r.cancel(context.Canceled)
			require.Error(w, <-r.done)
		}
		synctest.Wait()
		w.requireNothingHeld()
	})
}

func TestEvenLoadIsBalanced(t *testing.T) {
	t.Parallel()
	cfg := steady(20, "a", "b", "c")
	cfg.Limits = store.HeijunkaLimits{Soft: 900, Hard: 1000}
	inBubble(t, cfg, func(w *fixture) {
		load := slices.Concat(w.holdAll("a", 10), w.holdAll("b", 9), w.holdAll("c", 11))
		passes(time.Minute)
		require.Greater(w, w.h.Status().Balance.Coefficient, 0.8)
		require.Zero(w, w.h.Status().Balance.Moves)
		w.end(load)
	})
}

func TestOverloadedPoolGainsWorkersFromTheIdleOne(t *testing.T) {
	t.Parallel()
	cfg := separate(steady(10, "busy", "half", "idle"))
	cfg.scaleEvery = time.Hour
	for i := range cfg.Pools {
		cfg.Pools[i].Min, cfg.Pools[i].Max = 8, 20
	}
	inBubble(t, cfg, func(w *fixture) {
		w.h.gate.set(store.HeijunkaLimits{Soft: 900, Hard: 1000})
		load := append(w.holdAll("busy", 30), w.holdAll("half", 5)...)
		passes(time.Millisecond)
		dry, err := w.h.Rebalance(true)
		require.NoError(w, err)
		require.Equal(w, []string{"idle", "busy"}, []string{dry.From, dry.To})
		require.Contains(w, dry.Reason, "busy has 3.00 requests per place, idle 0.00")
		require.False(w, dry.Done)
		sizes := func() (all []int) {
			for _, p := range w.h.Status().Pools {
				all = append(all, p.Workers)
			}
			return all
		}
		require.Equal(w, []int{10, 10, 10}, sizes(), "a dry run changes nothing")
		passes(5 * time.Second)
		require.Equal(w, []int{11, 10, 9}, sizes())
		require.Less(w, w.h.Status().Balance.Coefficient, 0.8)
		require.Equal(w, 11, w.pool("busy").status().Busy, "the new worker works")
		passes(29 * time.Second)
		require.Equal(w, []int{11, 10, 9}, sizes(), "not twice in 30 s")
		passes(6 * time.Second)
		require.Equal(w, []int{12, 10, 8}, sizes())

		// By hand it needs not be time, but somebody who can spare a worker.
		passes(2 * time.Second)
		moved, err := w.h.Rebalance(false)
		require.NoError(w, err)
		require.True(w, moved.Done)
		require.Equal(w, []string{"half", "busy"}, []string{moved.From, moved.To})
		require.Equal(w, []int{13, 9, 8}, sizes())
		require.EqualValues(w, 3, w.h.Status().Balance.Moves)
		w.end(load)
		w.requireNothingHeld()
	})
}

func TestBurstIsFoundAndItsSurgeEndsOnTime(t *testing.T) {
	t.Parallel()
	cfg := steady(10, "a", "b", "c")
	cfg.scaleEvery, cfg.balanceEvery = time.Hour, time.Hour
	for _, baseline := range []int{0, 2, 8} {
		t.Run("with "+strconv.Itoa(baseline)+" requests before", func(t *testing.T) {
			t.Parallel()
			inBubble(t, cfg, func(w *fixture) {
				w.h.gate.set(store.HeijunkaLimits{Soft: 900, Hard: 1000, Reserved: 0.2})
				before := w.holdAll("a", baseline)
				passes(2 * time.Minute)
				require.False(w, w.h.Status().Burst.Active)
				begin := time.Now()
				burst := w.holdAll("b", 100)
				passes(2 * time.Second)
				s := w.h.Status()
				require.True(w, s.Burst.Active)
				require.Less(w, s.Burst.BeganAt.Time().Sub(begin), 2*time.Second)
				require.Equal(w, s.Burst.BeganAt.Time().Add(5*time.Minute), s.Burst.Until.Time())
				require.EqualValues(w, 1, s.Burst.Events)
				require.EqualValues(w, 15, s.Burst.WorkersAdded)
				require.InDelta(w, 30, s.Burst.Cost, 0, "5 workers × 3 pools × 2.0")
				for _, p := range s.Pools {
					require.Equal(w, 15, p.Workers, "5 on top of the maximum")
				}
				w.end(burst)
				passes(time.Until(s.Burst.Until.Time()) - time.Millisecond)
				require.True(w, w.h.Status().Burst.Active)
				passes(time.Second)
				require.False(w, w.h.Status().Burst.Active)
				for _, p := range w.h.Status().Pools {
					require.Equal(w, 10, p.Workers)
				}
				// No other within 30 s; then there may be.
				again := w.holdAll("b", 100)
				passes(29 * time.Second)
				require.EqualValues(w, 1, w.h.Status().Burst.Events)
				passes(62 * time.Second)
				w.end(again)
				passes(2 * time.Minute)
				again = w.holdAll("b", 100)
				passes(2 * time.Second)
				require.EqualValues(w, 2, w.h.Status().Burst.Events)
				require.InDelta(w, 60, w.h.Status().Burst.Cost, 0)
				w.end(append(again, before...))
				w.requireNothingHeld()
			})
		})
	}
}

// Polls wait without a place, and are demand all the same.
func TestRequestsThatWaitOutsideAreDemand(t *testing.T) {
	t.Parallel()
	cfg := steady(10, "a", "b")
	cfg.scaleEvery, cfg.balanceEvery = time.Hour, time.Hour
	inBubble(t, cfg, func(w *fixture) {
		w.h.gate.set(store.HeijunkaLimits{Soft: 900, Hard: 1000, Reserved: 0.2})
		var outside atomic.Int64
		p := w.h.pools[1]
		p.mu.Lock()
		p.outside = func() int { return int(outside.Load()) }
		p.mu.Unlock()
		passes(time.Minute)
		outside.Store(100)
		require.InDelta(w, 10, p.use().Demand, 0)
		passes(2 * time.Second)
		require.True(w, w.h.Status().Burst.Active)
		require.InDelta(w, 5, w.h.Status().Burst.TriggerDemand, 0, "of both pools' places")
	})
}

func TestBurstAtAnyBaseline(t *testing.T) {
	t.Parallel()
	add := func(s *samples, requests int) (mean float64, burst bool) {
		_, mean, burst = s.add(requests, 100, 960)
		return mean, burst
	}
	for before := range 70 {
		var s samples
		for range 60 {
			_, burst := add(&s, before*10)
			require.False(t, burst)
		}
		mean, burst := add(&s, 900)
		require.True(t, burst, "baseline of %d requests", before*10)
		require.InDelta(t, float64(before)/10, mean, 1e-9)
	}
	var s samples
	for range 60 {
		add(&s, 0)
	}
	_, burst := add(&s, 19)
	require.False(t, burst, "below the floor on volume")
	_, burst = add(&s, 20)
	require.True(t, burst)
}

// A refused client is told how long the load takes to fall out of the alert.
func TestRetryAfterComesFromTheDrainRate(t *testing.T) {
	t.Parallel()
	for drain, want := range map[float64]time.Duration{0: 5 * time.Second, 4: 10 * time.Second, 0.1: time.Minute, 1000: time.Second} {
		g := newGate(store.HeijunkaLimits{Soft: 60, Hard: 100})
		g.drain = drain
		d := &Pool{}
		for range 100 {
			_, err := g.admit(&token{own: d})
			require.NoError(t, err)
		}
		var e *store.Error
		_, err := g.admit(&token{own: d})
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.RetryAfter)
	}
}

// Beyond 50 refusals in a tenth of a second each takes a moment.
func TestAFloodOfRefusalsIsHeldBack(t *testing.T) {
	t.Parallel()
	inBubble(t, separate(steady(1, "a", "b")), func(w *fixture) {
		load := w.holdAll("b", 80)
		passes(time.Second)
		refusal := func() time.Duration {
			begin := time.Now()
			requireOverload(w, w.serve(w.Context(), "b", 0), RuleRegular, 80, 80)
			return time.Since(begin)
		}
		for range 3 {
			for range flood {
				require.Zero(w, refusal())
			}
			require.Equal(w, holdBack, refusal())
		}
		for range 2 * flood {
			require.Zero(w, refusal())
			passes(slot / flood)
		}
		w.end(load)
	})
}
