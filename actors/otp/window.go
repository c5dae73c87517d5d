package otp

import "slices"

// window is a supervisor's restart intensity. It counts in whole seconds, so
// the window is anything from period to period + 1 s, as in OTP.
type window struct {
	limit    int
	period   int64 // seconds
	restarts []int64
}

// add counts a restart at second now. It returns false if that is one too many.
func (w *window) add(now int64) bool {
	w.restarts = slices.DeleteFunc(w.restarts, func(at int64) bool { return at < now-w.period })
	w.restarts = append(w.restarts, now)
	return len(w.restarts) <= w.limit
}
