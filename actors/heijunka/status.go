package heijunka

import (
	"math"
	"slices"
	"time"

	"takt/store"
)

// Level says how near the load is to the limits.
type Level int32

// The levels.
const (
	Normal   Level = iota
	Raised         // from Soft × (1 - Reserved): alert
	Critical       // from Soft
)

func (l Level) String() string { return [...]string{"normal", "alert", "critical"}[l] }

func levelOf(load int, l Limits) Level {
	switch {
	case load >= l.Soft:
		return Critical
	case load >= l.Alert():
		return Raised
	default:
		return Normal
	}
}

// Alert is the data of heijunka:alert.
type Alert struct {
	Level string    `json:"level"`
	Load  int       `json:"load"`
	Soft  int       `json:"soft_limit"`
	Hard  int       `json:"hard_limit"`
	At    time.Time `json:"at"`
}

// Status is everything at one moment; nobody is asked for it. It is the data of
// heijunka:updated.
type Status struct {
	Off       bool
	Regulator RegulatorStatus
	Pools     []PoolStatus
	Balance   BalanceStatus
	Burst     BurstStatus
	// Changed is what operators have changed, nothing of it over.
	Changed store.LoadSettings
}

// RegulatorStatus is LoadRegulator's.
type RegulatorStatus struct {
	Level Level
	Load  int // tokens that are out
	Limits
	Accepted                      int64 // since the start of takt
	RejectedRegular, RejectedHard int64
	// Drain is how many tokens come back per second.
	Drain float64
	// Oldest are the ten tokens that are out for the longest.
	Oldest []Holder
}

// Holder is who has a token.
type Holder struct {
	Domain, Route, ID string
	Age               time.Duration
}

// Capacity is what the gate still lets in.
type Capacity struct {
	Load             int
	Regular, Hard    int // limits
	RegularLeft      int // tokens for regular domains
	PriorityLeft     int // for priority domains
	Utilisation      float64
	AlertAt, SoftAt  int
	Overloaded       bool // regular domains are refused
	DrainedPerSecond float64
}

// Health is a pool's.
type Health string

// The healths.
const (
	Healthy  Health = "healthy"
	Degraded Health = "degraded"
	Sick     Health = "critical"
)

// PoolStatus is one pool's.
type PoolStatus struct {
	Name             string
	Workers          int // processes that run
	Available        int // of these, who has nothing to do
	Busy             int // lanes that are held; more than Workers in a restart
	Utilisation      float64
	Waiting, Peak    int // now, and the most at once
	Target           int // workers by scaling and surge
	Surge            int // of these, the surge's
	Minimum, Maximum int
	Overflow         int           // the most beyond target
	Latency          time.Duration // mean over the window: how long slots were held
	ErrorRate        float64       // over the window
	Health           Health
	LastScaling      time.Time // zero: never
	// Since the start of takt.
	Scalings, Taken, Ended, Failed, Refused, Expired, Crashed int64
}

// BalanceStatus is Balancer's.
type BalanceStatus struct {
	Coefficient float64
	Moves       int64
	Last        Rebalance // the last move; At is zero if there was none
	// Affinity is by domain; Spilled counts requests that left their pool.
	Affinity map[string][]string
	Spilled  map[string]int64
}

// BurstStatus is BurstHandler's.
type BurstStatus struct {
	Enabled, Active  bool
	Demand, Baseline float64 // of the last sample
	Began, Until     time.Time
	// The last surge's, or this one's.
	TriggerDemand, TriggerBaseline float64
	Manual                         bool
	// Since the start of takt.
	Events, Added int64
	Cost          float64
}

// Status returns everything at this moment.
func (h *Heijunka) Status() Status {
	s := Status{
		Off: h.cfg.Off, Regulator: h.regulatorStatus(), Balance: h.balanceStatus(), Burst: h.burstStatus(),
		Changed: *h.saved.Load(),
	}
	for _, p := range h.pools {
		s.Pools = append(s.Pools, p.Status())
	}
	return s
}

// oldest is how many tokens Status lists.
const oldest = 10

func (h *Heijunka) regulatorStatus() RegulatorStatus {
	g := h.gate
	s := RegulatorStatus{Load: int(g.load.Load()), Limits: *g.limits.Load(), Accepted: g.accepted(), Drain: g.drainRate()}
	s.Level = levelOf(s.Load, s.Limits)
	s.RejectedRegular, s.RejectedHard = g.rejected()
	now := g.now()
	g.each(func(e *entry) {
		age := now - e.since
		at, _ := slices.BinarySearchFunc(s.Oldest, age, func(x Holder, age time.Duration) int { return int(age - x.Age) })
		if at < oldest {
			s.Oldest = slices.Insert(s.Oldest, at, Holder{Domain: e.domain.Name, Route: e.route, ID: e.id, Age: age})
			s.Oldest = s.Oldest[:min(len(s.Oldest), oldest)]
		}
	})
	return s
}

// CapacityInfo says what the gate still lets in.
func (h *Heijunka) CapacityInfo() Capacity {
	l, load := *h.gate.limits.Load(), int(h.gate.load.Load())
	return Capacity{
		Load: load, Regular: l.Regular(), Hard: l.Hard,
		RegularLeft: max(l.Regular()-load, 0), PriorityLeft: max(l.Hard-load, 0),
		Utilisation: float64(load) / float64(l.Hard), AlertAt: l.Alert(), SoftAt: l.Soft,
		Overloaded: load >= l.Regular(), DrainedPerSecond: h.gate.drainRate(),
	}
}

// Status returns how the pool is at this moment.
func (p *Pool) Status() PoolStatus {
	q := p.lanes
	q.mu.Lock()
	defer q.mu.Unlock()
	s := PoolStatus{
		Name: p.name, Workers: int(q.live.Load()), Available: len(q.idle), Busy: int(q.busy.Load()), Utilisation: q.utilisation(),
		Waiting: q.line.n, Peak: q.total.peak, Target: q.size.target(), Surge: q.size.surge, Minimum: q.size.min, Maximum: q.size.max,
		Overflow: q.size.overflow, LastScaling: q.size.last, Scalings: q.size.changes,
		Taken: q.total.taken, Ended: q.total.ended, Failed: q.total.failed, Refused: q.total.refused,
		Expired: q.total.expired, Crashed: q.total.crashed,
	}
	s.Latency, s.ErrorRate = q.window.read(q.now())
	s.Health = healthOf(s.Utilisation, s.ErrorRate, p.h.cfg.Health)
	return s
}

func healthOf(utilisation, errors float64, cfg HealthConfig) Health {
	switch {
	case utilisation > cfg.Critical:
		return Sick
	case utilisation > cfg.Busy || errors > cfg.Errors:
		return Degraded
	default:
		return Healthy
	}
}

func (h *Heijunka) balanceStatus() BalanceStatus {
	s := BalanceStatus{
		Coefficient: math.Float64frombits(h.coefficient.Load()),
		Affinity:    map[string][]string{}, Spilled: map[string]int64{},
	}
	s.Last, s.Moves = h.moves.read()
	for _, d := range h.domains {
		s.Affinity[d.Name], s.Spilled[d.Name] = names(*d.group.Load()), d.spilled.Load()
	}
	return s
}

func (h *Heijunka) burstStatus() BurstStatus {
	now := h.baseline.Load()
	u := h.surge
	u.mu.Lock()
	defer u.mu.Unlock()
	return BurstStatus{
		Enabled: u.enabled, Active: u.on, Demand: now.Demand, Baseline: now.Baseline, Began: u.began, Until: u.until,
		TriggerDemand: u.last.Demand, TriggerBaseline: u.last.Baseline, Manual: u.last.Manual,
		Events: u.events, Added: u.added, Cost: u.cost,
	}
}
