package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// headroom is what the heap may grow by, at least, between two collections,
	// in bytes. takt's own heap is a few MiB: at Go's default it would be
	// collected some thirty times a second under load.
	headroom = 24 << 20
	// defaultPercent is Go's own pace, kept for heaps larger than headroom.
	defaultPercent = 100
)

// keepHeadroom sets the garbage collector's pace after each collection such that
// a small heap gets headroom and a large one is treated as always. It leaves an
// operator's own GOGC or GOMEMLIMIT alone.
func keepHeadroom() {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if _, set := os.LookupEnv(name); set {
			return
		}
	}
	p := &pace{percent: defaultPercent, live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	p.adjust()
}

// pace is adjusted after each collection: the object that adjust attaches its
// cleanup to is garbage at once, so the next collection runs it.
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

// percentFor returns the GOGC value that gives a heap of live bytes its
// headroom, in steps, so that small changes are ignored.
func percentFor(live uint64) int {
	const step = 50
	percent := headroom * 100 / max(live, 1<<20)
	return int(max(defaultPercent, percent/step*step))
}
