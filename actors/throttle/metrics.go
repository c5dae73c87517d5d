package throttle

import "github.com/prometheus/client_golang/prometheus"

// metrics are the throttle's metrics. They outlive its actors.
type metrics struct {
	received  *prometheus.CounterVec // new, repeat
	refused   *prometheus.CounterVec // full, database, unknown
	finished  *prometheus.CounterVec // completed, given_up, expired
	calls     *prometheus.HistogramVec
	refreshes *prometheus.CounterVec
	flushes   prometheus.Histogram
	batch     prometheus.Histogram
	failures  prometheus.Counter
	held      prometheus.Counter
	full      prometheus.Counter
	restored  prometheus.Counter
	portals   prometheus.Gauge
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "takt_throttle_" + name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "takt_throttle_" + name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "takt_throttle_" + name, Help: help})
	}
	sizes := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "takt_throttle_" + name, Help: help, Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500},
		})
	}
	return &metrics{
		received:  counters("actions_received_total", "Actions acknowledged durably: new ones and repeats.", "what"),
		refused:   counters("actions_refused_total", "Actions not taken, by reason.", "reason"),
		finished:  counters("actions_finished_total", "Actions that ended, by how.", "how"),
		refreshes: counters("token_refreshes_total", "Tokens refreshed at HubSpot, by outcome.", "outcome"),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "takt_throttle_call_duration_seconds", Help: "Calls that complete actions, by what HubSpot's answer means.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"answer"}),
		flushes:  sizes("flush_actions", "Actions in one transaction of ActionBatcher."),
		batch:    sizes("call_actions", "Actions completed by one call."),
		failures: counter("action_failures_total", "Failures of actions to be completed."),
		held:     counter("actions_held_total", "Actions held back because they failed several times in a row."),
		full:     counter("portals_refused_total", "Portals that were not looked after, because too many were."),
		restored: counter("jobs_restored_total", "Queues that had actions and no living job. Should stay 0."),
		portals:  gauge("portals", "Portals that are looked after here."),
	}
}

// collectors lists the metrics for registration. buffered is how many actions wait.
func (m *metrics) collectors(buffered func() float64) []prometheus.Collector {
	return []prometheus.Collector{
		m.received, m.refused, m.finished, m.calls, m.refreshes, m.flushes, m.batch, m.failures, m.held, m.full,
		m.restored, m.portals,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "takt_throttle_actions_buffered", Help: "Actions that wait for their transaction."}, buffered),
	}
}
