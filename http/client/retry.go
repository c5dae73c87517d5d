package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is a growing wait: Min, then doubled each time up to Max, of which a
// random half is taken off so that a fleet does not return all at once.
type Backoff struct {
	// Min is the first wait. Defaults to 500 ms.
	Min time.Duration
	// Max is the longest wait. Defaults to 30 s.
	Max time.Duration
}

// Delay is the wait after the n-th failure (from 0). chance is in [0, 1).
func (b Backoff) Delay(n int, chance float64) time.Duration {
	first, most := cmp.Or(b.Min, 500*time.Millisecond), cmp.Or(b.Max, 30*time.Second)
	full := min(first<<min(n, 16), most) // without overflow
	return full/2 + time.Duration(chance*float64(full/2))
}

// After is Delay, but at least what the controller asked for in Retry-After,
// plus up to a tenth of it for the same reason.
func (b Backoff) After(err error, n int, chance float64) time.Duration {
	wait := b.Delay(n, chance)
	if asked := RetryAfter(err); asked > 0 {
		wait = max(wait, asked+time.Duration(chance*float64(asked/10)))
	}
	return wait
}

// Retry repeats a call that failed for a temporary reason. Use it for calls
// that are safe to repeat. The zero value tries for ever, with the default
// backoff, until the context ends.
type Retry struct {
	Backoff
	// Attempts is the most calls made; 0 means no limit.
	Attempts int
	// Patience is the time after which no further call is begun; 0 means no
	// limit.
	Patience time.Duration
	// Temporary decides; nil means [Temporary].
	Temporary func(error) bool
	// OnWait is called with each failure that will be retried. May be nil.
	OnWait func(err error, wait time.Duration)
	// Chance is the source of jitter, nil means math/rand.
	Chance func() float64
}

// Do calls op until it succeeds, fails for good, or the limits are reached, and
// returns op's last error. When ctx ends during a wait, its cause is returned,
// with op's last error in the text.
func (r Retry) Do(ctx context.Context, op func(context.Context) error) error {
	began := time.Now()
	for n := 0; ; n++ {
		err := op(ctx)
		if err == nil {
			return nil
		}
		if err := r.pause(ctx, err, n, began); err != nil {
			return err
		}
	}
}

// pause waits after the n-th failure (from 0) of a series that began then. It
// returns nil when it is time to try again, else the error to give up with.
func (r Retry) pause(ctx context.Context, err error, n int, began time.Time) error {
	if ctx.Err() != nil || !r.again(err) || r.Attempts > 0 && n+1 >= r.Attempts {
		return err
	}
	wait := r.After(err, n, r.chance())
	if r.Patience > 0 && time.Since(began)+wait > r.Patience {
		return err
	}
	if r.OnWait != nil {
		r.OnWait(err, wait)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w (last failure: %v)", context.Cause(ctx), err) //nolint:errorlint // the cause is the error
	}
}

func (r Retry) again(err error) bool {
	if r.Temporary != nil {
		return r.Temporary(err)
	}
	return Temporary(err)
}

func (r Retry) chance() float64 {
	if r.Chance != nil {
		return r.Chance()
	}
	return rand.Float64()
}
