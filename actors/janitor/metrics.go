package janitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"takt/store/metrics"
)

// figures are what the janitor did since the process started. They outlive the
// actor's incarnations.
type figures struct {
	metrics.Set
	rounds, temporary, orphans, failures       prometheus.Counter
	sources, certs, results, logs, diagnostics prometheus.Counter
	copied, copyFailures                       prometheus.Counter
	pendingCopies                              prometheus.Gauge
}

func newFigures() *figures {
	f := &figures{}
	f.pendingCopies = f.Gauge("takt_storage_copies_owed").WithLabelValues()
	for name, c := range map[string]*prometheus.Counter{
		"rounds": &f.rounds, "temporary_removed": &f.temporary, "orphans_removed": &f.orphans, "remove_failures": &f.failures,
		"expired_sources": &f.sources, "expired_certs": &f.certs, "expired_results": &f.results, "expired_logs": &f.logs,
		"expired_diagnostics": &f.diagnostics, "copies": &f.copied, "copy_failures": &f.copyFailures,
	} {
		*c = f.Counter("takt_storage_" + name + "_total").WithLabelValues()
	}
	return f
}

// Metrics are the janitor's metrics, to be registered once.
func (j *Janitor) Metrics() prometheus.Collector { return j.figures }
