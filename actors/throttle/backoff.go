package throttle

import (
	"time"

	"takt/actors/throttle/hubspot"
)

const (
	backoffFirst = 500 * time.Millisecond
	backoffMost  = time.Minute
)

// backoff slows a portal down that fails: one call at a time, with a pause before
// each that doubles, until one succeeds. It spares actions failures that are not
// theirs. A portal that has not proved itself yet begins with one call as well;
// each that succeeds allows one more at a time. So one that is down costs the
// others, and its actions, as little as can be.
type backoff struct {
	failures int // in a row
	trust    int // successes since the last failure
}

// calls returns how many calls may be under way, of most.
func (b *backoff) calls(most int) int { return min(most, 1+b.trust) }

// after notes how a call ended and returns how long to wait before the next one.
func (b *backoff) after(k hubspot.Kind) time.Duration {
	switch k {
	case hubspot.Broken, hubspot.Silent, hubspot.Blocked, hubspot.BadToken:
		b.failures++
		b.trust = 0
		return min(backoffFirst<<min(b.failures-1, 10), backoffMost)
	case hubspot.Wait:
		b.trust = 0
		return 0 // says itself how long, and is no failure
	default:
		b.failures = 0
		b.trust++
		return 0
	}
}
