package actors

import (
	"github.com/prometheus/client_golang/prometheus"

	"takt/actors/otp"
)

// processMetrics shows what the processes of the tree handle: one look at it per
// scrape. Children of dynamic supervisors come and go, and are left out.
type processMetrics struct {
	tree           func(all bool) otp.Node
	messages, busy *prometheus.Desc
}

func newProcessMetrics(tree func(all bool) otp.Node) *processMetrics {
	label := []string{"process"}
	return &processMetrics{
		tree:     tree,
		messages: prometheus.NewDesc("takt_process_messages_total", "Messages that a process has handled since it was started.", label, nil),
		busy:     prometheus.NewDesc("takt_process_busy_seconds_total", "Time that a process has spent on its messages since it was started.", label, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *processMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.messages; ch <- m.busy }

// Collect implements prometheus.Collector.
func (m *processMetrics) Collect(ch chan<- prometheus.Metric) { m.collect(ch, m.tree(false)) }

func (m *processMetrics) collect(ch chan<- prometheus.Metric, n otp.Node) {
	if !n.StartedAt.IsZero() {
		ch <- prometheus.MustNewConstMetric(m.messages, prometheus.CounterValue, float64(n.Messages), n.Path)
		ch <- prometheus.MustNewConstMetric(m.busy, prometheus.CounterValue, n.Busy.Seconds(), n.Path)
	}
	for _, child := range n.Children {
		m.collect(ch, child)
	}
}
