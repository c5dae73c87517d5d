package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/settings"
	"takt/store"
)

// MonitorStore is what HeartbeatMonitor needs of the database. All methods fail at once
// with store.Unavailable during an outage.
type MonitorStore interface {
	// Sweep takes builds from silent workers and takes these offline, in one transaction.
	Sweep(ctx context.Context, s store.Sweep) (store.SweepResult, error)
	// CheckClasses records which classes have no worker. If limit is not 0, it fails builds
	// that no known worker could take for longer than limit, and returns them.
	CheckClasses(ctx context.Context, limit time.Duration) ([]store.BuildRef, error)
	// LetIn lets builds in whose time to be tried again has come, and returns them.
	LetIn(ctx context.Context) ([]store.BuildRef, error)
	// NoteFull records that submits are refused, and tells of it when that began.
	NoteFull(ctx context.Context, room store.QueueRoom) error
	// CheckSuspects judges the workers whose last builds all failed, and returns those for which
	// something has changed.
	CheckSuspects(ctx context.Context) ([]store.WorkerUpdate, error)
	// Clock returns the database's time.
	Clock(ctx context.Context) (time.Time, error)
	// Timeouts returns the saved timeouts, and false if none were saved.
	Timeouts(ctx context.Context) (store.Timeouts, bool, error)
	// SaveTimeouts saves them and notifies all controllers.
	SaveTimeouts(ctx context.Context, t store.Timeouts) error
}

// MonitorConfig are HeartbeatMonitor's settings. Ready is required.
type MonitorConfig struct {
	// Timeouts apply until others are saved. CheckInterval defaults to 1 minute, the
	// others to 5 minutes.
	Timeouts store.Timeouts
	// Rule decides what a lost attempt does to a build.
	Rule store.LostRule
	// Unmatched is how long a build may be pending that no known worker can take. 0 means
	// without limit.
	Unmatched time.Duration
	// Ready returns since when this controller has been ready without interruption (it
	// accepts requests and has its database); false if it is not ready now.
	Ready func() (since time.Time, ready bool)
	// Now returns the time. Defaults to time.Now.
	Now func() time.Time
}

func (c MonitorConfig) withDefaults() MonitorConfig {
	c.Timeouts.CheckInterval = cmp.Or(c.Timeouts.CheckInterval, time.Minute)
	c.Timeouts.BuildTimeout = cmp.Or(c.Timeouts.BuildTimeout, store.DefaultTimeout)
	c.Timeouts.WorkerTimeout = cmp.Or(c.Timeouts.WorkerTimeout, store.DefaultTimeout)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

const (
	// sweepTimeout bounds a sweep, the check of classes that follows it, and one of suspects.
	sweepTimeout = 30 * time.Second
	// retryInterval is how often builds are looked for whose time to be tried again has come.
	retryInterval = time.Second
	// suspectsInterval is how often suspects are looked for at least. workersChanged is how long
	// after a change of workers, of which many may come at once.
	suspectsInterval = 10 * time.Second
	workersChanged   = time.Second
	// fullInterval is how often a full queue is recorded.
	fullInterval = 10 * time.Second
)

// Monitor is the handle of HeartbeatMonitor. It stays valid when the actor restarts, and may
// be used by any goroutine.
type Monitor struct {
	ref   otp.Ref
	db    MonitorStore
	queue *Queue
	bus   pubsub.Bus
	cfg   MonitorConfig
}

// NewMonitor returns the handle for the actor that Spec describes. It starts
// nothing.
func NewMonitor(sys *otp.System, db MonitorStore, queue *Queue, bus pubsub.Bus, cfg MonitorConfig) *Monitor {
	cfg = cfg.withDefaults()
	return &Monitor{ref: sys.Ref(monitorName), db: db, queue: queue, bus: bus, cfg: cfg}
}

// Spec describes the actor to its supervisor.
func (m *Monitor) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "heartbeat_monitor", Name: monitorName,
		Server: func() otp.Server { return &heartbeatMonitor{m: m} },
	}
}

// Timeouts returns the timeouts in force.
func (m *Monitor) Timeouts(ctx context.Context) (store.Timeouts, error) {
	return call[store.Timeouts](ctx, m, askTimeouts{})
}

// Update checks, saves and applies t, all three values of it. Other controllers apply it
// when they are notified.
//
// Errors: InvalidArgument (a value is out of bounds), Unavailable (t may have been saved).
func (m *Monitor) Update(ctx context.Context, t store.Timeouts) error {
	_, err := call[any](ctx, m, update{t})
	return err
}

// call sends req to the actor and returns its reply. If the actor is restarting, it waits up
// to restartGap for it.
func call[R any](ctx context.Context, m *Monitor, req any) (R, error) {
	r, err := otp.CallWait[R](ctx, m.ref, restartGap, req)
	if err == nil || store.CodeOf(err) != store.Internal {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	return r, store.NewUnavailable("Heartbeat monitor is restarting, try again", err)
}

// The messages.
type (
	askTimeouts struct{}
	update      struct{ timeouts store.Timeouts }
)

// answered is the database's answer to a pulse.
type answered struct {
	asked    time.Time // when the pulse was sent
	database time.Time // the database's time
}

// heartbeatMonitor is the HeartbeatMonitor actor. After a restart it reads the timeouts again
// and listens for one build timeout before it sweeps.
type heartbeatMonitor struct {
	otp.Base
	m        *Monitor
	settings settings.Watcher[store.Timeouts]
	timeouts store.Timeouts
	// known is false until the saved timeouts were read once. A sweep before that could
	// use shorter timeouts and take builds from workers that meet the saved ones.
	known     bool
	listening listening
	patience  time.Duration     // the longest gap between two answers that is no interruption
	pulses    otp.Job[answered] // check that the database answers
	sweeps    otp.Job[store.SweepResult]
	// classes checks which classes have a worker. Its result is the builds that it failed.
	classes otp.Job[[]store.BuildRef]
	// retries lets builds in that are tried again. Its result is these builds.
	retries   otp.Job[[]store.BuildRef]
	suspects  otp.Job[[]store.WorkerUpdate]
	full      otp.Job[time.Time] // records that the queue is full, and returns when
	noted     time.Time          // when it was recorded last
	stopTicks func()             // cancels the timers of the jobs
	clock     store.ClockReading // from the last answer
}

// Init applies the configured timeouts, begins to listen, and starts reading the saved
// timeouts.
func (h *heartbeatMonitor) Init(c *otp.Ctx) error {
	h.listening.interrupted(h.m.cfg.Now())
	h.pulses = otp.Job[answered]{Begin: h.pulse, Done: h.answered}
	h.sweeps = otp.Job[store.SweepResult]{Begin: h.sweep, Done: h.swept, Outage: func(err error) string {
		if err != nil && isOutage(err) {
			return "database unavailable"
		}
		return ""
	}}
	h.classes = otp.Job[[]store.BuildRef]{Begin: h.checkClasses, Done: h.checkedClasses}
	h.retries = otp.Job[[]store.BuildRef]{Begin: h.letIn, Done: h.letInDone}
	h.retries.Every(c, retryInterval)
	h.suspects = otp.Job[[]store.WorkerUpdate]{Begin: h.checkSuspects, Done: h.checkedSuspects}
	h.full = otp.Job[time.Time]{Begin: h.noteFull, Done: h.notedFull}
	h.full.Every(c, retryInterval)
	h.m.bus.Listen(c, pubsub.WorkerUpdated)
	h.apply(c, h.m.cfg.Timeouts)
	h.settings = settings.Watcher[store.Timeouts]{Key: "heartbeat", Read: h.m.saved, Apply: h.found}
	h.settings.Start(c, h.m.bus)
	return nil
}

// HandleCall implements otp.Server.
func (h *heartbeatMonitor) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case askTimeouts:
		return h.timeouts, nil
	case update:
		return h.update(c, from, req.timeouts)
	default:
		return h.Base.HandleCall(c, from, req)
	}
}

// HandleCast implements otp.Server.
func (h *heartbeatMonitor) HandleCast(c *otp.Ctx, msg any) {
	if e, ok := msg.(pubsub.Event); ok && e.Topic == pubsub.WorkerUpdated {
		h.suspects.In(c, workersChanged)
		return
	}
	if !h.settings.Handle(c, msg) {
		h.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (h *heartbeatMonitor) HandleInfo(c *otp.Ctx, msg any) { h.HandleCast(c, msg) }

// apply sets t as the timeouts in force and restarts the timers for it.
func (h *heartbeatMonitor) apply(c *otp.Ctx, t store.Timeouts) {
	if t == h.timeouts {
		return
	}
	if h.stopTicks != nil {
		h.stopTicks()
	}
	h.timeouts = t
	h.m.queue.keepPresence(t.WorkerTimeout)
	every, patience := pulseOf(t.BuildTimeout)
	h.patience = patience
	stopPulses, stopSweeps := h.pulses.Every(c, every), h.sweeps.Every(c, t.CheckInterval)
	stopSuspects := h.suspects.Every(c, min(t.CheckInterval, suspectsInterval))
	h.stopTicks = func() { stopPulses(); stopSweeps(); stopSuspects() }
	h.pulses.Tick(c)
}

// listened reports whether this controller has listened long enough to sweep.
func (h *heartbeatMonitor) listened() bool {
	ready, ok := h.m.cfg.Ready()
	if !ok || !h.known {
		return false
	}
	return h.listening.missing(h.m.cfg.Now(), ready, h.timeouts.BuildTimeout, h.patience) == 0
}

// pulse returns the work of a check that the database answers.
func (h *heartbeatMonitor) pulse() func(context.Context) (answered, error) {
	m, limit := h.m, h.timeouts.BuildTimeout
	return func(ctx context.Context) (answered, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errTransactionTooSlow)
		defer cancel()
		asked := m.cfg.Now()
		now, err := m.db.Clock(ctx)
		return answered{asked, now}, err
	}
}

func (h *heartbeatMonitor) answered(c *otp.Ctx, a answered, err error) (next time.Duration) {
	if err != nil {
		return 0
	}
	now := h.m.cfg.Now()
	h.listening.answered(a.asked, now, h.patience)
	if was := h.clock; !was.At.IsZero() && a.database.Sub(was.Then(a.asked)) > store.MaxClockStep {
		h.clockStep(c)
	}
	h.clock = store.ClockReading{Database: a.database, At: now}
	return 0
}

// clockStep handles a forward step of the database's clock as an interruption, because
// earlier heartbeats now look older than they are.
func (h *heartbeatMonitor) clockStep(c *otp.Ctx) {
	h.listening.interrupted(h.m.cfg.Now())
	c.Logger().Warn().Msg("the database's clock is ahead of what was expected; silence of workers counts from now on")
}

// sweep returns the work of a sweep, nil if this controller has not listened long enough.
func (h *heartbeatMonitor) sweep() func(context.Context) (store.SweepResult, error) {
	if !h.listened() {
		return nil
	}
	m, s := h.m, store.Sweep{Timeouts: h.timeouts, Rule: h.m.cfg.Rule, Patience: h.patience, Clock: h.clock}
	return func(ctx context.Context) (store.SweepResult, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errTransactionTooSlow)
		defer cancel()
		result, err := m.db.Sweep(ctx, s)
		m.publish(result) // also if err says that the database refused to change other rows
		return result, err
	}
}

// publish publishes the result of a sweep. It runs in the sweep's goroutine right after the
// commit, so that requeued builds wake polls even if the actor has failed.
func (m *Monitor) publish(r store.SweepResult) {
	m.queue.Requeued(r.Requeued)
	for _, b := range r.Requeued {
		m.bus.Publish(pubsub.BuildUpdated, store.Lost(b, store.Pending, store.LostSilent))
	}
	for _, b := range r.Failed {
		m.bus.Publish(pubsub.BuildUpdated, store.Lost(b, store.Failed, store.LostSilent))
	}
	for _, id := range r.Offline {
		m.bus.Publish(pubsub.WorkerUpdated, store.WorkerUpdate{WorkerID: id, Status: store.Offline, Step: store.Step{What: store.StepOffline}})
	}
}

func (h *heartbeatMonitor) swept(c *otp.Ctx, result store.SweepResult, err error) (next time.Duration) {
	logger := c.Logger()
	switch {
	case err != nil && isOutage(err):
		// Workers may have sent heartbeats meanwhile that no controller could store.
		h.listening.interrupted(h.m.cfg.Now())
		return 0
	case err != nil:
		logger.WithLevel(levelOf(err)).Err(err).Msg("sweep failed")
	case result.ClockStep:
		h.clockStep(c)
		return 0
	}
	logSweep(logger, result)
	if !result.Skipped {
		h.classes.Tick(c)
	}
	return 0
}

// checkClasses returns the work of a check of classes. It follows each sweep but is apart from
// it, because its failure is not the sweep's.
func (h *heartbeatMonitor) checkClasses() func(context.Context) ([]store.BuildRef, error) {
	m := h.m
	return func(ctx context.Context) ([]store.BuildRef, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errTransactionTooSlow)
		defer cancel()
		failed, err := m.db.CheckClasses(ctx, m.cfg.Unmatched)
		if err != nil {
			return nil, err
		}
		for _, b := range failed {
			m.bus.Publish(pubsub.BuildUpdated, store.BuildUpdate{BuildID: b.ID, Platform: b.Platform, State: store.Failed, Was: b})
		}
		return failed, nil
	}
}

func (h *heartbeatMonitor) checkedClasses(c *otp.Ctx, failed []store.BuildRef, err error) (next time.Duration) {
	logger := c.Logger()
	if err != nil && !isOutage(err) {
		logger.WithLevel(levelOf(err)).Err(err).Msg("looking for builds that no known worker can take failed")
	}
	if n := len(failed); n > 0 {
		logger.Warn().Int("builds", n).Msg("builds failed because no known worker could take them")
	}
	return 0
}

// letIn returns the work of letting builds in that are tried again. It needs no listening, because
// it takes nothing from anybody.
func (h *heartbeatMonitor) letIn() func(context.Context) ([]store.BuildRef, error) {
	m := h.m
	return func(ctx context.Context) ([]store.BuildRef, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errTransactionTooSlow)
		defer cancel()
		refs, err := m.db.LetIn(ctx)
		m.queue.Requeued(refs)
		for _, b := range refs {
			m.bus.Publish(pubsub.BuildUpdated, store.BuildUpdate{BuildID: b.ID, Platform: b.Platform, State: store.Pending})
		}
		return refs, err
	}
}

func (h *heartbeatMonitor) letInDone(c *otp.Ctx, refs []store.BuildRef, err error) (next time.Duration) {
	logger := c.Logger()
	if err != nil && !isOutage(err) {
		logger.WithLevel(levelOf(err)).Err(err).Msg("letting in builds that are tried again failed")
	}
	if n := len(refs); n > 0 {
		logger.Info().Int("builds", n).Msg("builds are tried again after their exit codes")
	}
	return 0
}

// noteFull returns the work of recording that the queue is full, nil if submits were accepted as of
// the last count.
func (h *heartbeatMonitor) noteFull() func(context.Context) (time.Time, error) {
	last, ok := h.m.queue.Counted()
	m, now := h.m, h.m.cfg.Now()
	if !ok || last.Room.Reason() == "" || now.Sub(h.noted) < fullInterval {
		return nil
	}
	return func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errTransactionTooSlow)
		defer cancel()
		return now, m.db.NoteFull(ctx, last.Room)
	}
}

func (h *heartbeatMonitor) notedFull(c *otp.Ctx, at time.Time, err error) (next time.Duration) {
	if err == nil {
		h.noted = at
	} else if !isOutage(err) {
		logger := c.Logger()
		logger.WithLevel(levelOf(err)).Err(err).Msg("recording that the queue is full failed")
	}
	return 0
}

// checkSuspects returns the work of a check of suspects.
func (h *heartbeatMonitor) checkSuspects() func(context.Context) ([]store.WorkerUpdate, error) {
	m := h.m
	return func(ctx context.Context) ([]store.WorkerUpdate, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errTransactionTooSlow)
		defer cancel()
		changed, err := m.db.CheckSuspects(ctx)
		for _, u := range changed {
			m.bus.Publish(pubsub.WorkerUpdated, u)
		}
		return changed, err
	}
}

func (h *heartbeatMonitor) checkedSuspects(c *otp.Ctx, _ []store.WorkerUpdate, err error) (next time.Duration) {
	if err != nil && !isOutage(err) {
		logger := c.Logger()
		logger.WithLevel(levelOf(err)).Err(err).Msg("looking for suspect workers failed")
	}
	return 0
}

// logSweep logs what a sweep changed. A worker that goes offline without a build is logged
// as information, because that is normal: a machine was switched off.
func logSweep(logger *zerolog.Logger, r store.SweepResult) {
	if n, m := len(r.Requeued), len(r.Failed); n+m > 0 {
		logger.Warn().Int("requeued", n).Int("failed", m).Msg("builds taken from silent workers")
	}
	if n := len(r.Offline); n > 0 {
		logger.Info().Int("workers", n).Msg("workers went offline")
	}
}

// saved returns the saved timeouts, or the configured ones if none were saved.
func (m *Monitor) saved(ctx context.Context) (store.Timeouts, error) {
	t, found, err := m.db.Timeouts(ctx)
	if !found {
		t = m.cfg.Timeouts
	}
	return t, err
}

// found applies the saved timeouts, or the configured ones if the saved ones are invalid.
func (h *heartbeatMonitor) found(c *otp.Ctx, t store.Timeouts) {
	if err := validateTimeouts(t); err != nil {
		logger := c.Logger()
		logger.Error().Err(err).Msg("ignoring saved time-outs that are no longer valid")
		t = h.m.cfg.Timeouts
	}
	h.known = true
	h.apply(c, t)
}

// update saves t, and applies it once it is saved.
func (h *heartbeatMonitor) update(c *otp.Ctx, from otp.From, t store.Timeouts) (any, error) {
	if err := validateTimeouts(t); err != nil {
		return nil, err
	}
	m := h.m
	return h.settings.Change(c, from, func(ctx context.Context) (store.Timeouts, error) { return t, m.db.SaveTimeouts(ctx, t) })
}
