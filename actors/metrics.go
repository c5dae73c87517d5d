package actors

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/actors/heijunka"
	"takt/actors/otp"
	"takt/store"
)

// figures is a collector that reads a subsystem's state once per scrape. Subsystems that
// keep their own metrics have Collectors instead.
type figures func(add addFigure)

// addFigure shows one figure. It is a counter if its name ends in _total, and a
// gauge otherwise. labels are names and values in turn.
type addFigure func(name, help string, value float64, labels ...string)

// Describe implements prometheus.Collector.
func (f figures) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f figures) Collect(ch chan<- prometheus.Metric) {
	f(func(name, help string, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		var names, values []string
		for pair := range slices.Chunk(labels, 2) {
			names, values = append(names, pair[0]), append(values, pair[1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
	})
}

// measure registers the figures of the subsystems.
func (t *Tree) measure() {
	register := t.Telemetry.Register
	register(figures(t.measureTree), figures(t.measureHeijunka), figures(t.measureInvariants), figures(t.measureHost))
	if t.Queue != nil {
		register(figures(t.measureQueue))
		register(t.Janitor.Collectors()...)
	}
	if t.Throttle != nil {
		register(figures(t.measureThrottle))
		register(t.Throttle.Collectors()...)
	}
	if t.Deployments != nil {
		register(figures(t.measureDeployments))
	}
}

func (t *Tree) measureTree(add addFigure) {
	add("takt_ready", "1 while work can be done.", oneIf(t.Ready()))
	add("takt_leaked_processes", "Abandoned actors and goroutines that still run.", float64(t.sys.Leaked()))
	var connections, busy int32
	if s := t.Pool.Stat(); s != nil {
		connections, busy = s.TotalConns(), s.AcquiredConns()
	}
	add("takt_pool_connections", "Connections to PostgreSQL.", float64(connections))
	add("takt_pool_busy_connections", "Connections to PostgreSQL in use.", float64(busy))
	add("takt_vacuum_held_back_seconds",
		"For how long an old snapshot has kept vacuum from its work while the database was written; 0 below a minute.",
		t.VacuumHeldBack().Seconds())
	top := t.Snapshot(false)
	measureProcess(add, top)
	for _, part := range top.Children {
		add("takt_processes", "Running processes of a part of the tree, supervisors included.", float64(running(part)), "process", part.Path)
	}
}

// running counts a process and those below it that run.
func running(n otp.Node) (count int) {
	if !n.StartedAt.IsZero() {
		count = 1
	}
	if len(n.Children) == 0 {
		return count + n.ChildCount // of a dynamic supervisor
	}
	for _, child := range n.Children {
		count += running(child)
	}
	return count
}

// measureProcess adds the messages of a process and of those below it. Children of
// dynamic supervisors are left out, because they are short-lived.
func measureProcess(add addFigure, n otp.Node) {
	if !n.StartedAt.IsZero() {
		add("takt_process_messages_total", "Messages that a process has handled since it was started.", float64(n.Messages), "process", n.Path)
		add("takt_process_busy_seconds_total", "Time that a process has spent on its messages since it was started.",
			n.Busy.Seconds(), "process", n.Path)
		add("takt_process_mailbox_messages", "Messages that wait for a process.", float64(n.Mailbox), "process", n.Path)
	}
	for _, child := range n.Children {
		measureProcess(add, child)
	}
}

// VacuumHeldBack returns for how long an old snapshot has kept vacuum from removing rows
// while the database was written to. It returns 0 for less than a minute.
func (t *Tree) VacuumHeldBack() time.Duration {
	held, ok := t.Pool.HeldBack()
	if !ok {
		return 0
	}
	return time.Since(held.Since)
}

func (t *Tree) measureQueue(add addFigure) {
	s := t.Queue.Stats()
	if c, ok := t.Queue.Counted(); ok {
		for p, n := range c.Pending {
			add("takt_queue_pending_builds", "Builds that wait, as last counted; absent if that was more than 5 s ago.", float64(n), "platform", string(p))
		}
	}
	if states, at := t.fleet.last(time.Now()); time.Since(at) < fleetAge {
		for _, state := range []string{"idle", "building", "draining", "quarantined", "critical", "offline"} {
			add("takt_workers", "Registered workers by state, as counted in the last minute.", float64(states[state]), "state", state)
		}
	}
	add("takt_queue_parked_polls", "Polls that wait for a build.", float64(s.Parked))
	add("takt_queue_waiting_polls", "Polls that wait for a transaction.", float64(s.Waiting))
	add("takt_queue_batched_polls", "Polls in a transaction.", float64(s.Batched))
	add("takt_queue_sessions", "Workers that this controller remembers.", float64(s.Sessions))
	add("takt_queue_idle_polls_total", "Polls that were answered or parked from memory.", float64(s.Idle))
	add("takt_queue_transactions_total", "Assignment transactions.", float64(s.Batches))
	add("takt_queue_polls_total", "Polls that were in an assignment transaction.", float64(s.Polls))
	add("takt_queue_assigned_total", "Builds handed out for the first time.", float64(s.Assigned))
	add("takt_queue_redelivered_total", "Builds handed out again, because the reply may have been lost.", float64(s.Redelivered))
	add("takt_queue_failed_polls_total", "Polls that ended with an error.", float64(s.Failed))
	add("takt_queue_woken_total", "Wake-ups of parked polls.", float64(s.Woken))
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

func (t *Tree) measureThrottle(add addFigure) {
	b, _ := t.backlog.last(time.Now())
	add("takt_throttle_actions_waiting", "Actions that wait to be completed, as last counted.", float64(b.Actions))
	add("takt_throttle_oldest_action_seconds", "Age of the oldest action that waits, as last counted.", b.Oldest.Seconds())
}

func (t *Tree) measureDeployments(add addFigure) {
	s := t.Deployments.Stats()
	add("takt_deployments_active", "Deployments that this controller works on.", float64(s.Active))
	add("takt_deployments_copying_repositories", "Repositories that are being copied.", float64(s.Copying))
	add("takt_deployments_done_total", "Repositories that were copied and verified.", float64(s.Done))
	add("takt_deployments_failed_total", "Repositories that could not be copied.", float64(s.Failed))
	add("takt_deployments_skipped_total", "Repositories that needed no copying.", float64(s.Skipped))
}

func (t *Tree) measureHeijunka(add addFigure) {
	s := t.Heijunka.Status()
	g, b := s.Regulator, s.Burst
	level := slices.Index([]string{store.LoadNormal, store.LoadAlert, store.LoadCritical}, g.Level)
	add("takt_heijunka_load", "Requests that are admitted.", float64(g.Load))
	add("takt_heijunka_soft_limit", "Load from which it is critical.", float64(g.SoftLimit))
	add("takt_heijunka_hard_limit", "Most requests that are admitted.", float64(g.HardLimit))
	for class, limit := range map[string]int{"regular": g.RegularLimit, "priority": g.HardLimit} {
		add("takt_heijunka_headroom", "Requests that would still be admitted, by class: those of workers have priority.",
			float64(max(limit-g.Load, 0)), "class", class)
	}
	add("takt_heijunka_level", "Level of the load: 0 normal, 1 alert, 2 critical.", float64(level))
	add("takt_heijunka_drain_rate", "Admitted requests that end per second.", g.DrainRate)
	add("takt_heijunka_accepted_total", "Requests that were admitted.", float64(g.Accepted))
	add("takt_heijunka_balance_coefficient", "1 if all pools are used alike, down to 0.", s.Balance.Coefficient)
	add("takt_heijunka_rebalanced_total", "Places that were moved between pools.", float64(s.Balance.Moves))
	add("takt_heijunka_burst_demand", "Requests per worker, of the last sample.", b.Demand)
	add("takt_heijunka_burst_baseline", "Mean of the last minute's samples of takt_heijunka_burst_demand.", b.Baseline)
	add("takt_heijunka_surge_active", "1 during a surge.", oneIf(b.Active))
	add("takt_heijunka_surges_total", "Surges that began.", float64(b.Events))
	add("takt_heijunka_surge_workers_total", "Workers that surges added.", float64(b.WorkersAdded))
	add("takt_heijunka_surge_cost_total", "Cost of the surges, as the settings of bursts reckon it.", b.Cost)
	for domain, n := range s.Balance.Spilled {
		add("takt_heijunka_spilled_total", "Requests that went to another pool than their domain's, which was busy.",
			float64(n), "domain", domain)
	}
	rejected := map[string]int64{heijunka.RuleRegular: g.RejectedRegular, heijunka.RuleHard: g.RejectedHard}
	for _, p := range s.Pools {
		rejected[heijunka.RuleQueue] += p.Refused
		rejected[heijunka.RuleWait] += p.Expired
		measurePool(add, p)
	}
	for rule, n := range rejected {
		add("takt_heijunka_rejected_total", "Requests that were refused, by rule.", float64(n), "rule", rule)
	}
}

func measurePool(add addFigure, p store.HeijunkaPool) {
	of := func(name, help string, value float64) { add("takt_heijunka_pool_"+name, help, value, "pool", p.Name) }
	of("workers", "Workers of a pool.", float64(p.Workers))
	of("available", "Workers that have nothing to do.", float64(p.Available))
	of("busy", "Places that are taken.", float64(p.Busy))
	of("waiting", "Requests that wait for a place.", float64(p.QueueLength))
	of("utilisation", "Share of workers that are busy.", p.Utilisation)
	of("latency_seconds", "Mean time that a place was taken, of the last minute.", p.AverageLatencyMS/1000)
	of("error_rate", "Share of requests that failed, of the last minute.", p.ErrorRate)
	of("processed_total", "Requests that gave their place back.", float64(p.Processed))
	of("failed_total", "Requests that gave their place back and had failed.", float64(p.Failed))
	of("crashed_workers_total", "Workers that crashed.", float64(p.Crashed))
	of("overdue", "Requests that run for longer than those of their route may.", float64(p.Overdue))
	of("overran_total", "Requests that ran for longer than those of their route may.", float64(p.Overran))
	of("scalings_total", "Changes of size by scaling.", float64(p.Scalings))
}

// measureInvariants shows what the last check found.
func (t *Tree) measureInvariants(add addFigure) {
	for _, i := range t.Auditor.Last() {
		add("takt_invariant_violations", "Rows of the database that break an invariant, as the last check found; takt audit check names them.",
			float64(i.Broken-i.Repaired), "invariant", i.Name)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
