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
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of one process.
type Metrics struct {
	// Statements is how long SQL statements take, by name, and StatementErrors how many
	// failed.
	Statements      *prometheus.HistogramVec
	StatementErrors *prometheus.CounterVec
	// ConnectionWait is the wait for a connection to the database.
	ConnectionWait prometheus.Histogram

	all []prometheus.Collector
}

// New makes the metrics; Register them once.
func New() *Metrics {
	m := &Metrics{}
	m.Statements = m.seconds("takt_database_statement_duration_seconds",
		"Time from sending an SQL statement to the end of its result, by the statement's name.",
		[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}, "statement")
	m.StatementErrors = m.counter("takt_database_statement_errors_total",
		"SQL statements that failed, by the statement's name.", "statement")
	m.ConnectionWait = m.seconds("takt_database_connection_wait_seconds",
		"Time that a call waited for a connection to the database.",
		[]float64{.0001, .001, .005, .01, .05, .1, .5, 1, 5, 10}).WithLabelValues().(prometheus.Histogram)
	return m
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector { return m.all }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.all = append(m.all, c)
	return c
}

func (m *Metrics) seconds(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(Histogram(name, help, buckets), labels)
	m.all = append(m.all, h)
	return h
}

// Histogram describes a histogram with classic buckets, and with native ones for a
// Prometheus that asks for them. Native buckets are at most a tenth wide, and few enough
// that a histogram stays small.
func Histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}
}
