package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// HeijunkaSettings is what operators changed of load levelling at run time. What is
// absent is as configured. It is stored as it is.
type HeijunkaSettings struct {
	Limits *HeijunkaLimits `json:"limits,omitempty"`
	// Bounds are by pool, Affinity by domain.
	Bounds   map[string]HeijunkaBounds   `json:"bounds,omitempty"`
	Affinity map[string]HeijunkaAffinity `json:"affinity,omitempty"`
	Burst    *HeijunkaBurst              `json:"burst,omitempty"`
}

// HeijunkaLimits are the limits of admission.
type HeijunkaLimits struct {
	// Soft is where the load is critical; alerts begin at Soft × (1 - Reserved).
	Soft int `json:"soft"`
	// Hard is the most requests that are admitted at once.
	Hard int `json:"hard"`
	// Reserved is the share of Hard that only priority domains may use, 0 to 1.
	Reserved float64 `json:"reserved"`
	Expiry
}

// maxHard is the highest hard limit.
const maxHard = 100_000

// Regular is the load up to which regular domains are admitted.
func (l HeijunkaLimits) Regular() int { return unreserved(l.Hard, l.Reserved) }

// Alert is the load from which operators are told.
func (l HeijunkaLimits) Alert() int { return unreserved(l.Soft, l.Reserved) }

// unreserved is what of n is not reserved, rounded down; 1200 × 0.8 is 960.
func unreserved(n int, reserved float64) int { return int(math.Floor(float64(n)*(1-reserved) + 1e-9)) }

// Level names how near the load is to the limits.
func (l HeijunkaLimits) Level(load int) string {
	switch {
	case load >= l.Soft:
		return LoadCritical
	case load >= l.Alert():
		return LoadAlert
	default:
		return LoadNormal
	}
}

// Validate says what is wrong with l.
func (l HeijunkaLimits) Validate() error {
	switch {
	case l.Hard < 1 || l.Hard > maxHard:
		return fmt.Errorf("hard limit must be 1 to %d", maxHard)
	case l.Soft < 1 || l.Soft > l.Hard:
		return errors.New("soft limit must be 1 to the hard limit")
	case !(l.Reserved >= 0 && l.Reserved < 1):
		return errors.New("reserved must be at least 0 and less than 1")
	case l.Regular() < 1:
		return errors.New("hard limit must leave something unreserved")
	}
	return nil
}

// HeijunkaBounds are the fewest and the most workers of a pool.
type HeijunkaBounds struct {
	Min int `json:"min"`
	Max int `json:"max"`
	Expiry
}

// MaxWorkers is the most that a pool may have, overflow aside.
const MaxWorkers = 10_000

// Validate says what is wrong with b.
func (b HeijunkaBounds) Validate() error {
	if b.Min < 1 || b.Max > MaxWorkers || b.Min > b.Max {
		return fmt.Errorf("workers must be at least 1 and at most %d, the minimum not above the maximum", MaxWorkers)
	}
	return nil
}

// HeijunkaAffinity is the pools that a domain prefers; none: all of its list.
type HeijunkaAffinity struct {
	Pools []string `json:"pools"`
	Expiry
}

// HeijunkaBurst says whether bursts are looked for.
type HeijunkaBurst struct {
	Enabled bool `json:"enabled"`
	Expiry
}

// Expiry is when a change ends by itself; never, if it is nil.
type Expiry struct {
	Until *time.Time `json:"until,omitempty"`
}

// Over reports whether the change has ended.
func (e Expiry) Over(now time.Time) bool { return e.Until != nil && !now.Before(*e.Until) }

// Live returns s without what is over, and when the next of its changes ends;
// the zero time if none does.
func (s HeijunkaSettings) Live(now time.Time) (live HeijunkaSettings, next time.Time) {
	keep := func(e Expiry) bool {
		if e.Over(now) {
			return false
		}
		if e.Until != nil && (next.IsZero() || e.Until.Before(next)) {
			next = *e.Until
		}
		return true
	}
	live = HeijunkaSettings{Bounds: map[string]HeijunkaBounds{}, Affinity: map[string]HeijunkaAffinity{}}
	if s.Limits != nil && keep(s.Limits.Expiry) {
		live.Limits = s.Limits
	}
	if s.Burst != nil && keep(s.Burst.Expiry) {
		live.Burst = s.Burst
	}
	for name, b := range s.Bounds {
		if keep(b.Expiry) {
			live.Bounds[name] = b
		}
	}
	for name, a := range s.Affinity {
		if keep(a.Expiry) {
			live.Affinity[name] = a
		}
	}
	return live, next
}

// HeijunkaStatus is how the load is levelled at one moment: the reply of
// GET /admin/heijunka, and of what changes it.
type HeijunkaStatus struct {
	// Enabled is false if requests are let through unlevelled.
	Enabled   bool              `json:"enabled"`
	Regulator HeijunkaRegulator `json:"regulator"`
	Pools     []HeijunkaPool    `json:"pools"`
	Balance   HeijunkaBalance   `json:"balance"`
	Burst     HeijunkaBursts    `json:"burst"`
	// Changed is what operators have changed and is not over: limits, bounds by
	// pool, affinity by domain, burst, each with the time until which it holds.
	Changed json.RawMessage `json:"changed"`
}

// HeijunkaRegulator is the gate.
type HeijunkaRegulator struct {
	Level        string  `json:"level"` // normal, alert or critical
	Load         int     `json:"load"`  // admitted at the moment
	SoftLimit    int     `json:"soft_limit"`
	HardLimit    int     `json:"hard_limit"`
	Reserved     float64 `json:"reserved"`
	RegularLimit int     `json:"regular_limit"`
	AlertLimit   int     `json:"alert_limit"`
	// Since the start of takt.
	Accepted        int64 `json:"accepted"`
	RejectedRegular int64 `json:"rejected_regular"`
	RejectedHard    int64 `json:"rejected_hard"`
	// DrainRate is how many end per second.
	DrainRate float64          `json:"drain_rate"`
	Oldest    []HeijunkaHolder `json:"oldest"`
}

// HeijunkaHolder is a request that was admitted.
type HeijunkaHolder struct {
	Domain    string `json:"domain"`
	Route     string `json:"route"`
	RequestID string `json:"request_id"`
	AgeMS     int64  `json:"age_ms"`
	// Overdue: it runs for longer than requests of its route may.
	Overdue bool `json:"overdue,omitempty"`
}

// HeijunkaPool is one pool of workers.
type HeijunkaPool struct {
	Name        string  `json:"name"`
	Health      string  `json:"health"` // healthy, degraded or critical
	Workers     int     `json:"workers"`
	Available   int     `json:"available"`
	Busy        int     `json:"busy"`
	Utilisation float64 `json:"utilisation"`
	QueueLength int     `json:"queue_length"`
	QueuePeak   int     `json:"queue_peak"`
	Target      int     `json:"target"`
	Surge       int     `json:"surge"`
	Min         int     `json:"min"`
	Max         int     `json:"max"`
	Overflow    int     `json:"overflow"`
	// Of the last minute.
	AverageLatencyMS float64 `json:"average_latency_ms"`
	ErrorRate        float64 `json:"error_rate"`
	LastScalingAt    *Millis `json:"last_scaling_at"`
	// Since the start of takt.
	Scalings  int64 `json:"scalings"`
	Processed int64 `json:"processed"`
	Failed    int64 `json:"failed"`
	Refused   int64 `json:"refused"`
	Expired   int64 `json:"expired"`
	Crashed   int64 `json:"crashed"`
	// Overdue requests run for longer than those of their route may; Overran is
	// how many have ended later than that, since the start of takt.
	Overdue int   `json:"overdue"`
	Overran int64 `json:"overran"`
}

// HeijunkaBalance says how evenly pools are used.
type HeijunkaBalance struct {
	Coefficient float64             `json:"coefficient"`
	Moves       int64               `json:"moves"`
	Last        *HeijunkaRebalance  `json:"last"`
	Affinity    map[string][]string `json:"affinity"`
	Spilled     map[string]int64    `json:"spilled"`
}

// HeijunkaRebalance is a move of a worker, or why there is none.
type HeijunkaRebalance struct {
	Coefficient float64           `json:"coefficient"`
	From        string            `json:"from"`
	To          string            `json:"to"`
	Reason      string            `json:"reason"`
	Done        bool              `json:"done"`
	At          *Millis           `json:"at"`
	Pools       []HeijunkaPoolUse `json:"pools"`
}

// HeijunkaPoolUse is a pool as rebalancing sees it.
type HeijunkaPoolUse struct {
	Name        string  `json:"name"`
	Utilisation float64 `json:"utilisation"`
	Demand      float64 `json:"demand"` // requests per worker
	Workers     int     `json:"workers"`
	Min         int     `json:"min"`
	Max         int     `json:"max"`
}

// HeijunkaBursts says whether demand has jumped.
type HeijunkaBursts struct {
	Enabled         bool    `json:"enabled"`
	Active          bool    `json:"active"`
	Demand          float64 `json:"demand"`
	Baseline        float64 `json:"baseline"`
	BeganAt         *Millis `json:"began_at"`
	Until           *Millis `json:"until"`
	TriggerDemand   float64 `json:"trigger_demand"`
	TriggerBaseline float64 `json:"trigger_baseline"`
	Manual          bool    `json:"manual"`
	Events          int64   `json:"events"`
	WorkersAdded    int64   `json:"workers_added"`
	Cost            float64 `json:"cost"`
}

// The levels of the load, and the healths of a pool.
const (
	LoadNormal   = "normal"
	LoadAlert    = "alert"    // from the soft limit without its reserve
	LoadCritical = "critical" // from the soft limit

	PoolHealthy  = "healthy"
	PoolDegraded = "degraded" // above 80 % of places, or 5 % of failures
	PoolCritical = "critical" // above 95 % of places
)

// Millis is a time as integer milliseconds since 1970 UTC. A nil *Millis is null.
type Millis int64

// NewMillis returns t as Millis, nil for the zero time.
func NewMillis(t time.Time) *Millis {
	if t.IsZero() {
		return nil
	}
	m := Millis(t.UnixMilli())
	return &m
}

// Time returns m as a UTC time.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Work describes a request to those who level the load, and to operators. It is
// handed on as it is, from the HTTP server to the process that runs the request.
type Work struct {
	// Domain is what the request competes with: fleet, submit, transfer, query or
	// hook. An unknown one is a defect and fails.
	Domain string
	// Route names the request in the tree, ID is the request's own.
	Route, ID string
	// Key is what it is about: requests with the same key go to the same pool, if
	// there is a choice.
	Key string
	// Limit is how long a request of this route may usually take. One that runs
	// longer is shown to operators and counted; it is not ended.
	Limit time.Duration
	// Told, if not nil, is called when the request is told to end while it runs: at
	// most once, from another goroutine, and not any more when it has ended. It must
	// be quick.
	Told func()
}

// String names the request in the tree.
func (w *Work) String() string { return w.Route + " " + w.ID }
