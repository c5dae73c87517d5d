// Package metrics is the table of what is observed as it happens. What can be read when
// it is asked for stands in package actors instead.
//
// # State
//
// [Metrics] outlives the actors, so a restart loses no count. Labels have few values:
// names of statements, states and kinds, and never ids, names of workers, portals or
// organisations, because anybody may read the metrics.
//
// # Failure
//
// None: an observation can't fail.
//
// # Concurrency
//
// Everything is safe for concurrent use.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
)

// Metrics are the metrics of one process. Durations are in seconds.
type Metrics struct {
	// Statements is how long SQL statements take, by name.
	Statements      *prometheus.HistogramVec
	StatementErrors *prometheus.CounterVec
	ConnectionWait  *prometheus.HistogramVec // no labels

	Submitted     *prometheus.CounterVec   // platform
	Waited        *prometheus.HistogramVec // platform, priority
	Built         *prometheus.HistogramVec // platform, result
	Ended         *prometheus.CounterVec   // platform, result
	AttemptsLost  *prometheus.CounterVec   // reason: store.Lost…
	CancelTold    *prometheus.HistogramVec // no labels
	WorkerSteps   *prometheus.CounterVec   // step: store.Step…
	TokensRotated *prometheus.CounterVec   // no labels
	TokensRefused *prometheus.CounterVec   // no labels
	// DuplicateWorkers has no labels.
	DuplicateWorkers *prometheus.CounterVec

	Batch       *prometheus.HistogramVec // no labels
	Transaction *prometheus.HistogramVec // no labels

	PlaceWait *prometheus.HistogramVec // pool

	Stored       *prometheus.HistogramVec // operation, kind
	StorageBytes *prometheus.CounterVec   // operation, kind

	SpansSent    *prometheus.CounterVec // no labels
	SpansDropped *prometheus.CounterVec // reason: full or refused

	all []prometheus.Collector
}

// Buckets of durations in seconds.
//
//nolint:gochecknoglobals // constants
var (
	short = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	long  = []float64{.1, .5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200}
)

// New makes the metrics; register them once.
func New() *Metrics {
	m := &Metrics{}
	m.Statements = m.histogram("takt_database_statement_duration_seconds",
		"Time from sending an SQL statement to the end of its result, by the statement's name.", short, "statement")
	m.StatementErrors = m.counter("takt_database_statement_errors_total",
		"SQL statements that failed, by the statement's name.", "statement")
	m.ConnectionWait = m.histogram("takt_database_connection_wait_seconds",
		"Time that calls waited for a connection to the database.", short)

	m.Submitted = m.counter("takt_builds_submitted_total", "Builds that were submitted here, by platform.", "platform")
	m.Waited = m.histogram("takt_build_wait_seconds",
		"Time from submitting a build to handing it out for the first time, by platform and priority.", long, "platform", "priority")
	m.Built = m.histogram("takt_build_duration_seconds",
		"Time from handing a build out to its end, by platform and result.", long, "platform", "result")
	m.Ended = m.counter("takt_builds_ended_total", "Builds that ended, by platform and result.", "platform", "result")
	m.AttemptsLost = m.counter("takt_build_attempts_lost_total",
		"Attempts that ended without a result, by reason: the worker was silent, restarted without the build, unregistered or was deleted, "+
			"or it could not run the build (command, engine, disk).", "reason")
	m.CancelTold = m.histogram("takt_build_cancel_seconds", "Time from cancelling a running build to telling its worker to stop.", long)
	m.WorkerSteps = m.counter("takt_worker_steps_total",
		"Steps of the lives of workers: registered, offline, drained, resumed, gone, quarantined.", "step")
	m.TokensRotated = m.counter("takt_worker_tokens_rotated_total", "Worker tokens that were issued in place of an older one.")
	m.TokensRefused = m.counter("takt_worker_tokens_refused_total", "Requests that were refused because of their worker token.")
	m.DuplicateWorkers = m.counter("takt_worker_duplicates_refused_total", "Requests that were refused because another process uses the worker's id.")

	m.Batch = m.histogram("takt_queue_batch_polls", "Polls in one assignment transaction.", []float64{1, 2, 4, 8, 16, 32, 64, 128, 256})
	m.Transaction = m.histogram("takt_queue_transaction_duration_seconds", "Time that assignment transactions took.", short)

	m.PlaceWait = m.histogram("takt_heijunka_wait_seconds", "Time that admitted requests waited for a place, by pool.", short, "pool")

	m.Stored = m.histogram("takt_storage_duration_seconds",
		"Time to make a file durable (write) or to open it (read), without the client's time, by kind.", short, "operation", "kind")
	m.StorageBytes = m.counter("takt_storage_bytes_total", "Bytes of the files that were written or opened, by kind.", "operation", "kind")

	m.SpansSent = m.counter("takt_trace_spans_sent_total", "Spans that the collector took.")
	m.SpansDropped = m.counter("takt_trace_spans_dropped_total",
		"Spans that were lost, by reason: full, because too many waited for the collector, or refused by it.", "reason")
	m.begin()
	return m
}

// begin makes the counters whose labels are known, because a counter that appears with
// its first event has no rate for it. Those of a service are made by its own method.
func (m *Metrics) begin() {
	m.StatementErrors.WithLabelValues("other")
	for _, reason := range []string{"full", "refused"} {
		m.SpansDropped.WithLabelValues(reason)
	}
	m.SpansSent.WithLabelValues()
	m.ConnectionWait.WithLabelValues()
}

// BeginBuilds makes the counters of the service builds, whose labels are known.
func (m *Metrics) BeginBuilds() {
	for _, p := range []store.Platform{store.IOS, store.Android} {
		m.Submitted.WithLabelValues(string(p))
		for _, s := range []store.BuildState{store.Completed, store.Failed, store.Cancelled} {
			m.Ended.WithLabelValues(string(p), string(s))
		}
	}
	for _, reason := range []string{store.LostSilent, store.LostRestarted, store.LostUnregistered, store.LostDeleted, store.LostRequeued} {
		m.AttemptsLost.WithLabelValues(reason)
	}
	for _, fault := range store.WorkerFaults() {
		m.AttemptsLost.WithLabelValues(string(fault))
	}
	for _, step := range []string{store.StepRegistered, store.StepOffline, store.StepDrained, store.StepResumed, store.StepGone, store.StepQuarantined} {
		m.WorkerSteps.WithLabelValues(step)
	}
	for _, c := range []*prometheus.CounterVec{m.TokensRotated, m.TokensRefused, m.DuplicateWorkers} {
		c.WithLabelValues()
	}
	for _, h := range []*prometheus.HistogramVec{m.CancelTold, m.Batch, m.Transaction} {
		h.WithLabelValues()
	}
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector { return m.all }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.all = append(m.all, c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(Histogram(name, help, buckets), labels)
	m.all = append(m.all, h)
	return h
}

// Histogram describes a histogram with classic buckets, and with native ones for a
// Prometheus that asks for them: at most a tenth wide, and few enough to stay small.
func Histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}

// Observe records a duration, with ctx's trace as its exemplar if that is sampled.
func Observe(ctx context.Context, to prometheus.Observer, d time.Duration) {
	id := ""
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		id = span.TraceID().String()
	}
	ObserveIn(id, to, d)
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
