package build

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// appears makes a build with a cache label pending.
func (s *stage) appears(p store.Platform, cache string) {
	s.hints.enqueued(laneOf(p), 1)
	s.warmth.appeared(laneOf(p), cache)
}

// wakes expects that exactly these polls are woken, in this order.
func (s *stage) wakes(polls ...*poll) {
	s.Helper()
	s.wake(s.now)
	var woken []*poll
	if f := s.take(100); f != nil {
		woken = f.polls
	}
	require.Equal(s, polls, woken)
}

func TestWarmWorkersGoFirst(t *testing.T) {
	t.Parallel()

	t.Run("a build wakes the worker that has its cache", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.parks("a")
		b := s.parks("b")
		s.warmth.finished("b", "app", s.now)
		s.appears(store.IOS, "app")
		s.wakes(b)
	})
	t.Run("of several, the one that has been parked longest", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.parks("a")
		b := s.parks("b")
		s.parks("c")
		s.warmth.finished("c", "app", s.now)
		s.warmth.finished("b", "app", s.now)
		s.appears(store.IOS, "app")
		s.wakes(b)
	})
	t.Run("nobody waits for a worker that is away, takes other builds or has no slot", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		a := s.parks("a")
		s.parks("b", store.Android)
		full := s.parks("c")
		s.room.remove(full)
		full.free = false
		s.room.add(full)
		for _, w := range []string{"b", "c", "away"} {
			s.warmth.finished(w, "app", s.now)
		}
		s.appears(store.IOS, "app")
		s.wakes(a)
	})
	t.Run("a day later, with another label or after another build all are alike", func(t *testing.T) {
		t.Parallel()
		for name, edit := range map[string]func(*stage){
			"late":    func(s *stage) { s.warmth.finished("b", "app", s.now.Add(-warmFor-time.Second)) },
			"label":   func(s *stage) { s.warmth.finished("b", "other", s.now) },
			"another": func(s *stage) { s.warmth.finished("b", "app", s.now); s.warmth.finished("b", "other", s.now) },
		} {
			s := newStage(t)
			a := s.parks("a")
			s.parks("b")
			edit(s)
			s.appears(store.IOS, "app")
			s.wakes(a)
			require.LessOrEqual(t, len(s.warmth.workers), 1, name)
		}
	})
	t.Run("labels of builds that woke nobody are forgotten", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.appears(store.IOS, "app")
		s.wakes()
		s.hints.claimed(laneIOS)
		a := s.parks("a")
		s.parks("b")
		s.warmth.finished("b", "app", s.now)
		s.hints.enqueued(laneIOS, 1)
		s.wakes(a)
	})
	t.Run("what is remembered is bounded", func(t *testing.T) {
		t.Parallel()
		w := newWarmth()
		for i := range maxWarm + 10 {
			w.finished(fmt.Sprint(i), fmt.Sprint(i%7), time.Unix(0, 0))
		}
		require.Len(t, w.workers, maxWarm)
		n := 0
		for _, workers := range w.caches {
			n += len(workers)
		}
		require.Equal(t, maxWarm, n)
	})
}
