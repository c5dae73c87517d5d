package queue

import (
	"fmt"
	"time"

	"takt/store"
)

// The bounds of the timeouts. Values near the lower bounds are for demonstrations and tests.
const (
	minCheckInterval = 100 * time.Millisecond
	maxCheckInterval = time.Hour
	minTimeout       = time.Second
	maxTimeout       = 24 * time.Hour
)

// validateTimeouts returns an InvalidArgument error that names the first value out of
// bounds, nil if there is none.
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

// listening decides whether a worker's silence counts. It counts only if this controller
// could have received heartbeats during one whole build timeout. It could not while it was not
// running (a suspended machine, a stopped process) or the database did not answer.
type listening struct {
	last  time.Time // when the database last answered
	since time.Time // when the last interruption ended
}

// answered records that the database answered, at now, a query sent at asked. That ends an
// interruption if the answer took longer than patience, or came more than patience after the
// previous one. Times are compared by the wall clock, because the monotonic clock stops while
// a machine is suspended.
func (l *listening) answered(asked, now time.Time, patience time.Duration) {
	now = now.Round(0)
	took, gap := now.Sub(asked.Round(0)), now.Sub(l.last)
	if took > patience || gap > patience || gap < 0 || l.last.IsZero() {
		l.since = now
	}
	l.last = now
}

// interrupted records an interruption that ends now.
func (l *listening) interrupted(now time.Time) { l.since = now.Round(0) }

// missing returns how much longer this controller must listen before silence counts; 0 if it
// has listened long enough. ready is since when the controller is ready.
func (l *listening) missing(now, ready time.Time, timeout, patience time.Duration) time.Duration {
	now, ready = now.Round(0), ready.Round(0)
	if gap := now.Sub(l.last); gap > patience || gap < 0 {
		return timeout // an interruption has not ended
	}
	start := l.since
	if ready.After(start) {
		start = ready
	}
	return max(0, timeout-now.Sub(start))
}

// pulseOf returns, for a build timeout, how often to check that the database answers, and the
// longest gap between two answers that is no interruption.
func pulseOf(timeout time.Duration) (every, patience time.Duration) {
	patience = min(max(timeout/4, 500*time.Millisecond), 10*time.Second)
	every = min(max(timeout/20, 50*time.Millisecond), patience/4)
	return every, patience
}
