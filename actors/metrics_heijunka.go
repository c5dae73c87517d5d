package actors

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"takt/actors/heijunka"
	"takt/store"
)

// heijunkaMetrics shows heijunka's figures: one look at it per scrape.
type heijunkaMetrics struct {
	status func() store.HeijunkaStatus
	rows   []heijunkaRow
	pools  []poolRow
	spills *prometheus.Desc
}

// heijunkaRow and poolRow are figures of the whole and of each pool.
type (
	heijunkaRow struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value func(s *store.HeijunkaStatus) float64
		label []string
	}
	poolRow struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value func(p *store.HeijunkaPool) float64
	}
)

func newHeijunkaMetrics(status func() store.HeijunkaStatus) *heijunkaMetrics {
	m := &heijunkaMetrics{status: status, spills: prometheus.NewDesc("takt_heijunka_spilled_total",
		"Requests that went to another pool than their domain's, which was busy.", []string{"domain"}, nil)}
	m.gate()
	m.rest()
	m.ofPools()
	return m
}

func (m *heijunkaMetrics) add(kind prometheus.ValueType, name, help string, value func(s *store.HeijunkaStatus) float64) {
	m.rows = append(m.rows, heijunkaRow{desc: prometheus.NewDesc("takt_heijunka_"+name, help, nil, nil), kind: kind, value: value})
}

func (m *heijunkaMetrics) gate() {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	m.add(gauge, "load", "Requests that are admitted.", func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.Load) })
	m.add(gauge, "soft_limit", "Load from which it is critical.", func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.SoftLimit) })
	m.add(gauge, "hard_limit", "Most requests that are admitted.", func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.HardLimit) })
	m.add(gauge, "level", "0 normal, 1 alert, 2 critical.", func(s *store.HeijunkaStatus) float64 {
		return float64(slices.Index([]string{store.LoadNormal, store.LoadAlert, store.LoadCritical}, s.Regulator.Level))
	})
	m.add(gauge, "drain_rate", "Admitted requests that end per second.", func(s *store.HeijunkaStatus) float64 { return s.Regulator.DrainRate })
	m.add(counter, "accepted_total", "Requests that were admitted.", func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.Accepted) })
	refused := prometheus.NewDesc("takt_heijunka_rejected_total", "Requests that were refused, by rule.", []string{"rule"}, nil)
	for rule, n := range map[string]func(s *store.HeijunkaStatus) float64{
		heijunka.RuleRegular: func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.RejectedRegular) },
		heijunka.RuleHard:    func(s *store.HeijunkaStatus) float64 { return float64(s.Regulator.RejectedHard) },
		heijunka.RuleQueue:   sumOf(func(p *store.HeijunkaPool) int64 { return p.Refused }),
		heijunka.RuleWait:    sumOf(func(p *store.HeijunkaPool) int64 { return p.Expired }),
	} {
		m.rows = append(m.rows, heijunkaRow{desc: refused, kind: counter, value: n, label: []string{rule}})
	}
}

func sumOf(f func(p *store.HeijunkaPool) int64) func(s *store.HeijunkaStatus) float64 {
	return func(s *store.HeijunkaStatus) float64 {
		n := int64(0)
		for i := range s.Pools {
			n += f(&s.Pools[i])
		}
		return float64(n)
	}
}

func (m *heijunkaMetrics) rest() {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	m.add(gauge, "balance_coefficient", "1 if all pools are used alike, down to 0.", func(s *store.HeijunkaStatus) float64 { return s.Balance.Coefficient })
	m.add(counter, "rebalanced_total", "Places that were moved between pools.", func(s *store.HeijunkaStatus) float64 { return float64(s.Balance.Moves) })
	m.add(gauge, "burst_demand", "Requests per worker, of the last sample.", func(s *store.HeijunkaStatus) float64 { return s.Burst.Demand })
	m.add(gauge, "burst_baseline", "Mean of the samples before.", func(s *store.HeijunkaStatus) float64 { return s.Burst.Baseline })
	m.add(gauge, "surge_active", "1 during a surge.", func(s *store.HeijunkaStatus) float64 {
		if s.Burst.Active {
			return 1
		}
		return 0
	})
	m.add(counter, "surges_total", "Surges.", func(s *store.HeijunkaStatus) float64 { return float64(s.Burst.Events) })
	m.add(counter, "surge_workers_total", "Workers that surges added.", func(s *store.HeijunkaStatus) float64 { return float64(s.Burst.WorkersAdded) })
	m.add(counter, "surge_cost_total", "What they cost.", func(s *store.HeijunkaStatus) float64 { return s.Burst.Cost })
}

func (m *heijunkaMetrics) ofPools() {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add := func(kind prometheus.ValueType, name, help string, value func(p *store.HeijunkaPool) float64) {
		m.pools = append(m.pools, poolRow{prometheus.NewDesc("takt_heijunka_pool_"+name, help, []string{"pool"}, nil), kind, value})
	}
	add(gauge, "workers", "Workers.", func(p *store.HeijunkaPool) float64 { return float64(p.Workers) })
	add(gauge, "available", "Workers that have nothing to do.", func(p *store.HeijunkaPool) float64 { return float64(p.Available) })
	add(gauge, "busy", "Places that are taken.", func(p *store.HeijunkaPool) float64 { return float64(p.Busy) })
	add(gauge, "waiting", "Requests that wait for a place.", func(p *store.HeijunkaPool) float64 { return float64(p.QueueLength) })
	add(gauge, "utilisation", "Share of workers that are busy.", func(p *store.HeijunkaPool) float64 { return p.Utilisation })
	add(gauge, "latency_seconds", "Mean time that a place was taken, of the last minute.", func(p *store.HeijunkaPool) float64 { return p.AverageLatencyMS / 1000 })
	add(gauge, "error_rate", "Share of requests that failed, of the last minute.", func(p *store.HeijunkaPool) float64 { return p.ErrorRate })
	add(counter, "processed_total", "Requests that gave their place back.", func(p *store.HeijunkaPool) float64 { return float64(p.Processed) })
	add(counter, "failed_total", "Of these, those that failed.", func(p *store.HeijunkaPool) float64 { return float64(p.Failed) })
	add(counter, "crashed_workers_total", "Workers that crashed.", func(p *store.HeijunkaPool) float64 { return float64(p.Crashed) })
	add(gauge, "overdue", "Requests that run for longer than those of their route may.", func(p *store.HeijunkaPool) float64 { return float64(p.Overdue) })
	add(counter, "overran_total", "Requests that ran for longer than that.", func(p *store.HeijunkaPool) float64 { return float64(p.Overran) })
	add(counter, "scalings_total", "Changes of size by scaling.", func(p *store.HeijunkaPool) float64 { return float64(p.Scalings) })
}

// Describe implements prometheus.Collector.
func (m *heijunkaMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range m.rows {
		ch <- r.desc
	}
	for _, r := range m.pools {
		ch <- r.desc
	}
	ch <- m.spills
}

// Collect implements prometheus.Collector.
func (m *heijunkaMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.status()
	for _, r := range m.rows {
		ch <- prometheus.MustNewConstMetric(r.desc, r.kind, r.value(&s), r.label...)
	}
	for i := range s.Pools {
		for _, r := range m.pools {
			ch <- prometheus.MustNewConstMetric(r.desc, r.kind, r.value(&s.Pools[i]), s.Pools[i].Name)
		}
	}
	for domain, n := range s.Balance.Spilled {
		ch <- prometheus.MustNewConstMetric(m.spills, prometheus.CounterValue, float64(n), domain)
	}
}
