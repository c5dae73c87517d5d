package heijunka

import (
	"context"
	"math"
	"time"

	"takt/actors/otp"
)

// The messages.
type (
	weigh     struct{}              // timer: look whether a worker should move
	rebalance struct{ dryRun bool } // call
)

// balancer is the Balancer actor. Requests are routed without it: it moves
// workers to where the work is. A restart loses nothing: what was moved last is
// in the handle.
type balancer struct {
	otp.Base
	h *Heijunka
}

// Init starts the clock.
func (b *balancer) Init(c *otp.Ctx) error {
	c.SendEvery(b.h.cfg.Balance.Every, weigh{})
	return nil
}

// HandleCall implements otp.Server.
func (b *balancer) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	m, ok := req.(rebalance)
	if !ok {
		return b.Base.HandleCall(c, from, req)
	}
	r := b.weigh()
	if m.dryRun || r.From == "" {
		return r, nil
	}
	return b.move(c, r)
}

// HandleInfo implements otp.Server.
func (b *balancer) HandleInfo(c *otp.Ctx, msg any) {
	if _, ok := msg.(weigh); !ok {
		b.Base.HandleInfo(c, msg)
		return
	}
	r, cfg := b.weigh(), b.h.cfg.Balance
	last, _ := b.h.moves.read()
	if r.Coefficient >= cfg.Below || r.From == "" || time.Since(last.At) < cfg.Gap {
		return
	}
	if _, err := b.move(c, r); err != nil {
		log := c.Logger()
		log.Warn().Err(err).Str("from", r.From).Str("to", r.To).Msg("worker was not moved")
	}
}

// weigh looks at the pools and shows how even they are.
func (b *balancer) weigh() Rebalance {
	r := plan(b.h.standings())
	r.At = time.Now()
	b.h.coefficient.Store(math.Float64bits(r.Coefficient))
	return r
}

// move moves a worker. The new one comes first: whatever goes wrong between, no
// capacity is lost.
func (b *balancer) move(c *otp.Ctx, r Rebalance) (Rebalance, error) {
	ctx, cancel := context.WithTimeout(c.Context(), startLimit)
	defer cancel()
	if _, err := b.h.Pool(r.To).ScaleUp(ctx, 1); err != nil {
		return r, err
	}
	if _, err := b.h.Pool(r.From).ScaleDown(ctx, 1); err != nil {
		return r, err
	}
	r.Done, r.At = true, time.Now()
	b.h.moves.note(r)
	log := c.Logger()
	log.Info().Str("from", r.From).Str("to", r.To).Float64("coefficient", r.Coefficient).Msg("moved a worker")
	return r, nil
}

// Rebalance moves a worker from the least to the most loaded pool, whether or
// not it is time to, or says why none can be moved. dryRun only says what would
// be done. Errors: Conflict (a pool was scaled a moment ago), Unavailable.
func (h *Heijunka) Rebalance(ctx context.Context, dryRun bool) (Rebalance, error) {
	return call[Rebalance](ctx, h, h.balancer, rebalance{dryRun})
}

// standings are the pools as balance sees them.
func (h *Heijunka) standings() []standing {
	all := make([]standing, 0, len(h.pools))
	for _, p := range h.pools {
		s := standing{Pool: p.name, Utilisation: p.lanes.utilisation(), Demand: p.lanes.demand()}
		p.lanes.resize(func(z *sizing) { s.Workers, s.Minimum, s.Maximum = z.base, z.min, z.max })
		all = append(all, s)
	}
	return all
}
