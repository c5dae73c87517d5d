package build

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// MonitorStore is what HeartbeatMonitor needs of the database. All fail at once
// with store.Unavailable while it is away.
type MonitorStore interface {
	// Sweep takes builds from silent workers, in one transaction.
	Sweep(ctx context.Context, s store.Sweep) (store.SweepResult, error)
	// Timeouts returns the saved timeouts, false if none were.
	Timeouts(ctx context.Context) (store.Timeouts, bool, error)
	// SaveTimeouts saves them and tells all controllers.
	SaveTimeouts(ctx context.Context, t store.Timeouts) error
}

// Requeuer learns of builds that a sweep made pending again. *Queue is one.
type Requeuer interface {
	Requeued(refs []store.BuildRef)
}

// MonitorConfig are HeartbeatMonitor's settings. Ready is required.
type MonitorConfig struct {
	// Name is the registered name. Defaults to
	// "takt/orchestration/heartbeat_monitor".
	Name string
	// Timeouts apply until others are saved. Zero values take the defaults of
	// [DefaultTimeouts].
	Timeouts store.Timeouts
	// Rule is what a lost attempt does to a build.
	Rule store.LostRule
	// Ready tells since when this controller listens and has its database,
	// false if it does not. See [Readiness].
	Ready func() (since time.Time, ready bool)
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Timeout bounds one transaction. Defaults to 30 s.
	Timeout time.Duration
	// RestartGap is how long callers wait for a restarting actor. Defaults to 1 s.
	RestartGap time.Duration
}

func (c MonitorConfig) withDefaults() MonitorConfig {
	c.Name = or(c.Name, "takt/orchestration/heartbeat_monitor")
	c.Timeouts = timeoutsOr(c.Timeouts, DefaultTimeouts())
	c.Timeout = or(c.Timeout, 30*time.Second)
	c.RestartGap = or(c.RestartGap, time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Monitor is the handle of HeartbeatMonitor. It stays valid over restarts and
// may be used by any goroutine.
type Monitor struct {
	ref   otp.Ref
	db    MonitorStore
	queue Requeuer
	bus   pubsub.Bus
	cfg   MonitorConfig
}

// NewMonitor returns the handle for the actor that Spec describes. It starts
// nothing.
func NewMonitor(sys *otp.System, db MonitorStore, queue Requeuer, bus pubsub.Bus, cfg MonitorConfig) *Monitor {
	cfg = cfg.withDefaults()
	return &Monitor{ref: sys.Ref(cfg.Name), db: db, queue: queue, bus: bus, cfg: cfg}
}

// Spec describes the actor to its supervisor.
func (m *Monitor) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "heartbeat_monitor", Name: m.cfg.Name,
		Server: func() otp.Server { return &heartbeatMonitor{m: m} },
	}
}

// Timeouts returns the timeouts in force.
func (m *Monitor) Timeouts(ctx context.Context) (store.Timeouts, error) {
	return call[store.Timeouts](ctx, m, askTimeouts{})
}

// Update checks, saves and applies t, here at once and on other controllers as
// soon as they hear of it. All three values count.
//
// Errors: InvalidArgument (a value is out of bounds), Unavailable (it may have
// been saved or not).
func (m *Monitor) Update(ctx context.Context, t store.Timeouts) error {
	_, err := call[any](ctx, m, update{t})
	return err
}

// Sweep sweeps now. It fails with Unavailable while this controller has not
// listened for a whole build timeout, because then silence proves nothing.
func (m *Monitor) Sweep(ctx context.Context) (store.SweepResult, error) {
	return call[store.SweepResult](ctx, m, sweepNow{})
}

// call asks the actor, waiting for one that restarts.
func call[R any](ctx context.Context, m *Monitor, req any) (R, error) {
	r, err := otp.CallWait[R](ctx, m.ref, m.cfg.RestartGap, req)
	if err == nil || store.CodeOf(err) != store.Internal {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, unavailable("Heartbeat monitor is restarting, try again", err)
}
