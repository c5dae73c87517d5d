package serving

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"takt/cmd/internal/settings"
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
	need := max(2*c.cfg.Parked(), 1024)
	files := settings.FileLimit()
	n := settings.ConnectionsFor(need, files)
	if n < need {
		c.log.Warn().Uint64("file_descriptors", files).Int("connections", n).Int("needed", need).
			Msg("the limit of open files is lower than the settings need: raise it (ulimit -n, LimitNOFILE) or lower --max-parked")
	}
	return n
}
