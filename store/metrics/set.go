package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Set makes metrics of the table and is their collector. A name that is not in the table,
// or is of another kind there, is a defect and panics. A metric without labels appears
// when its value is first asked for.
type Set struct{ all []prometheus.Collector }

// Counter makes a counter.
func (s *Set) Counter(name string) *prometheus.CounterVec {
	m := row(name, Counter)
	return add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels))
}

// Gauge makes a gauge.
func (s *Set) Gauge(name string) *prometheus.GaugeVec {
	m := row(name, Gauge)
	return add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels))
}

// Histogram makes a histogram with classic buckets, and with native ones for a Prometheus
// that asks for them: at most a tenth wide, and few enough to stay small.
func (s *Set) Histogram(name string) *prometheus.HistogramVec {
	m := row(name, Histogram)
	return add(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: m.Name, Help: m.Help, Buckets: m.Buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, m.Labels))
}

// Show gives the value of a counter or a gauge that is read when it is asked for.
type Show func(name string, value float64, labels ...string)

// Read calls read at each scrape.
func (s *Set) Read(read func(show Show)) { add(s, reader(read)) }

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.all {
		c.Collect(ch)
	}
}

func add[C prometheus.Collector](s *Set, c C) C {
	s.all = append(s.all, c)
	return c
}

// row returns the metric of a name, which is of this kind.
func row(name string, kind Kind) Metric {
	m, ok := Find(name)
	if !ok || m.Kind != kind {
		panic(fmt.Sprintf("no %s %s in the table of metrics", kind, name))
	}
	return m
}

// reader is a collector of values that are read when they are asked for.
type reader func(Show)

// Describe implements prometheus.Collector. It describes nothing, because what there is to
// show changes.
func (r reader) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (r reader) Collect(ch chan<- prometheus.Metric) {
	r(func(name string, value float64, labels ...string) {
		m, ok := Find(name)
		if !ok {
			panic("no " + name + " in the table of metrics")
		}
		kind := prometheus.GaugeValue
		if m.Kind == Counter {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.Name, m.Help, m.Labels, nil), kind, value, labels...)
	})
}
