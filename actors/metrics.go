package actors

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/actors/janitor"
	"takt/actors/queue"
	"takt/store"
)

// measure registers the figures of the subsystems, which know no registry.
func (t *Tree) measure() {
	stat := func(f func(queue.Stats) float64) func() float64 {
		return func() float64 { return f(t.Queue.Stats()) }
	}
	tel := t.Telemetry
	tel.Gauge("takt_queue_pending_builds", "Builds that wait, as the queue's hints have it.",
		stat(func(s queue.Stats) float64 { return float64(s.Pending) }))
	tel.Gauge("takt_queue_parked_polls", "Polls that wait for a build.",
		stat(func(s queue.Stats) float64 { return float64(s.Parked) }))
	tel.Gauge("takt_queue_waiting_polls", "Polls that wait for a transaction.",
		stat(func(s queue.Stats) float64 { return float64(s.Waiting) }))
	tel.Gauge("takt_queue_batched_polls", "Polls in a transaction.",
		stat(func(s queue.Stats) float64 { return float64(s.Batched) }))
	tel.Gauge("takt_queue_sessions", "Workers that this controller remembers.",
		stat(func(s queue.Stats) float64 { return float64(s.Sessions) }))
	tel.Counter("takt_queue_idle_polls_total", "Polls that were answered or parked from memory.",
		stat(func(s queue.Stats) float64 { return float64(s.Idle) }))
	tel.Counter("takt_queue_transactions_total", "Assignment transactions.",
		stat(func(s queue.Stats) float64 { return float64(s.Batches) }))
	tel.Counter("takt_queue_polls_total", "Polls that were in an assignment transaction.",
		stat(func(s queue.Stats) float64 { return float64(s.Polls) }))
	tel.Counter("takt_queue_assigned_total", "Builds handed out for the first time.",
		stat(func(s queue.Stats) float64 { return float64(s.Assigned) }))
	tel.Counter("takt_queue_redelivered_total", "Builds handed out again, because the reply may have been lost.",
		stat(func(s queue.Stats) float64 { return float64(s.Redelivered) }))
	tel.Counter("takt_queue_failed_polls_total", "Polls that ended with an error.",
		stat(func(s queue.Stats) float64 { return float64(s.Failed) }))
	tel.Counter("takt_queue_woken_total", "Wake-ups of parked polls.",
		stat(func(s queue.Stats) float64 { return float64(s.Woken) }))
	tel.Gauge("takt_leaked_processes", "Abandoned actors and goroutines that still run.",
		func() float64 { return float64(t.sys.Leaked()) })
	tel.Gauge("takt_ready", "1 while work can be done.", func() float64 {
		if t.Ready() {
			return 1
		}
		return 0
	})
	tel.Register(t.Throttle.Collectors()...)
	t.measurePool()
	t.Telemetry.Register(newHeijunkaMetrics(t.Heijunka.Status))
	t.measureDeployments()
	t.measureJanitor()
	tel.Register(newProcessMetrics(t.Snapshot), invariantMetrics{t.Auditor.Last})
}

func (t *Tree) measureJanitor() {
	stat := func(f func(janitor.Stats) int64) func() float64 {
		return func() float64 { return float64(f(t.Janitor.Stats())) }
	}
	tel := t.Telemetry
	tel.Counter("takt_storage_rounds_total", "Rounds that tidied storage.", stat(func(s janitor.Stats) int64 { return s.Rounds }))
	tel.Counter("takt_storage_temporary_removed_total", "Temporary files and unfinished uploads that were left behind.",
		stat(func(s janitor.Stats) int64 { return s.Temporary }))
	tel.Counter("takt_storage_orphans_removed_total", "Files and objects that no row named.",
		stat(func(s janitor.Stats) int64 { return s.Orphans }))
	tel.Counter("takt_storage_remove_failures_total", "Files and objects that could not be removed.",
		stat(func(s janitor.Stats) int64 { return s.Failures }))
	tel.Counter("takt_storage_expired_sources_total", "Sources that were kept for long enough.",
		stat(func(s janitor.Stats) int64 { return s.Sources }))
	tel.Counter("takt_storage_expired_certs_total", "Certs that were kept for long enough.",
		stat(func(s janitor.Stats) int64 { return s.Certs }))
	tel.Counter("takt_storage_expired_results_total", "Results that were kept for long enough.",
		stat(func(s janitor.Stats) int64 { return s.Results }))
	tel.Counter("takt_storage_expired_logs_total", "Builds whose logs were kept for long enough.",
		stat(func(s janitor.Stats) int64 { return s.Logs }))
	tel.Counter("takt_storage_expired_diagnostics_total", "Diagnostic reports that were kept for long enough.",
		stat(func(s janitor.Stats) int64 { return s.Diagnostics }))
	tel.Counter("takt_storage_copies_total", "Copies that S3 was owed and got.",
		stat(func(s janitor.Stats) int64 { return s.Copied }))
	tel.Counter("takt_storage_copy_failures_total", "Copies that could not be made, S3 being well.",
		stat(func(s janitor.Stats) int64 { return s.CopyFailures }))
	tel.Gauge("takt_storage_copies_owed", "Copies that S3 waits for.", stat(func(s janitor.Stats) int64 { return s.Owed }))
}

func (t *Tree) measurePool() {
	tel := t.Telemetry
	tel.Gauge("takt_pool_connections", "Connections to PostgreSQL.", func() float64 {
		if s := t.Pool.Stat(); s != nil {
			return float64(s.TotalConns())
		}
		return 0
	})
	tel.Gauge("takt_pool_busy_connections", "Connections to PostgreSQL in use.", func() float64 {
		if s := t.Pool.Stat(); s != nil {
			return float64(s.AcquiredConns())
		}
		return 0
	})
	tel.Gauge("takt_vacuum_held_back_seconds",
		"For how long an old snapshot has kept vacuum from its work while the database was written; 0 below a minute.",
		func() float64 { return t.VacuumHeldBack().Seconds() })
}

// VacuumHeldBack is for how long an old snapshot has kept vacuum from its work
// while the database was written to; 0 if for less than a minute.
func (t *Tree) VacuumHeldBack() time.Duration {
	held, ok := t.Pool.HeldBack()
	if !ok {
		return 0
	}
	return time.Since(held.Since)
}

// invariantMetrics shows what the last check found.
type invariantMetrics struct{ last func() []store.Invariant }

var brokenInvariants = prometheus.NewDesc("takt_invariant_violations",
	"Rows of the database that break an invariant, as the last check found; takt audit check names them.", []string{"invariant"}, nil)

// Describe implements prometheus.Collector.
func (invariantMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- brokenInvariants }

// Collect implements prometheus.Collector.
func (m invariantMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, i := range m.last() {
		ch <- prometheus.MustNewConstMetric(brokenInvariants, prometheus.GaugeValue, float64(i.Broken-i.Repaired), i.Name)
	}
}
