package queue

import (
	"cmp"
	"fmt"
	"time"

	"takt/store"
)

// The bounds of the timeouts. The lower ones leave room for a heartbeat; short
// values are for demonstrations and tests.
const (
	MinCheckInterval = 100 * time.Millisecond
	MaxCheckInterval = time.Hour
	MinTimeout       = time.Second
	MaxTimeout       = 24 * time.Hour
)

// DefaultTimeouts are the timeouts when neither settings nor database say
// otherwise.
func DefaultTimeouts() store.Timeouts {
	return store.Timeouts{CheckInterval: time.Minute, BuildTimeout: 5 * time.Minute, WorkerTimeout: 5 * time.Minute}
}

// ValidateTimeouts returns an InvalidArgument error that names the first value
// out of bounds, nil if all are fine.
func ValidateTimeouts(t store.Timeouts) error {
	for _, v := range []struct {
		name     string
		value    time.Duration
		min, max time.Duration
	}{
		{"check_interval", t.CheckInterval, MinCheckInterval, MaxCheckInterval},
		{"build_timeout", t.BuildTimeout, MinTimeout, MaxTimeout},
		{"worker_timeout", t.WorkerTimeout, MinTimeout, MaxTimeout},
	} {
		if v.value < v.min || v.value > v.max {
			return store.NewError(store.InvalidArgument,
				fmt.Sprintf("%s must be between %g and %g seconds, not %g", v.name, v.min.Seconds(), v.max.Seconds(), v.value.Seconds()))
		}
	}
	return nil
}

// timeoutsOr returns t with zero values taken from fallback.
func timeoutsOr(t, fallback store.Timeouts) store.Timeouts {
	return store.Timeouts{
		CheckInterval: cmp.Or(t.CheckInterval, fallback.CheckInterval),
		BuildTimeout:  cmp.Or(t.BuildTimeout, fallback.BuildTimeout),
		WorkerTimeout: cmp.Or(t.WorkerTimeout, fallback.WorkerTimeout),
	}
}

// listening decides whether silence counts: only if this controller could have
// heard a sign of life during one whole build timeout. A controller that did
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
