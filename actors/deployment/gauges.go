package deployment

import (
	"sync/atomic"

	"takt/store"
)

// gauges are the subsystem's metrics. They outlive its processes.
type gauges struct {
	active, copying       atomic.Int64
	done, failed, skipped atomic.Int64
}

// Stats are the subsystem's figures on this controller.
type Stats struct {
	// Active is how many deployments this controller works on, Copying how many
	// repositories it copies.
	Active, Copying int64
	// Done, Failed and Skipped count repositories by outcome since the process started.
	Done, Failed, Skipped int64
}

// Stats returns the current figures.
func (d *Deployments) Stats() Stats {
	g := &d.gauges
	return Stats{
		Active: g.active.Load(), Copying: g.copying.Load(), Done: g.done.Load(), Failed: g.failed.Load(), Skipped: g.skipped.Load(),
	}
}

// ended counts a repository by its last step.
func (g *gauges) ended(step store.RepoStep) {
	switch step {
	case store.RepoDone:
		g.done.Add(1)
	case store.RepoFailed:
		g.failed.Add(1)
	case store.RepoSkipped:
		g.skipped.Add(1)
	default:
	}
}
