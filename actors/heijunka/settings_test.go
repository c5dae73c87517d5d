package heijunka

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	cfg := steady(5, "a", "b", "c")
	for i := range cfg.Pools {
		cfg.Pools[i].Min, cfg.Pools[i].Max = 2, 10
	}
	cfg.Scaling.Every = time.Hour

	t.Run("limits hold over a restart and end on time", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			soft, hard, reserved := 30, 50, 0.5
			require.NoError(w, w.h.SetLimits(ctx, &soft, &hard, &reserved, 2*time.Minute))
			want := Limits{Soft: 30, Hard: 50, Reserved: 0.5}
			require.Equal(w, want, w.h.Status().Regulator.Limits)
			require.NoError(w, w.restart(top))
			passes(time.Second)
			require.Equal(w, want, w.h.Status().Regulator.Limits)
			require.NotNil(w, w.h.Status().Changed.Limits.Until)
			tokens := 0
			for {
				if _, err := w.h.RequestAdmission("b", Metadata{}); err != nil {
					requireOverload(w, err, RuleRegular, 25, 25)
					break
				}
				tokens++
			}
			require.Equal(w, 25, tokens)
			passes(2*time.Minute - 2*time.Second)
			require.Equal(w, want, w.h.Status().Regulator.Limits)
			passes(2 * time.Second)
			require.Equal(w, cfg.Limits, w.h.Status().Regulator.Limits)
			require.Nil(w, w.h.Status().Changed.Limits)
		})
	})

	t.Run("what is wrong changes nothing", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			over, zero, much := 101, 0, 20_000
			for _, err := range []error{
				w.h.SetSoftLimit(ctx, over), w.h.SetHardLimit(ctx, zero), w.h.SetHardLimit(ctx, 1_000_000),
				w.h.SetBounds(ctx, "a", &much, nil, 0), w.h.SetBounds(ctx, "a", &zero, nil, 0),
				w.h.SetAffinity(ctx, "a", []string{"d"}, 0), w.h.SetBurst(ctx, true, time.Millisecond), w.h.SetBurst(ctx, true, -1),
			} {
				require.Equal(w, store.InvalidArgument, store.CodeOf(err))
			}
			require.Equal(w, store.NotFound, store.CodeOf(w.h.SetBounds(ctx, "d", nil, nil, 0)))
			require.Equal(w, store.NotFound, store.CodeOf(w.h.SetAffinity(ctx, "d", nil, 0)))
			require.Empty(w, w.settings.saved)
			require.Equal(w, cfg.Limits, w.h.Status().Regulator.Limits)

			w.settings.fail(store.NewError(store.Unavailable, "away"))
			require.Equal(w, store.Unavailable, store.CodeOf(w.h.SetHardLimit(ctx, 90)))
			require.Equal(w, cfg.Limits, w.h.Status().Regulator.Limits, "in force once it is saved")
			require.NoError(w, w.restart(top))
			passes(time.Minute)
			w.settings.fail(nil)
			require.NoError(w, w.h.SetHardLimit(ctx, 90))
			require.Equal(w, 90, w.h.Status().Regulator.Hard)
			require.NoError(w, w.h.ResetLimits(ctx))
			require.Equal(w, cfg.Limits, w.h.Status().Regulator.Limits)
		})
	})

	t.Run("another controller's change is heard", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			_, err := w.settings.ChangeLoadSettings(w.Context(), func(s *store.LoadSettings) error {
				s.Limits = &store.LoadLimits{Soft: 7, Hard: 8}
				return nil
			})
			require.NoError(w, err)
			passes(time.Minute)
			require.Equal(w, cfg.Limits, w.h.Status().Regulator.Limits)
			w.bus.PublishRemote(pubsub.SettingsChanged, "heijunka")
			synctest.Wait()
			require.Equal(w, Limits{Soft: 7, Hard: 8}, w.h.Status().Regulator.Limits)
		})
	})

	t.Run("bounds move the pool into them", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			low, high := 7, 8
			require.NoError(w, w.h.SetBounds(ctx, "b", &low, &high, 0))
			synctest.Wait()
			require.Equal(w, 7, w.h.Pool("b").Status().Workers)
			high = 3
			low = 2
			require.NoError(w, w.h.SetBounds(ctx, "b", &low, &high, time.Minute))
			passes(10 * time.Second)
			require.Equal(w, 3, w.h.Pool("b").Status().Workers)
			passes(time.Minute)
			s := w.h.Pool("b").Status()
			require.Equal(w, []int{2, 10}, []int{s.Minimum, s.Maximum})
		})
	})

	t.Run("scaling by hand", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			p := w.h.Pool("b")
			s, err := p.ScaleUp(ctx, 3)
			require.NoError(w, err)
			require.Equal(w, 8, s.Workers)
			_, err = p.ScaleUp(ctx, 1)
			require.Equal(w, store.Conflict, store.CodeOf(err), "at most one change a second")
			passes(time.Second)
			_, err = p.ScaleUp(ctx, 3)
			require.Equal(w, store.Conflict, store.CodeOf(err), "above its maximum")
			s, err = p.ScaleDown(ctx, 6)
			require.NoError(w, err)
			require.Equal(w, 2, s.Workers)
			passes(time.Second)
			s, err = p.ScaleTo(ctx, 10)
			require.NoError(w, err)
			require.Equal(w, 10, s.Workers)

			// Those who work end their request first.
			load := w.holdAll("b", 9)
			passes(time.Second)
			s, err = p.ScaleTo(ctx, 4)
			require.NoError(w, err)
			require.Equal(w, []int{9, 4}, []int{s.Workers, s.Target})
			w.end(load)
			require.Equal(w, 4, p.Status().Workers)
			w.requireNothingHeld()
		})
	})

	t.Run("affinity", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			require.Equal(w, "a", w.h.Route("a", "x").Name())
			require.NoError(w, w.h.SetAffinity(ctx, "a", []string{"b", "c"}, time.Minute))
			seen := map[string]int{}
			for i := range 1000 {
				key := string(rune('a'+i%26)) + string(rune('a'+i/26))
				pool := w.h.Route("a", key)
				seen[pool.Name()]++
				require.Same(w, pool, w.h.Route("a", key))
			}
			require.Len(w, seen, 2)
			require.InDelta(w, 500, seen["b"], 100)
			require.Equal(w, []string{"b", "c"}, w.h.Status().Balance.Affinity["a"])
			passes(time.Minute)
			require.Equal(w, "a", w.h.Route("a", "x").Name())

			// Over 85 % the least loaded of the list is taken.
			load := w.holdAll("a", 5)
			passes(time.Millisecond)
			require.NotEqual(w, "a", w.h.Route("a", "x").Name())
			require.Positive(w, w.h.Status().Balance.Spilled["a"])
			w.end(load)
			require.Nil(w, w.h.Route("nobody", "x"))
		})
	})

	t.Run("surge by hand, and detection off", func(t *testing.T) {
		t.Parallel()
		inBubble(t, cfg, func(w *world) {
			ctx := w.Context()
			require.NoError(w, w.h.SetBurst(ctx, false, 4*time.Minute))
			passes(time.Minute)
			load := w.holdAll("a", 60)
			passes(10 * time.Second)
			require.False(w, w.h.Status().Burst.Active)
			_, err := w.h.StopSurge(ctx)
			require.Equal(w, store.Conflict, store.CodeOf(err))
			s, err := w.h.StartSurge(ctx, time.Minute)
			require.NoError(w, err)
			require.True(w, s.Active)
			require.True(w, s.Manual)
			synctest.Wait()
			require.Equal(w, 10, w.h.Pool("a").Status().Workers)

			// It is the handle's: who restarts ends it on time, all the same.
			require.NoError(w, w.restart(top+"/burst_handler"))
			passes(59 * time.Second)
			require.True(w, w.h.Status().Burst.Active)
			passes(2 * time.Second)
			require.False(w, w.h.Status().Burst.Active)
			w.end(load)
			passes(10 * time.Second)
			require.Equal(w, 5, w.h.Pool("a").Status().Workers)
			_, err = w.h.StartSurge(ctx, 0)
			require.NoError(w, err)
			_, err = w.h.StopSurge(ctx)
			require.NoError(w, err)
			passes(4 * time.Minute)
			require.True(w, w.h.Status().Burst.Enabled)
		})
	})
}

func TestLevelsAreTold(t *testing.T) {
	t.Parallel()
	inBubble(t, steady(50, "a", "b"), func(w *world) {
		events := make(chan pubsub.Event, 100)
		defer w.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.HeijunkaAlert)()
		next := func() Alert {
			a, ok := (<-events).Data.(Alert)
			require.True(w, ok)
			return a
		}
		first := w.holdAll("a", 64) // 80 × 0.8
		begin := time.Now()
		a := next()
		require.Equal(w, []any{"alert", 64, 80, 100}, []any{a.Level, a.Load, a.Soft, a.Hard})
		require.LessOrEqual(w, a.At.Sub(begin), time.Second)
		again := next()
		require.Equal(w, "alert", again.Level)
		require.Equal(w, 5*time.Second, again.At.Sub(a.At))
		rest := w.holdAll("a", 16)
		require.Equal(w, "critical", next().Level)
		w.end(rest)
		require.Equal(w, "alert", next().Level)
		w.end(first)
		require.Equal(w, "normal", next().Level)
		passes(time.Minute)
		require.Empty(w, events)
	})
}

func TestTheNumbersArePublished(t *testing.T) {
	t.Parallel()
	inBubble(t, steady(2, "a"), func(w *world) {
		events := make(chan pubsub.Event, 100)
		defer w.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.HeijunkaUpdated)()
		s, ok := (<-events).Data.(Status)
		require.True(w, ok)
		require.Equal(w, 2, s.Pools[0].Workers)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("presets are the design's", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string]struct {
			soft, hard int
			pools      map[string][2]int
		}{
			"small":  {500, 600, map[string][2]int{Fleet: {5, 15}, Submit: {4, 12}, Hook: {4, 12}, Query: {4, 12}, Transfer: {16, 64}}},
			"medium": {1000, 1200, map[string][2]int{Fleet: {10, 30}, Submit: {8, 25}, Hook: {8, 25}, Query: {5, 20}, Transfer: {64, 256}}},
			"large":  {3000, 3600, map[string][2]int{Fleet: {25, 100}, Submit: {20, 80}, Hook: {20, 80}, Query: {15, 60}, Transfer: {128, 512}}},
		} {
			c, ok := Preset(name)
			require.True(t, ok)
			require.NoError(t, c.Validate())
			require.Equal(t, Limits{Soft: want.soft, Hard: want.hard, Reserved: 0.2}, c.Limits)
			for _, p := range c.Pools {
				got := [2]int{p.Initial, p.Max}
				require.Equal(t, want.pools[p.Name], got, p.Name)
			}
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
			"unknown pool":     func(c *Config) { c.Domains[0].Pools = []string{"x"} },
			"foreign affinity": func(c *Config) { c.Domains[0].Affinity = []string{Query} },
			"thresholds":       func(c *Config) { c.Scaling.Down = c.Scaling.Up },
			"spill":            func(c *Config) { c.Spill = 2 },
			"wait":             func(c *Config) { c.Wait = -1 },
			"factor":           func(c *Config) { c.Burst.Factor = 0.5 },
		} {
			c, _ := Preset("medium")
			spoil(&c)
			require.Error(t, c.Validate(), name)
		}
	})
}

func TestOffLevelsNothing(t *testing.T) {
	t.Parallel()
	cfg := steady(1, "a")
	cfg.Off = true
	inBubble(t, cfg, func(w *world) {
		load := w.holdAll("a", 200)
		passes(time.Second)
		require.Zero(w, w.h.gate.load.Load())
		w.end(load)
		_, err := otp.CountChildren(context.Background(), w.sys.Ref(top))
		require.NoError(w, err)
	})
}
