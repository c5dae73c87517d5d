package heijunka

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/pubsub"
	"takt/store"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	cfg := steady(5, "a", "b", "c")
	for i := range cfg.Pools {
		cfg.Pools[i].Min, cfg.Pools[i].Max = 2, 10
	}
	cfg.scaleEvery = time.Hour
	for name, test := range map[string]func(w *fixture){
		"limits hold over a restart and end on time": func(w *fixture) {
			ctx := w.Context()
			soft, hard, reserved := 30, 50, 0.5
			require.NoError(w, w.h.SetLimits(ctx, &soft, &hard, &reserved, 2*time.Minute))
			want := store.HeijunkaLimits{Soft: 30, Hard: 50, Reserved: 0.5}
			require.Equal(w, want, w.limits())
			require.NoError(w, w.restart(top))
			passes(time.Second)
			require.Equal(w, want, w.limits())
			require.NotNil(w, w.h.saved.Load().Limits.Until)
			load := w.holdAll("b", 25)
			passes(time.Millisecond)
			requireOverload(w, w.serve(w.Context(), "b", 0), RuleRegular, 25, 25)
			w.end(load)
			passes(2*time.Minute - 2*time.Second)
			require.Equal(w, want, w.limits())
			passes(2 * time.Second)
			require.Equal(w, cfg.Limits, w.limits())
			require.JSONEq(w, "{}", string(w.h.Status().Changed))
		},
		"what is wrong changes nothing": func(w *fixture) {
			ctx := w.Context()
			over, zero, much, million, ninety := 101, 0, 20_000, 1_000_000, 90
			for _, err := range []error{
				w.h.SetLimits(ctx, &over, nil, nil, 0), w.h.SetLimits(ctx, nil, &zero, nil, 0), w.h.SetLimits(ctx, nil, &million, nil, 0),
				w.h.SetBounds(ctx, "a", &much, nil, 0), w.h.SetBounds(ctx, "a", &zero, nil, 0),
				w.h.SetAffinity(ctx, "a", []string{"d"}, 0), w.h.SetBurst(ctx, true, time.Millisecond), w.h.SetBurst(ctx, true, -1),
			} {
				require.Equal(w, store.InvalidArgument, store.CodeOf(err))
			}
			require.Equal(w, store.NotFound, store.CodeOf(w.h.SetBounds(ctx, "d", nil, nil, 0)))
			require.Equal(w, store.NotFound, store.CodeOf(w.h.SetAffinity(ctx, "d", nil, 0)))
			require.Empty(w, w.settings.saved)
			require.Equal(w, cfg.Limits, w.limits())

			w.settings.fail(store.NewError(store.Unavailable, "away"))
			require.Equal(w, store.Unavailable, store.CodeOf(w.h.SetLimits(ctx, nil, &ninety, nil, 0)))
			require.Equal(w, cfg.Limits, w.limits(), "in force once it is saved")
			require.NoError(w, w.restart(top))
			passes(time.Minute)
			w.settings.fail(nil)
			require.NoError(w, w.h.SetLimits(ctx, nil, &ninety, nil, 0))
			require.Equal(w, 90, w.h.Status().Regulator.HardLimit)
			require.NoError(w, w.h.ResetLimits(ctx))
			require.Equal(w, cfg.Limits, w.limits())
		},
		"another controller's change is put in force": func(w *fixture) {
			_, err := w.settings.ChangeHeijunkaSettings(w.Context(), func(s *store.HeijunkaSettings) error {
				s.Limits = &store.HeijunkaLimits{Soft: 7, Hard: 8}
				return nil
			})
			require.NoError(w, err)
			passes(time.Minute)
			require.Equal(w, cfg.Limits, w.limits())
			w.bus.PublishRemote(pubsub.SettingsChanged, "heijunka", 0)
			synctest.Wait()
			require.Equal(w, store.HeijunkaLimits{Soft: 7, Hard: 8}, w.limits())
		},
		"bounds move the pool into them": func(w *fixture) {
			ctx := w.Context()
			low, high := 7, 8
			require.NoError(w, w.h.SetBounds(ctx, "b", &low, &high, 0))
			synctest.Wait()
			require.Equal(w, 7, w.pool("b").status().Workers)
			high = 3
			low = 2
			require.NoError(w, w.h.SetBounds(ctx, "b", &low, &high, time.Minute))
			passes(10 * time.Second)
			require.Equal(w, 3, w.pool("b").status().Workers)
			passes(time.Minute)
			s := w.pool("b").status()
			require.Equal(w, []int{2, 10}, []int{s.Min, s.Max})
		},
		"scaling by hand": func(w *fixture) {
			by := func(n int) error { return w.h.Scale("b", &n, nil) }
			to := func(n int) error { return w.h.Scale("b", nil, &n) }
			workers := func() int { return w.pool("b").status().Workers }
			require.NoError(w, by(3))
			require.Equal(w, 8, workers())
			require.Equal(w, store.Conflict, store.CodeOf(by(1)), "at most one change a second")
			passes(time.Second)
			require.Equal(w, store.Conflict, store.CodeOf(by(3)), "above its maximum")
			require.NoError(w, by(-6))
			require.Equal(w, 2, workers())
			passes(time.Second)
			require.NoError(w, to(10))
			require.Equal(w, 10, workers())
			require.Equal(w, store.InvalidArgument, store.CodeOf(to(0)))
			require.Equal(w, store.NotFound, store.CodeOf(w.h.Scale("d", nil, nil)))

			// Those who work end their request first.
			load := w.holdAll("b", 9)
			passes(time.Second)
			require.NoError(w, to(4))
			require.Equal(w, 9, workers())
			require.Equal(w, 4, w.pool("b").status().Target)
			w.end(load)
			require.Equal(w, 4, workers())
			w.requireNothingHeld()
		},
		"affinity": func(w *fixture) {
			ctx := w.Context()
			route := func(key string) string { return w.h.pools[0].route(key).name }
			require.Equal(w, "a", route("x"))
			require.NoError(w, w.h.SetAffinity(ctx, "a", []string{"b", "c"}, time.Minute))
			seen := map[string]int{}
			for i := range 1000 {
				key := strconv.Itoa(i)
				pool := route(key)
				seen[pool]++
				require.Equal(w, pool, route(key))
			}
			require.Len(w, seen, 2)
			require.InDelta(w, 500, seen["b"], 100)
			require.Equal(w, []string{"b", "c"}, w.h.Status().Balance.Affinity["a"])
			passes(time.Minute)
			require.Equal(w, "a", route("x"))

			require.NoError(w, w.h.SetAffinity(ctx, "a", []string{"b"}, 0))
			require.Equal(w, "b", route("x"))
			require.NoError(w, w.h.ResetAffinity(ctx, "a"))
			require.Equal(w, "a", route("x"))
			most := 3
			require.NoError(w, w.h.SetBounds(ctx, "a", nil, &most, 0))
			require.Equal(w, 3, w.pool("a").status().Max)
			require.NoError(w, w.h.ResetBounds(ctx, "a"))
			require.NotEqual(w, 3, w.pool("a").status().Max)
			require.JSONEq(w, "{}", string(w.h.Status().Changed), "nothing is changed any more")
			require.Equal(w, store.NotFound, store.CodeOf(w.h.ResetAffinity(ctx, "d")))
			require.Equal(w, store.NotFound, store.CodeOf(w.h.ResetBounds(ctx, "d")))

			// Over 85 % the least loaded of the list is taken.
			ten := 10
			require.NoError(w, w.h.Scale("a", nil, &ten))
			load := w.holdAll("a", 8)
			passes(time.Millisecond)
			require.Equal(w, "a", route("x"))
			more := w.holdAll("a", 1)
			passes(time.Millisecond)
			require.NotEqual(w, "a", route("x"))
			require.Positive(w, w.h.Status().Balance.Spilled["a"])
			w.end(load)
			w.end(more)
			require.Error(w, w.serve(ctx, "nobody", 0))
		},
		"surge by hand, and detection off": func(w *fixture) {
			ctx := w.Context()
			require.NoError(w, w.h.SetBurst(ctx, false, 4*time.Minute))
			passes(time.Minute)
			var load []*held
			for range 60 { // one after the other, so that the pools get equally many, and none has a place moved
				load = append(load, w.hold("a"))
				synctest.Wait()
			}
			passes(10 * time.Second)
			require.False(w, w.h.Status().Burst.Active)
			require.Equal(w, store.Conflict, store.CodeOf(w.h.StopSurge()))
			require.Equal(w, store.InvalidArgument, store.CodeOf(w.h.StartSurge(time.Millisecond)))
			require.NoError(w, w.h.StartSurge(time.Minute))
			s := w.h.Status().Burst
			require.True(w, s.Active)
			require.True(w, s.Manual)
			require.Equal(w, 10, w.pool("a").status().Workers)

			// It is the handle's: who restarts ends it on time, all the same.
			require.NoError(w, w.restart(top+"/burst_handler"))
			passes(59 * time.Second)
			require.True(w, w.h.Status().Burst.Active)
			passes(2 * time.Second)
			require.False(w, w.h.Status().Burst.Active)
			w.end(load)
			passes(10 * time.Second)
			require.Equal(w, 5, w.pool("a").status().Workers)
			require.NoError(w, w.h.StartSurge(0))
			require.NoError(w, w.h.StopSurge())
			passes(4 * time.Minute)
			require.True(w, w.h.Status().Burst.Enabled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, cfg, test)
		})
	}
}

// limits are those in force.
func (w *fixture) limits() store.HeijunkaLimits {
	w.h.gate.mu.Lock()
	defer w.h.gate.mu.Unlock()
	l := w.h.gate.limits
	l.Expiry = store.Expiry{}
	return l
}

func TestLevelsAreLogged(t *testing.T) {
	t.Parallel()
	inBubble(t, steady(50, "a", "b"), func(w *fixture) {
		first := w.holdAll("a", 64) // 80 × 0.8
		begin := time.Now()
		require.Equal(w, []any{"alert", 64., 80., 100.}, <-w.levels)
		logged := time.Now()
		require.LessOrEqual(w, logged.Sub(begin), time.Second)
		require.Equal(w, "alert", (<-w.levels)[0])
		require.Equal(w, 5*time.Second, time.Since(logged))
		rest := w.holdAll("a", 16)
		require.Equal(w, "critical", (<-w.levels)[0])
		w.end(rest)
		require.Equal(w, "alert", (<-w.levels)[0])
		w.end(first)
		require.Equal(w, "normal", (<-w.levels)[0])
		passes(time.Minute)
		require.Empty(w, w.levels)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("presets", func(t *testing.T) {
		t.Parallel()
		for name, hard := range map[string]int{"small": 600, "medium": 1200, "large": 3600} {
			c, ok := Preset(name)
			require.True(t, ok)
			require.NoError(t, c.Validate())
			require.Equal(t, hard, c.Limits.Hard)
		}
		_, ok := Preset("huge")
		require.False(t, ok)
		medium, _ := Preset("medium")
		require.Equal(t, medium, Config{}.withDefaults())
		require.Equal(t, 960, medium.Limits.Regular())
		require.Equal(t, 800, medium.Limits.Alert())
	})

	t.Run("nonsense is refused", func(t *testing.T) {
		t.Parallel()
		for name, spoil := range map[string]func(c *Config){
			"soft over hard":   func(c *Config) { c.Limits.Soft = c.Limits.Hard + 1 },
			"nothing regular":  func(c *Config) { c.Limits.Hard, c.Limits.Soft, c.Limits.Reserved = 1, 1, 0.5 },
			"minimum 0":        func(c *Config) { c.Pools[0].Min = 0 },
			"initial over max": func(c *Config) { c.Pools[0].Initial = c.Pools[0].Max + 1 },
			"wait":             func(c *Config) { c.Wait = -1 },
		} {
			c, _ := Preset("medium")
			spoil(&c)
			require.Error(t, c.Validate(), name)
		}
	})
}
