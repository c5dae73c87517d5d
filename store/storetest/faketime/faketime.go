// Package faketime lets time pass in tests on the fake clock of testing/synctest.
package faketime

import "time"

// Pass returns when d has passed on the fake clock, which begins in the year 2000. It panics on a
// real clock, because a test waits for conditions there.
func Pass(d time.Duration) {
	if time.Now().Year() > 2020 {
		panic("faketime.Pass on a real clock: wait for a condition, or use testing/synctest")
	}
	time.Sleep(d) //nolint:forbidigo // fake time
}
