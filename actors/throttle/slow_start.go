package throttle

import (
	"time"

	"takt/store/backoff"
	"takt/store/hubspot"
)

// slowStart limits the calls for a portal whose calls fail: one at a time, with a pause before
// each that doubles up to a minute, until one succeeds. Each success then allows one more at a
// time, also at the start. So a portal that is down takes little from the others, and few of
// its own actions fail.
type slowStart struct {
	failures int // in a row
	trust    int // successes since the last failure
}

// calls returns how many calls may run at once, at most most.
func (s *slowStart) calls(most int) int { return min(most, 1+s.trust) }

// after records how a call ended and returns how long to wait before the next one.
func (s *slowStart) after(k hubspot.Kind) time.Duration {
	switch k {
	case hubspot.Broken, hubspot.Silent, hubspot.Blocked, hubspot.BadToken:
		s.failures++
		s.trust = 0
		return backoff.Backoff{Max: time.Minute}.Wait(s.failures - 1)
	case hubspot.Wait:
		s.trust = 0
		return 0 // HubSpot's reply has the pause, and it is not a failure
	default:
		s.failures = 0
		s.trust++
		return 0
	}
}
