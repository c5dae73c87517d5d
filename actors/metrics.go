package actors

import (
	"context"
	"slices"
	"sync"
	"time"

	"takt/actors/heijunka"
	"takt/actors/telemetry"
	"takt/store"
	"takt/store/metrics"
)

// measure registers the figures of the subsystems.
func (t *Tree) measure() {
	set := &metrics.Set{}
	for _, read := range []func(metrics.Show){t.measureTree, t.measureHeijunka, t.measureInvariants} {
		set.Read(read)
	}
	set.Read(func(show metrics.Show) { telemetry.MeasureHost(show, t.disk) })
	if t.Queue != nil {
		set.Read(t.measureQueue)
		t.Telemetry.Register(t.Janitor.Metrics())
	}
	if t.Throttle != nil {
		set.Read(t.measureThrottle)
		t.Telemetry.Register(t.Throttle.Metrics())
	}
	if t.notices.count != nil {
		set.Read(t.measureNotices)
	}
	if t.Deployments != nil {
		set.Read(t.Deployments.Show)
	}
	t.Telemetry.Register(set)
}

func (t *Tree) measureTree(show metrics.Show) {
	show("takt_ready", oneIf(t.Ready()))
	show("takt_leaked_processes", float64(t.sys.Leaked()))
	var connections, busy int32
	if s := t.Pool.Stat(); s != nil {
		connections, busy = s.TotalConns(), s.AcquiredConns()
	}
	show("takt_pool_connections", float64(connections))
	show("takt_pool_busy_connections", float64(busy))
	show("takt_vacuum_held_back_seconds", t.VacuumHeldBack().Seconds())
	telemetry.MeasureProcesses(show, t.Snapshot(false))
}

// VacuumHeldBack returns for how long an old snapshot has kept vacuum from removing rows
// while the database was written to. It returns 0 for less than a minute.
func (t *Tree) VacuumHeldBack() time.Duration {
	if held := t.Pool.HeldBack(); held != nil {
		return time.Since(held.Since)
	}
	return 0
}

func (t *Tree) measureQueue(show metrics.Show) {
	s := t.Queue.Stats()
	if c, ok := t.Queue.Counted(); ok {
		for p, n := range c.Pending {
			show("takt_queue_pending_builds", float64(n), string(p))
		}
		show("takt_queue_classes", float64(c.Classes))
		show("takt_queue_limit", float64(c.Room.Limit))
		show("takt_queue_unmatched_builds", float64(c.Room.Unmatched))
		for _, reason := range [...]string{store.RoomFull, store.RoomUnmatched} {
			show("takt_queue_full", oneIf(c.Room.Reason() == reason), reason)
		}
	}
	if states, at := t.fleet.last(time.Now()); time.Since(at) < fleetAge {
		for _, state := range store.WorkerStates() {
			show("takt_workers", float64(states[state]), state)
		}
	}
	show("takt_queue_parked_polls", float64(s.Parked))
	show("takt_queue_waiting_polls", float64(s.Waiting))
	show("takt_queue_batched_polls", float64(s.Batched))
	show("takt_queue_sessions", float64(s.Sessions))
	show("takt_queue_idle_polls_total", float64(s.Idle))
	show("takt_queue_transactions_total", float64(s.Batches))
	show("takt_queue_polls_total", float64(s.Polls))
	show("takt_queue_assigned_total", float64(s.Assigned))
	show("takt_queue_redelivered_total", float64(s.Redelivered))
	show("takt_queue_failed_polls_total", float64(s.Failed))
	show("takt_queue_woken_total", float64(s.Woken))
}

// counted is what is counted in the database when somebody wants to know it.
type counted[T any] struct {
	count func(ctx context.Context) (T, error)
	limit time.Duration // of one count

	mu        sync.Mutex // guards what follows
	tried, at time.Time
	found     T
}

const (
	// countEvery is how often a count is tried at most, because anybody may scrape and the
	// database may hang.
	countEvery = 15 * time.Second
	// fleetAge is how old a count of the workers may be.
	fleetAge = time.Minute
)

// last returns the last count and when it was made, after counting again if that is due.
func (f *counted[T]) last(now time.Time) (found T, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count != nil && now.Sub(f.tried) >= countEvery {
		f.tried = now
		ctx, cancel := context.WithTimeout(context.Background(), f.limit) //nolint:forbidigo // a scrape has no context
		defer cancel()
		if found, err := f.count(ctx); err == nil {
			f.at, f.found = now, found
		}
	}
	return f.found, f.at
}

func (t *Tree) measureThrottle(show metrics.Show) {
	b, _ := t.backlog.last(time.Now())
	show("takt_throttle_actions_waiting", float64(b.Actions))
	show("takt_throttle_oldest_action_seconds", b.Oldest.Seconds())
}

func (t *Tree) measureNotices(show metrics.Show) {
	b, _ := t.notices.last(time.Now())
	show("takt_notices_waiting", float64(b.Waiting))
	show("takt_notices_dead", float64(b.Dead))
	show("takt_notices_oldest_seconds", b.Oldest.Seconds())
}

func (t *Tree) measureHeijunka(show metrics.Show) {
	s := t.Heijunka.Status()
	g, b := s.Regulator, s.Burst
	level := slices.Index([]string{store.LoadNormal, store.LoadAlert, store.LoadCritical}, g.Level)
	show("takt_heijunka_load", float64(g.Load))
	show("takt_heijunka_soft_limit", float64(g.SoftLimit))
	show("takt_heijunka_hard_limit", float64(g.HardLimit))
	for class, limit := range map[string]int{"regular": g.RegularLimit, "priority": g.HardLimit} {
		show("takt_heijunka_headroom", float64(max(limit-g.Load, 0)), class)
	}
	show("takt_heijunka_level", float64(level))
	show("takt_heijunka_drain_rate", g.DrainRate)
	show("takt_heijunka_accepted_total", float64(g.Accepted))
	show("takt_heijunka_balance_coefficient", s.Balance.Coefficient)
	show("takt_heijunka_rebalanced_total", float64(s.Balance.Moves))
	show("takt_heijunka_burst_demand", b.Demand)
	show("takt_heijunka_burst_baseline", b.Baseline)
	show("takt_heijunka_surge_active", oneIf(b.Active))
	show("takt_heijunka_surges_total", float64(b.Events))
	show("takt_heijunka_surge_workers_total", float64(b.WorkersAdded))
	show("takt_heijunka_surge_cost_total", b.Cost)
	for domain, n := range s.Balance.Spilled {
		show("takt_heijunka_spilled_total", float64(n), domain)
	}
	rejected := map[string]int64{heijunka.RuleRegular: g.RejectedRegular, heijunka.RuleHard: g.RejectedHard}
	for _, p := range s.Pools {
		rejected[heijunka.RuleQueue] += p.Refused
		rejected[heijunka.RuleWait] += p.Expired
		measurePool(show, p)
	}
	for rule, n := range rejected {
		show("takt_heijunka_rejected_total", float64(n), rule)
	}
}

func measurePool(show metrics.Show, p store.HeijunkaPool) {
	of := func(name string, value float64) { show("takt_heijunka_pool_"+name, value, p.Name) }
	rule := p.Name
	if rule == heijunka.Transfer {
		rule = heijunka.RuleTransfers
	}
	show("takt_limit_held", float64(p.Busy), rule)
	show("takt_limit_waiting", float64(p.QueueLength), rule)
	show("takt_limit_refused_total", float64(p.Refused+p.Expired), rule)
	of("workers", float64(p.Workers))
	of("available", float64(p.Available))
	of("busy", float64(p.Busy))
	of("waiting", float64(p.QueueLength))
	of("utilisation", p.Utilisation)
	of("latency_seconds", p.AverageLatencyMS/1000)
	of("error_rate", p.ErrorRate)
	of("processed_total", float64(p.Processed))
	of("failed_total", float64(p.Failed))
	of("crashed_workers_total", float64(p.Crashed))
	of("overdue", float64(p.Overdue))
	of("overran_total", float64(p.Overran))
	of("scalings_total", float64(p.Scalings))
}

// measureInvariants shows what the last check found.
func (t *Tree) measureInvariants(show metrics.Show) {
	for _, i := range t.Auditor.Last() {
		show("takt_invariant_violations", float64(i.Broken), i.Name)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
