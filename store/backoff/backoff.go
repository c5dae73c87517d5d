// Package backoff computes the pauses between retries.
package backoff

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Backoff is a pause that doubles with each failure in a row, from Min to Max. A random
// part of up to half of it is subtracted, so that many clients of one failed dependency
// do not retry at the same time. Safe for concurrent use.
type Backoff struct {
	// Min is the longest pause after the first failure. Defaults to 500 ms.
	Min time.Duration
	// Max is the longest pause of all. Defaults to 30 s.
	Max time.Duration
}

// Wait returns the pause after the nth failure in a row, counted from 0.
func (b Backoff) Wait(n int) time.Duration { return b.WaitAtLeast(n, 0) }

// WaitAtLeast is Wait, but at least as long as the other side asked for. It adds up to
// a tenth of that time at random, for the same reason.
func (b Backoff) WaitAtLeast(n int, asked time.Duration) time.Duration {
	chance := rand.Float64()
	return max(b.wait(n, chance), asked+time.Duration(chance*float64(asked/10)))
}

// wait is Wait with the random number chance in [0, 1).
func (b Backoff) wait(n int, chance float64) time.Duration {
	full, limit := cmp.Or(b.Min, 500*time.Millisecond), cmp.Or(b.Max, 30*time.Second)
	for ; n > 0 && full < limit; n-- {
		full *= 2
	}
	half := min(full, limit) / 2
	return half + time.Duration(chance*float64(half))
}

// Pause waits for d. It returns the cause of ctx if that ends before.
func Pause(ctx context.Context, d time.Duration) error { return PauseUntil(ctx, d, nil) }

// PauseUntil is Pause, but returns at once when early is closed or has a value.
func PauseUntil(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// RetryAfter reads a Retry-After header, seconds or a date (RFC 9110, 10.2.3), and returns
// how long it asks to wait, counted from now. ok is false if it says nothing usable.
func RetryAfter(header string, now time.Time) (wait time.Duration, ok bool) {
	header = strings.TrimSpace(header)
	if seconds, err := strconv.ParseFloat(header, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, 1e9) * float64(time.Second)), true
	}
	at, err := http.ParseTime(header)
	return max(at.Sub(now), 0), err == nil
}
