package throttle

import (
	"github.com/prometheus/client_golang/prometheus"

	"takt/store/metrics"
)

// figures are the throttle's metrics. They outlive its actors.
type figures struct {
	metrics.Set
	received  *prometheus.CounterVec // new, repeat
	refused   *prometheus.CounterVec // full, database, unknown
	finished  *prometheus.CounterVec // completed, given_up, expired
	refreshes *prometheus.CounterVec
	calls     *prometheus.HistogramVec
	flushes   prometheus.Observer
	batch     prometheus.Observer
	failures  prometheus.Counter
	held      prometheus.Counter
	full      prometheus.Counter
	restored  prometheus.Counter
	portals   prometheus.Gauge
}

func newFigures() *figures {
	f := &figures{}
	f.received = f.Counter("takt_throttle_actions_received_total")
	f.refused = f.Counter("takt_throttle_actions_refused_total")
	f.finished = f.Counter("takt_throttle_actions_finished_total")
	f.refreshes = f.Counter("takt_throttle_token_refreshes_total")
	f.calls = f.Histogram("takt_throttle_call_duration_seconds")
	f.flushes = f.Histogram("takt_throttle_flush_actions").WithLabelValues()
	f.batch = f.Histogram("takt_throttle_call_actions").WithLabelValues()
	f.failures = f.Counter("takt_throttle_action_failures_total").WithLabelValues()
	f.held = f.Counter("takt_throttle_actions_held_total").WithLabelValues()
	f.full = f.Counter("takt_throttle_portals_refused_total").WithLabelValues()
	f.restored = f.Counter("takt_throttle_jobs_restored_total").WithLabelValues()
	f.portals = f.Gauge("takt_throttle_portals").WithLabelValues()
	return f
}
