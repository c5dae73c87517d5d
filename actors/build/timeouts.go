package build

import (
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
		CheckInterval: or(t.CheckInterval, fallback.CheckInterval),
		BuildTimeout:  or(t.BuildTimeout, fallback.BuildTimeout),
		WorkerTimeout: or(t.WorkerTimeout, fallback.WorkerTimeout),
	}
}
