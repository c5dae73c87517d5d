// Package metrics defines takt's Prometheus metrics in one table, from which they are
// registered and documented (docs/metrics.md), and which the Grafana boards are checked
// against. [Metrics] are those that several packages observe; other packages make theirs from
// the table with a [Set].
//
// # State
//
// Metrics outlive the actors, so a restart loses no count. Labels have few values:
// names of statements, states and kinds, and never ids, names of workers, portals or
// organisations, because anybody may read the metrics.
//
// # Failure
//
// An observation can't fail. A metric that is not in the table panics when it is made.
//
// # Concurrency
//
// Everything is safe for concurrent use.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/store"
	"takt/store/tracing"
)

// Metrics are metrics of one process. The table says what they mean.
type Metrics struct {
	Set

	Statements      *prometheus.HistogramVec // statement
	StatementErrors *prometheus.CounterVec   // statement
	ConnectionWait  *prometheus.HistogramVec

	Submitted        *prometheus.CounterVec   // platform
	Waited           *prometheus.HistogramVec // platform, priority
	Built            *prometheus.HistogramVec // platform, result
	Ended            *prometheus.CounterVec   // platform, result
	AttemptsLost     *prometheus.CounterVec   // reason: store.Lost…
	CancelTold       *prometheus.HistogramVec
	WorkerSteps      *prometheus.CounterVec // step: store.Step…
	TokensRotated    *prometheus.CounterVec
	TokensRefused    *prometheus.CounterVec
	DuplicateWorkers *prometheus.CounterVec

	Batch       *prometheus.HistogramVec
	Transaction *prometheus.HistogramVec

	PlaceWait *prometheus.HistogramVec // pool

	Stored       *prometheus.HistogramVec // operation, kind
	StorageBytes *prometheus.CounterVec   // operation, kind

	SpansSent    *prometheus.CounterVec
	SpansDropped *prometheus.CounterVec // reason: full or refused
}

// New makes the metrics; register them once.
func New() *Metrics {
	m := &Metrics{}
	m.Statements = m.Histogram("takt_database_statement_duration_seconds")
	m.StatementErrors = m.Counter("takt_database_statement_errors_total")
	m.ConnectionWait = m.Histogram("takt_database_connection_wait_seconds")
	m.Submitted = m.Counter("takt_builds_submitted_total")
	m.Waited = m.Histogram("takt_build_wait_seconds")
	m.Built = m.Histogram("takt_build_duration_seconds")
	m.Ended = m.Counter("takt_builds_ended_total")
	m.AttemptsLost = m.Counter("takt_build_attempts_lost_total")
	m.CancelTold = m.Histogram("takt_build_cancel_seconds")
	m.WorkerSteps = m.Counter("takt_worker_steps_total")
	m.TokensRotated = m.Counter("takt_worker_tokens_rotated_total")
	m.TokensRefused = m.Counter("takt_worker_tokens_refused_total")
	m.DuplicateWorkers = m.Counter("takt_worker_duplicates_refused_total")
	m.Batch = m.Histogram("takt_queue_batch_polls")
	m.Transaction = m.Histogram("takt_queue_transaction_duration_seconds")
	m.PlaceWait = m.Histogram("takt_heijunka_wait_seconds")
	m.Stored = m.Histogram("takt_storage_duration_seconds")
	m.StorageBytes = m.Counter("takt_storage_bytes_total")
	m.SpansSent = m.Counter("takt_trace_spans_sent_total")
	m.SpansDropped = m.Counter("takt_trace_spans_dropped_total")
	// A counter that appears with its first event has no rate for it.
	m.StatementErrors.WithLabelValues("other")
	for _, reason := range []string{"full", "refused"} {
		m.SpansDropped.WithLabelValues(reason)
	}
	m.SpansSent.WithLabelValues()
	m.ConnectionWait.WithLabelValues()
	return m
}

// BeginBuilds makes the counters of the service builds, whose labels are known.
func (m *Metrics) BeginBuilds() {
	for _, p := range []store.Platform{store.IOS, store.Android} {
		m.Submitted.WithLabelValues(string(p))
		for _, s := range []store.BuildState{store.Completed, store.Failed, store.Cancelled} {
			m.Ended.WithLabelValues(string(p), string(s))
		}
	}
	for _, reason := range []string{store.LostSilent, store.LostRestarted, store.LostUnregistered, store.LostDeleted, store.LostRequeued, store.LostExit} {
		m.AttemptsLost.WithLabelValues(reason)
	}
	for _, fault := range store.WorkerFaults() {
		m.AttemptsLost.WithLabelValues(string(fault))
	}
	for _, step := range []string{store.StepRegistered, store.StepOffline, store.StepDrained, store.StepResumed, store.StepGone, store.StepQuarantined, store.StepSuspected} {
		m.WorkerSteps.WithLabelValues(step)
	}
	for _, c := range []*prometheus.CounterVec{m.TokensRotated, m.TokensRefused, m.DuplicateWorkers} {
		c.WithLabelValues()
	}
	for _, h := range []*prometheus.HistogramVec{m.CancelTold, m.Batch, m.Transaction} {
		h.WithLabelValues()
	}
}

// Observe records a duration, with ctx's trace as its exemplar if that is sampled.
func Observe(ctx context.Context, to prometheus.Observer, d time.Duration) {
	ObserveIn(tracing.ID(ctx), to, d)
}

// ObserveIn records a duration with a trace as its exemplar; "" means none.
func ObserveIn(traceID string, to prometheus.Observer, d time.Duration) {
	seconds := max(d, 0).Seconds() // clocks of two machines may differ
	if exemplars, ok := to.(prometheus.ExemplarObserver); ok && traceID != "" {
		exemplars.ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": traceID})
		return
	}
	to.Observe(seconds)
}
