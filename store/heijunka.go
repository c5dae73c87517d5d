package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// HeijunkaSettings is what operators changed of load levelling at run time. Absent
// fields are as configured. The value is stored as it is.
type HeijunkaSettings struct {
	Limits *HeijunkaLimits `json:"limits,omitempty"`
	// Bounds has a pool as its key, Affinity a domain.
	Bounds   map[string]HeijunkaBounds   `json:"bounds,omitempty"`
	Affinity map[string]HeijunkaAffinity `json:"affinity,omitempty"`
	Burst    *HeijunkaBurst              `json:"burst,omitempty"`
}

// HeijunkaLimits are the limits of admission.
type HeijunkaLimits struct {
	// Soft is the load that is critical; alerts begin at Soft × (1 - Reserved).
	Soft int `json:"soft"`
	// Hard is how many requests are admitted at once.
	Hard int `json:"hard"`
	// Reserved is the share of Hard that only priority domains may use, 0 to 1.
	Reserved float64 `json:"reserved"`
	Expiry
}

// maxHard is the highest hard limit.
const maxHard = 100_000

// Regular is the load up to which regular domains are admitted.
func (l HeijunkaLimits) Regular() int { return unreserved(l.Hard, l.Reserved) }

// Alert is the load from which operators are alerted.
func (l HeijunkaLimits) Alert() int { return unreserved(l.Soft, l.Reserved) }

// unreserved is the part of n that is not reserved, rounded down; 1200 × 0.8 is 960.
func unreserved(n int, reserved float64) int { return int(math.Floor(float64(n)*(1-reserved) + 1e-9)) }

// Level returns the level of load: normal, alert or critical.
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

// Validate returns an error that describes the first fault of l.
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

// MaxWorkers is the most workers that a pool may have, not counting overflow.
const MaxWorkers = 10_000

// Validate returns an error that describes the first fault of b.
func (b HeijunkaBounds) Validate() error {
	if b.Min < 1 || b.Max > MaxWorkers || b.Min > b.Max {
		return fmt.Errorf("workers must be at least 1 and at most %d, the minimum not above the maximum", MaxWorkers)
	}
	return nil
}

// HeijunkaAffinity is the pools that a domain prefers; empty means all of its list.
type HeijunkaAffinity struct {
	Pools []string `json:"pools"`
	Expiry
}

// HeijunkaBurst says whether takt detects bursts.
type HeijunkaBurst struct {
	Enabled bool `json:"enabled"`
	Expiry
}

// Expiry is when a change ends by itself; nil means never.
type Expiry struct {
	Until *time.Time `json:"until,omitempty"`
}

// Over reports whether the change has ended.
func (e Expiry) Over(now time.Time) bool { return e.Until != nil && !now.Before(*e.Until) }

// Live returns s without the changes that have ended, and when the next change ends;
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

// HeijunkaStatus is the state of load levelling at one moment. It is the reply of GET
// /admin/heijunka, and of the requests that change it.
type HeijunkaStatus struct {
	// Enabled is false if requests pass without load levelling.
	Enabled   bool              `json:"enabled"`
	Regulator HeijunkaRegulator `json:"regulator"`
	Pools     []HeijunkaPool    `json:"pools"`
	Balance   HeijunkaBalance   `json:"balance"`
	Burst     HeijunkaBursts    `json:"burst"`
	// Changed is what operators have changed and is still in force: limits, bounds by
	// pool, affinity by domain, burst. Each has the time at which it ends.
	Changed json.RawMessage `json:"changed" type:"object"`
}

// HeijunkaRegulator is the gate.
type HeijunkaRegulator struct {
	Level        string  `json:"level" enum:"normal,alert,critical"`
	Load         int     `json:"load"` // requests admitted now
	SoftLimit    int     `json:"soft_limit"`
	HardLimit    int     `json:"hard_limit"`
	Reserved     float64 `json:"reserved"`
	RegularLimit int     `json:"regular_limit"`
	AlertLimit   int     `json:"alert_limit"`
	// Counted since the start of takt.
	Accepted        int64 `json:"accepted"`
	RejectedRegular int64 `json:"rejected_regular"`
	RejectedHard    int64 `json:"rejected_hard"`
	// DrainRate is how many requests end per second.
	DrainRate float64          `json:"drain_rate"`
	Oldest    []HeijunkaHolder `json:"oldest"`
}

// Admitted says how many requests are admitted, of how many.
func (r HeijunkaRegulator) Admitted() string {
	requests := "requests"
	if r.Load == 1 {
		requests = "request"
	}
	return fmt.Sprintf("%d %s admitted of at most %d (%d for all but workers), critical from %d on", r.Load, requests, r.HardLimit, r.RegularLimit, r.SoftLimit)
}

// HeijunkaHolder is a request that was admitted and runs.
type HeijunkaHolder struct {
	Domain    string `json:"domain"`
	Route     string `json:"route"`
	RequestID string `json:"request_id"`
	AgeMS     int64  `json:"age_ms"`
	// Overdue is true if the request runs for longer than the limit of its route.
	Overdue bool `json:"overdue,omitempty"`
}

// HeijunkaPool is one pool of workers.
type HeijunkaPool struct {
	Name        string  `json:"name"`
	Health      string  `json:"health" enum:"healthy,degraded,critical"`
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
	// Measured over the last minute.
	AverageLatencyMS float64 `json:"average_latency_ms"`
	ErrorRate        float64 `json:"error_rate"`
	LastScalingAt    *Millis `json:"last_scaling_at"`
	// Counted since the start of takt.
	Scalings  int64 `json:"scalings"`
	Processed int64 `json:"processed"`
	Failed    int64 `json:"failed"`
	Refused   int64 `json:"refused"`
	Expired   int64 `json:"expired"`
	Crashed   int64 `json:"crashed"`
	// Overdue requests run for longer than the limit of their route. Overran counts
	// requests that ended after that limit, since the start of takt.
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

// HeijunkaPoolUse is the use of a pool, as the input of rebalancing.
type HeijunkaPoolUse struct {
	Name        string  `json:"name"`
	Utilisation float64 `json:"utilisation"`
	Demand      float64 `json:"demand"` // requests per worker
	Workers     int     `json:"workers"`
	Min         int     `json:"min"`
	Max         int     `json:"max"`
}

// HeijunkaBursts says whether demand has risen suddenly.
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

// The levels of the load, and the health values of a pool.
const (
	LoadNormal   = "normal"
	LoadAlert    = "alert"    // from the soft limit less the reserve
	LoadCritical = "critical" // from the soft limit

	PoolHealthy  = "healthy"
	PoolDegraded = "degraded" // above 80 % of places used, or 5 % failures
	PoolCritical = "critical" // above 95 % of places used
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

// Work describes a request to load levelling and to operators. It is passed unchanged
// from the HTTP server to the process that runs the request.
type Work struct {
	// Domain is the group that the request competes in: fleet, submit, transfer, query
	// or hook. An unknown domain is a defect and fails.
	Domain string
	// Route names the request in the tree. ID is the request's own id.
	Route, ID string
	// Key is the subject of the request. Requests with the same key go to the same pool
	// if there is a choice.
	Key string
	// Share is who sends the request, where places are shared by credential.
	Share Share
	// Limit is how long a request of this route may usually take. A request that runs
	// longer is shown to operators and counted, but not ended.
	Limit time.Duration
	// OnStop, if not nil, is called when a running request should end. It is called at
	// most once, from another goroutine, and never after the request has ended. It must
	// return quickly.
	OnStop func()
}

// String names the request in the tree.
func (w *Work) String() string { return w.Route + " " + w.ID }
