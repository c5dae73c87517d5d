package queue

import (
	"fmt"
	"time"

	"takt/store"
)

// The bounds of the timeouts. The lower ones leave room for a heartbeat; short
// values are for demonstrations and tests.
const (
	minCheckInterval = 100 * time.Millisecond
	maxCheckInterval = time.Hour
	minTimeout       = time.Second
	maxTimeout       = 24 * time.Hour
)

// validateTimeouts returns an InvalidArgument error that names the first value
// out of bounds, nil if all are fine.
func validateTimeouts(t store.Timeouts) error {
	for _, v := range []struct {
		name     string
		value    time.Duration
		min, max time.Duration
	}{
		{"check_interval", t.CheckInterval, minCheckInterval, maxCheckInterval},
		{"build_timeout", t.BuildTimeout, minTimeout, maxTimeout},
		{"worker_timeout", t.WorkerTimeout, minTimeout, maxTimeout},
	} {
		if v.value < v.min || v.value > v.max {
			return store.NewError(store.InvalidArgument,
				fmt.Sprintf("%s must be between %g and %g seconds, not %g", v.name, v.min.Seconds(), v.max.Seconds(), v.value.Seconds()))
		}
	}
	return nil
}

// listening decides whether silence counts: only if this controller could have
// heard a beat during one whole build timeout. A controller that did
// not run for a while (a suspended machine, a stopped process) heard nothing.
type listening struct {
	pulse time.Time // when the controller last proved that it runs
	since time.Time // the last interruption that a pulse showed
}

// beat proves that the controller runs. A gap of more than patience since the
// last beat is an interruption. Times are compared by the wall clock, because
// the monotonic one stands still in a suspended machine.
func (l *listening) beat(now time.Time, patience time.Duration) {
	now = now.Round(0)
	if gap := now.Sub(l.pulse); l.pulse.IsZero() || gap > patience || gap < 0 {
		l.since = now
	}
	l.pulse = now
}

// interrupted starts the listening anew.
func (l *listening) interrupted(now time.Time) { l.since = now.Round(0) }

// missing returns how long this controller still has to listen before silence
// counts; 0 if it has listened long enough. ready is since when it is ready.
func (l *listening) missing(now, ready time.Time, timeout time.Duration) time.Duration {
	start := l.since
	if ready = ready.Round(0); ready.After(start) {
		start = ready
	}
	return max(0, timeout-now.Round(0).Sub(start))
}

// pulseOf returns how often to beat for a build timeout, and the longest gap
// that is no interruption.
func pulseOf(timeout time.Duration) (every, patience time.Duration) {
	every = min(max(timeout/20, 50*time.Millisecond), time.Second)
	patience = min(max(timeout/4, 500*time.Millisecond), 10*time.Second)
	return every, patience
}
