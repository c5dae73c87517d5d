package throttle

import (
	"time"

	"takt/actors/throttle/hubspot"
)

const (
	brakeFirst = 500 * time.Millisecond
	brakeMost  = time.Minute
)

// brake slows a portal down that fails: one call at a time, with a pause before
// each that doubles, until one succeeds. It spares actions failures that are not
// theirs.
type brake struct{ failures int }

// calls returns how many calls may be under way, of most.
func (b *brake) calls(most int) int {
	if b.failures > 0 {
		return 1
	}
	return most
}

// after notes how a call ended and returns how long to wait before the next one.
func (b *brake) after(k hubspot.Kind) time.Duration {
	switch k {
	case hubspot.Broken, hubspot.Silent, hubspot.Blocked, hubspot.BadToken:
		b.failures++
		return min(brakeFirst<<min(b.failures-1, 10), brakeMost)
	case hubspot.Wait:
		return 0 // says itself how long, and is no failure
	default:
		b.failures = 0
		return 0
	}
}
