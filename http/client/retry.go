package client

import (
	"context"
	"fmt"
	"time"

	"takt/store/backoff"
)

// Retry repeats a call that failed for a temporary reason. Use it for calls that are
// safe to repeat. The zero value retries without limit, with the default back-off,
// until the context ends.
type Retry struct {
	backoff.Backoff
	// Attempts is the most calls made; 0 means no limit.
	Attempts int
	// Patience is the time after which no new call begins; 0 means no limit.
	Patience time.Duration
	// Temporary decides which errors to retry; nil means [Temporary].
	Temporary func(error) bool
	// OnWait is called with each failure that will be retried. May be nil.
	OnWait func(err error, wait time.Duration)
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

// pause waits after the n-th failure (from 0) of a series that began at began. It
// returns nil when it is time to retry, else the error to give up with.
func (r Retry) pause(ctx context.Context, err error, n int, began time.Time) error {
	if ctx.Err() != nil || !r.again(err) || r.Attempts > 0 && n+1 >= r.Attempts {
		return err
	}
	wait := r.WaitAtLeast(n, RetryAfter(err))
	if r.Patience > 0 && time.Since(began)+wait > r.Patience {
		return err
	}
	if r.OnWait != nil {
		r.OnWait(err, wait)
	}
	if cause := backoff.Pause(ctx, wait); cause != nil {
		return fmt.Errorf("%w (last failure: %v)", cause, err) //nolint:errorlint // the cause is the error
	}
	return nil
}

func (r Retry) again(err error) bool {
	if r.Temporary != nil {
		return r.Temporary(err)
	}
	return Temporary(err)
}
