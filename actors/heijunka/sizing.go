package heijunka

import (
	"fmt"
	"time"

	"takt/store"
)

// sizing decides how many workers a pool is to have.
type sizing struct {
	min, max int
	base     int // within min and max
	surge    int // on top, for a while
	overflow int // may be added while requests wait

	last    time.Time // of the last change of base by scaling
	changes int64
}

// target is how many there are to be, overflow aside.
func (s *sizing) target() int { return s.base + s.surge }

// auto scales by one step if utilisation asks for it, and returns by how much.
func (s *sizing) auto(now time.Time, utilisation float64, cfg ScalingConfig) int {
	step := 0
	switch {
	case utilisation > cfg.Up:
		step = 1
	case utilisation < cfg.Down:
		step = -1
	}
	to := min(max(s.base+step, s.min), s.max)
	if to == s.base || !s.may(now, cfg.Gap) {
		return 0
	}
	step = to - s.base
	s.change(now, to)
	return step
}

// scale changes base by n; all of it or nothing.
func (s *sizing) scale(now time.Time, n int, gap time.Duration) error {
	to := s.base + n
	switch {
	case n == 0:
		return nil
	case to < s.min || to > s.max:
		return store.NewError(store.Conflict, fmt.Sprintf("The pool may have %d to %d workers, not %d", s.min, s.max, to))
	case !s.may(now, gap):
		e := store.NewError(store.Conflict, "The pool was scaled just now, try again")
		e.RetryAfter = gap
		return e
	}
	s.change(now, to)
	return nil
}

// bound sets new bounds and moves base into them.
func (s *sizing) bound(low, high int) {
	s.min, s.max = low, high
	s.base = min(max(s.base, low), high)
}

func (s *sizing) may(now time.Time, gap time.Duration) bool {
	return s.last.IsZero() || now.Sub(s.last) >= gap
}

func (s *sizing) change(now time.Time, to int) {
	s.base, s.last = to, now
	s.changes++
}

// backoff is the delay before the next crashed worker is replaced.
type backoff struct {
	delay time.Duration // of the last crash
	until time.Time     // not before
}

// crashed notes a crash and returns when to replace: the delay doubles, and
// begins anew when nothing crashed for longer than twice the longest.
func (b *backoff) crashed(now time.Time, low, high time.Duration) time.Time {
	switch {
	case now.Before(b.until):
		return b.until // of several that crash together one counts
	case b.delay == 0 || now.Sub(b.until) > 2*high:
		b.delay = low
	default:
		b.delay = min(2*b.delay, high)
	}
	b.until = now.Add(b.delay)
	return b.until
}
