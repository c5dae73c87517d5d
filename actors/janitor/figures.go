package janitor

import "github.com/prometheus/client_golang/prometheus"

// figures are what the janitor did since the process started. They outlive the
// actor's incarnations.
type figures struct {
	rounds, temporary, orphans, failures       prometheus.Counter
	sources, certs, results, logs, diagnostics prometheus.Counter
	copied, copyFailures                       prometheus.Counter
	owed                                       prometheus.Gauge
	all                                        []prometheus.Collector
}

func newFigures() *figures {
	f := &figures{owed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "takt_storage_copies_owed", Help: "Copies that S3 waits for."})}
	f.all = append(f.all, f.owed)
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "takt_storage_" + name + "_total", Help: help})
		f.all = append(f.all, c)
		return c
	}
	f.rounds = counter("rounds", "Rounds that tidied storage.")
	f.temporary = counter("temporary_removed", "Temporary files and unfinished uploads that were removed.")
	f.orphans = counter("orphans_removed", "Files and objects that were removed, because no row named them.")
	f.failures = counter("remove_failures", "Files and objects that could not be removed.")
	f.sources = counter("expired_sources", "Sources that were removed, because they had been kept for long enough.")
	f.certs = counter("expired_certs", "Certs that were removed, because they had been kept for long enough.")
	f.results = counter("expired_results", "Results that were removed, because they had been kept for long enough.")
	f.logs = counter("expired_logs", "Builds whose logs were removed, because they had been kept for long enough.")
	f.diagnostics = counter("expired_diagnostics", "Diagnostic reports that were removed, because they had been kept for long enough.")
	f.copied = counter("copies", "Copies that S3 was owed and got.")
	f.copyFailures = counter("copy_failures", "Copies that could not be made, S3 being well.")
	return f
}

// Collectors are the janitor's metrics, to be registered once.
func (j *Janitor) Collectors() []prometheus.Collector { return j.figures.all }
