package doctor

import "golang.org/x/sys/unix"

// clockSynchronised reports whether the kernel knows that something keeps its clock right
// (adjtimex(2)), and whether it could be asked.
func clockSynchronised() (synchronised, known bool) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, err == nil
}
