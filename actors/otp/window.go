package otp

// window is a supervisor's restart intensity. It counts in whole seconds, so
// the window is anything from period to period + 1 s, as in OTP.
type window struct {
	limit    int
	period   int64 // seconds
	restarts []int64
}

// add counts a restart at second now. It returns false if that is one too many.
func (w *window) add(now int64) bool {
	kept := w.restarts[:0]
	for _, at := range w.restarts {
		if at >= now-w.period {
			kept = append(kept, at)
		}
	}
	w.restarts = append(kept, now)
	return len(w.restarts) <= w.limit
}
