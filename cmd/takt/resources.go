package main

import (
	"cmp"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
)

const (
	// headroom is how much the heap may at least grow between two collections, in bytes.
	// takt's own heap is a few MiB, so with Go's default it would be collected about
	// thirty times a second under load.
	headroom = 24 << 20
	// defaultPercent is Go's default GOGC, used for heaps larger than headroom.
	defaultPercent = 100
)

// keepHeadroom sets GOGC after each collection such that a small heap gets headroom and a
// large one is collected at Go's default. It does nothing if the operator has set GOGC or
// GOMEMLIMIT.
func keepHeadroom() {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if _, set := os.LookupEnv(name); set {
			return
		}
	}
	p := &pace{percent: defaultPercent, live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	p.adjust()
}

// pace has the current GOGC. adjust runs after each collection, because it is the cleanup of
// an object that is garbage immediately.
type pace struct {
	percent int
	live    []metrics.Sample
}

func (p *pace) adjust() {
	metrics.Read(p.live)
	if next := percentFor(p.live[0].Value.Uint64()); next != p.percent {
		p.percent = next
		debug.SetGCPercent(next)
	}
	runtime.AddCleanup(new(*byte), (*pace).adjust, p)
}

// percentFor returns the GOGC value that gives a heap of live bytes its headroom. The
// value changes in steps, so that small changes of the heap are ignored.
func percentFor(live uint64) int {
	const step = 50
	percent := headroom * 100 / max(live, 1<<20)
	return int(max(defaultPercent, percent/step*step))
}

// connections returns how many connections the server accepts: as many as the settings
// need, but no more than the file descriptors allow.
func (c *controller) connections() int {
	need := max(2*c.cfg.parked(), 1024)
	files := fileLimit()
	n := connectionsFor(need, files)
	if n < need {
		c.log.Warn().Uint64("file_descriptors", files).Int("connections", n).Int("needed", need).
			Msg("the limit of open files is lower than the settings need: raise it (ulimit -n, LimitNOFILE) or lower --max-parked")
	}
	return n
}

// mostParked is how many polls may wait at once if no setting says so.
const mostParked = 20_000

// parked returns how many polls may wait at once.
func (c Config) parked() int {
	return cmp.Or(c.MaxParked, min(mostParked, connectionsFor(2*mostParked, fileLimit())/2))
}

// connectionsFor returns at most need. It reserves some of the file descriptors for files
// and the database.
func connectionsFor(need int, files uint64) int {
	spare := min(files/4, 1024)
	return int(min(uint64(need), files-spare))
}

// fileLimit returns how many files this process may have open. Go's runtime raises the
// soft limit to the hard limit at the start, and gives child processes the original one.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32 // the limit is not known, so assume none
	}
	return limit.Cur
}
