package settings

import (
	"cmp"
	"math"
	"syscall"
)

// mostParked is how many polls may wait at once if no setting says so.
const mostParked = 20_000

// Parked returns how many polls may wait at once.
func (c Config) Parked() int {
	return cmp.Or(c.MaxParked, min(mostParked, ConnectionsFor(2*mostParked, FileLimit())/2))
}

// ConnectionsFor returns at most need. It reserves some of the file descriptors for files
// and the database.
func ConnectionsFor(need int, files uint64) int {
	spare := min(files/4, 1024)
	return int(min(uint64(need), files-spare))
}

// FileLimit returns how many files this process may have open. Go's runtime raises the
// soft limit to the hard limit at the start, and gives child processes the original one.
func FileLimit() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32 // the limit is not known, so assume none
	}
	return limit.Cur
}
