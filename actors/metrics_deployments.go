package actors

import "takt/actors/deployment"

func (t *Tree) measureDeployments() {
	figure := func(f func(deployment.Stats) int64) func() float64 {
		return func() float64 { return float64(f(t.Deployments.Stats())) }
	}
	tel := t.Telemetry
	tel.Gauge("takt_deployments_active", "Deployments that this controller works on.",
		figure(func(s deployment.Stats) int64 { return s.Active }))
	tel.Gauge("takt_deployments_copying_repositories", "Repositories that are being copied.",
		figure(func(s deployment.Stats) int64 { return s.Copying }))
	tel.Counter("takt_deployments_done_total", "Repositories that were copied and verified.",
		figure(func(s deployment.Stats) int64 { return s.Done }))
	tel.Counter("takt_deployments_failed_total", "Repositories that could not be copied.",
		figure(func(s deployment.Stats) int64 { return s.Failed }))
	tel.Counter("takt_deployments_skipped_total", "Repositories that needed no copying.",
		figure(func(s deployment.Stats) int64 { return s.Skipped }))
}
