package deployment

import (
	"sync/atomic"

	"takt/store"
	"takt/store/metrics"
)

// gauges are the subsystem's metrics. They outlive its processes.
type gauges struct {
	active, copying       atomic.Int64
	done, failed, skipped atomic.Int64
}

// Show shows the metrics of this controller.
func (d *Deployments) Show(show metrics.Show) {
	g := &d.gauges
	show("takt_deployments_active", float64(g.active.Load()))
	show("takt_deployments_copying_repositories", float64(g.copying.Load()))
	show("takt_deployments_done_total", float64(g.done.Load()))
	show("takt_deployments_failed_total", float64(g.failed.Load()))
	show("takt_deployments_skipped_total", float64(g.skipped.Load()))
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
