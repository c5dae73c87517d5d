package heijunka

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
)

// The messages.
type (
	scale struct { // call: change the size by, or to, so many workers
		by, to int
	}
	examine struct{} // call and timer: ping all workers

	hungry   struct{}            // cast: requests wait
	bereaved struct{}            // cast: a worker crashed
	resized  struct{ spare int } // cast: the size was changed; so many may go at once

	tick   struct{} // timer
	look   struct{} // timer: scale
	refill struct{} // timer: replace those who crashed
	pinged struct { // a worker has answered, or not
		proc *otp.Proc
		err  error
	}
)

// manager is a pool's manager. It starts and stops workers and nothing else:
// slots are handed out without it. A restart loses the delay before crashed
// workers are replaced; lanes, waiters and the pool's size are not its own.
type manager struct {
	otp.Base
	p       *Pool
	backoff backoff
	owed    int // crashed workers whose replacement waits
	round   round
}

// round is a round of pings.
type round struct {
	left, failed, all int
	askers            []otp.From
}

// Init gives lanes whose worker was stopped under a request a new one, and makes
// the pool as large as it is to be.
func (m *manager) Init(c *otp.Ctx) error {
	cfg := m.p.h.cfg
	m.fill(c)
	c.SendEvery(time.Second, tick{})
	c.SendEvery(cfg.Scaling.Every, look{})
	c.SendEvery(cfg.Health.Every, examine{})
	return nil
}

// HandleCall implements otp.Server.
func (m *manager) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case scale:
		if err := m.scale(c, req); err != nil {
			return nil, err
		}
		return m.p.Status(), nil
	case examine:
		m.round.askers = append(m.round.askers, from)
		m.examine(c)
		return otp.NoReply, nil
	default:
		return m.Base.HandleCall(c, from, req)
	}
}

// HandleCast implements otp.Server.
func (m *manager) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case hungry:
		m.fill(c)
	case bereaved:
		m.bereaved(c)
	case resized:
		m.retire(msg.spare)
		m.fill(c)
	default:
		m.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (m *manager) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case tick:
		m.retire(0)
		m.fill(c)
	case look:
		m.look(c)
	case refill:
		m.owed = 0
		m.fill(c)
	case examine:
		m.examine(c)
	case pinged:
		m.pinged(c, msg)
	default:
		m.Base.HandleInfo(c, msg)
	}
}

// startLimit bounds the start of workers at once: their supervisor may be on its
// way down.
const startLimit = 5 * time.Second

// fill starts the workers that are missing.
func (m *manager) fill(c *otp.Ctx) {
	m.p.asked.Store(false) // from here on news counts again
	ctx, cancel := context.WithTimeout(c.Context(), startLimit)
	defer cancel()
	var failed error
	for _, l := range m.p.lanes.orphans() {
		failed = errors.Join(failed, m.start(ctx, l))
	}
	for range max(m.p.lanes.missing()-m.owed, 0) {
		if failed != nil {
			break
		}
		failed = m.start(ctx, &lane{pool: m.p.lanes})
	}
	if failed != nil {
		c.Suspend("workers do not start: " + failed.Error()) // tried again at the next tick
		return
	}
	c.Resume()
}

func (m *manager) start(ctx context.Context, l *lane) error {
	_, err := otp.StartDynamic(ctx, m.p.workers, l)
	if errors.Is(err, otp.Ignore) {
		return nil
	}
	return err
}

// bereaved has a crashed worker replaced, later and later the more there are.
func (m *manager) bereaved(c *otp.Ctx) {
	now, cfg := time.Now(), m.p.h.cfg.Health
	if m.owed == 0 {
		c.SendAfter(m.backoff.crashed(now, cfg.BackoffMin, cfg.BackoffMax).Sub(now), refill{})
	}
	m.owed++
}

func (m *manager) retire(spare int) {
	for _, proc := range m.p.lanes.retire(spare, m.p.h.cfg.Scaling.Linger) {
		proc.Exit(otp.ErrShutdown)
	}
}

// look scales by utilisation.
func (m *manager) look(c *otp.Ctx) {
	lanes, step := m.p.lanes, 0
	utilisation := lanes.utilisation()
	lanes.resize(func(s *sizing) { step = s.auto(time.Now(), utilisation, m.p.h.cfg.Scaling) })
	m.follow(c, step)
}

// scale carries out an operator's or Balancer's wish.
func (m *manager) scale(c *otp.Ctx, req scale) (err error) {
	by := req.by
	m.p.lanes.resize(func(s *sizing) {
		if req.to > 0 {
			by = req.to - s.base
		}
		err = s.scale(time.Now(), by, m.p.h.cfg.Scaling.Gap)
	})
	if err == nil {
		m.follow(c, by)
	}
	return err
}

// follow starts or stops workers after the size has changed.
func (m *manager) follow(c *otp.Ctx, step int) {
	if step == 0 {
		return
	}
	log := c.Logger()
	log.Info().Int("step", step).Msg("pool scaled")
	m.retire(max(-step, 0))
	m.fill(c)
}

// examine pings all workers at once, unless that is being done.
func (m *manager) examine(c *otp.Ctx) {
	if m.round.left > 0 {
		return
	}
	timeout := m.p.h.cfg.Health.Timeout
	workers := m.p.lanes.workers()
	m.round.left, m.round.all, m.round.failed = len(workers), len(workers), 0
	for proc := range workers {
		c.Async(func(ctx context.Context) any {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNoPong)
			defer cancel()
			_, err := otp.Call[pong](ctx, proc, ping{})
			return pinged{proc, err}
		})
	}
	m.examined()
}

var errNoPong = errors.New("the worker did not answer")

// pinged takes an answer. A worker that is stuck is killed, and replaced like
// one that crashed.
func (m *manager) pinged(c *otp.Ctx, p pinged) {
	m.round.left--
	if p.err != nil && p.proc.Alive() {
		m.round.failed++
		log := c.Logger()
		log.Error().Err(p.err).Str("worker", p.proc.Path()).Msg("worker is stuck and is replaced")
		p.proc.Kill()
	}
	m.examined()
}

// examined tells who asked once the round is over.
func (m *manager) examined() {
	if m.round.left > 0 {
		return
	}
	for _, from := range m.round.askers {
		from.Reply(Examination{Workers: m.round.all, Failed: m.round.failed}, nil)
	}
	m.round = round{}
}
