package database

import (
	"math/rand/v2"
	"time"
)

// Backoff is the waiting time between attempts to reach something that is
// away. The zero value waits 1 s to 30 s.
type Backoff struct {
	// Min is the shortest wait. Defaults to 1 second.
	Min time.Duration
	// Max is the longest wait. Defaults to 30 seconds.
	Max time.Duration
}

// Wait returns how long to wait after attempt n (from 0) failed. The bound
// doubles with each attempt and the wait is drawn from its upper half, so that
// many processes which lost the same database do not return at one instant.
func (b Backoff) Wait(n int, random *rand.Rand) time.Duration {
	low, high := b.Min, b.Max
	if low <= 0 {
		low = time.Second
	}
	if high <= 0 {
		high = 30 * time.Second
	}
	bound := 2 * low
	for ; n > 0 && bound < high; n-- {
		bound *= 2
	}
	bound = max(min(bound, high), low)
	half := bound / 2
	return max(half+time.Duration(random.Int64N(int64(bound-half)+1)), low)
}
