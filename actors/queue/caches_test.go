package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// appears makes a build with a cache label pending.
func (s *stage) appears(p store.Platform, cache string) {
	s.enqueued(enqueued{class: store.Class{ID: store.PlainClass(p)}, n: 1, cache: cache}, s.now)
}

// wakesJust expects that exactly these polls are woken, in this order.
func (s *stage) wakesJust(polls ...*poll) {
	s.Helper()
	s.wake()
	require.Equal(s, polls, s.take(100).polls)
}

func TestWarmWorkersGoFirst(t *testing.T) {
	t.Parallel()

	onStage(t, "a build wakes the worker that has its cache", func(s *stage) {
		s.parks("a")
		b := s.parks("b")
		s.caches.finished("b", "app", s.now)
		s.appears(store.IOS, "app")
		s.wakesJust(b)
	})
	onStage(t, "of several, the one that has been parked longest", func(s *stage) {
		s.parks("a")
		b := s.parks("b")
		s.parks("c")
		s.caches.finished("c", "app", s.now)
		s.caches.finished("b", "app", s.now)
		s.appears(store.IOS, "app")
		s.wakesJust(b)
	})
	onStage(t, "nobody waits for a worker that is away, takes other builds or has no slot", func(s *stage) {
		a := s.parks("a")
		s.parks("b", store.Android)
		full := s.parks("c")
		full.session.Held = 1
		full.unlist()
		s.rest(full, s.now)
		for _, w := range []string{"b", "c", "away"} {
			s.caches.finished(w, "app", s.now)
		}
		s.appears(store.IOS, "app")
		s.wakesJust(a)
	})
	t.Run("a day later, with another label or after another build all are alike", func(t *testing.T) {
		t.Parallel()
		for name, edit := range map[string]func(*stage){
			"late":    func(s *stage) { s.caches.finished("b", "app", s.now.Add(-warmFor-time.Second)) },
			"label":   func(s *stage) { s.caches.finished("b", "other", s.now) },
			"another": func(s *stage) { s.caches.finished("b", "app", s.now); s.caches.finished("b", "other", s.now) },
		} {
			s := newStage(t)
			a := s.parks("a")
			s.parks("b")
			edit(s)
			s.appears(store.IOS, "app")
			s.wakesJust(a)
			require.LessOrEqual(t, len(s.caches.workers), 1, name)
		}
	})
	onStage(t, "labels of builds that woke nobody are forgotten", func(s *stage) {
		s.appears(store.IOS, "app")
		s.wakesJust()
		s.pending.claimed(ios)
		a := s.parks("a")
		s.parks("b")
		s.caches.finished("b", "app", s.now)
		s.enqueues(ios, 1)
		s.wakesJust(a)
	})
	t.Run("what is remembered is bounded", func(t *testing.T) {
		t.Parallel()
		w := newCaches()
		for i := range maxWarm + 10 {
			w.finished(fmt.Sprint(i), fmt.Sprint(i%7), time.Unix(0, 0))
		}
		require.Len(t, w.workers, maxWarm)
		n := 0
		for _, workers := range w.labels {
			n += len(workers)
		}
		require.Equal(t, maxWarm, n)
	})
}
