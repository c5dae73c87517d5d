package heijunka

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// The messages.
type (
	sample     struct{}                         // timer: look at the demand
	surgeOver  struct{}                         // timer
	startSurge struct{ duration time.Duration } // call
	stopSurge  struct{}                         // call
)

// burstHandler is the BurstHandler actor. It compares demand with what it was
// during the last minute and adds workers for a while when it jumps. A restart
// loses the baseline, which takes a few samples to form; a surge under way is
// the handle's and ends on time.
type burstHandler struct {
	otp.Base
	h       *Heijunka
	samples samples
	noEnd   func()
}

// Init takes over the surge that may be under way.
func (b *burstHandler) Init(c *otp.Ctx) error {
	b.samples = newSamples(b.h.cfg.Burst)
	c.SendEvery(b.h.cfg.Burst.Every, sample{})
	b.await(c)
	return nil
}

// HandleCall implements otp.Server.
func (b *burstHandler) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case startSurge:
		b.begin(c, trigger{Demand: b.samples.last, Baseline: b.samples.baseline(), Manual: true}, req.duration)
		return b.h.burstStatus(), nil
	case stopSurge:
		if !b.end(c, true) {
			return nil, store.NewError(store.Conflict, "There is no surge")
		}
		return b.h.burstStatus(), nil
	default:
		return b.Base.HandleCall(c, from, req)
	}
}

// HandleInfo implements otp.Server.
func (b *burstHandler) HandleInfo(c *otp.Ctx, msg any) {
	switch msg.(type) {
	case sample:
		b.sample(c)
	case surgeOver:
		b.end(c, false)
		b.await(c) // it may have been prolonged
	default:
		b.Base.HandleInfo(c, msg)
	}
}

// sample looks at the demand of all pools together.
func (b *burstHandler) sample(c *otp.Ctx) {
	h := b.h
	requests, workers := 0, 0
	for _, p := range h.pools {
		requests += int(p.lanes.busy.Load() + p.lanes.waiting.Load())
		workers += int(p.lanes.live.Load())
	}
	burst, why := b.samples.add(requests, workers, h.gate.limits.Load().Regular(), h.cfg.Burst)
	h.baseline.Store(&why)
	if burst {
		b.begin(c, why, h.cfg.Burst.Duration)
	}
}

// begin gives every pool its surge workers, if there is to be a surge now.
func (b *burstHandler) begin(c *otp.Ctx, why trigger, d time.Duration) {
	cfg := b.h.cfg.Burst
	if !b.h.surge.begin(time.Now(), why, cfg.Workers, len(b.h.pools), d, cfg.Cost) {
		return
	}
	b.resize(cfg.Workers, 0)
	b.await(c)
	log := c.Logger()
	log.Warn().Float64("demand", why.Demand).Float64("baseline", why.Baseline).Bool("manual", why.Manual).
		Int("workers_per_pool", cfg.Workers).Dur("duration", d).Msg("surge begins")
}

// end takes the surge workers away, if it is time to.
func (b *burstHandler) end(c *otp.Ctx, force bool) bool {
	cfg := b.h.cfg.Burst
	if !b.h.surge.end(time.Now(), cfg.Cooldown, force) {
		return false
	}
	b.resize(0, cfg.Workers)
	log := c.Logger()
	log.Info().Msg("surge ends")
	return true
}

func (b *burstHandler) resize(surge, spare int) {
	for _, p := range b.h.pools {
		p.lanes.resize(func(s *sizing) { s.surge = surge })
		p.resized(spare)
	}
}

// await arms the timer for the surge's end.
func (b *burstHandler) await(c *otp.Ctx) {
	if b.noEnd != nil {
		b.noEnd()
		b.noEnd = nil
	}
	if left, on := b.h.surge.left(time.Now()); on {
		b.noEnd = c.SendAfter(left, surgeOver{})
	}
}

// StartSurge begins a surge by hand, or prolongs the one under way; 0 means the
// configured duration.
func (h *Heijunka) StartSurge(ctx context.Context, d time.Duration) (BurstStatus, error) {
	if d == 0 {
		d = h.cfg.Burst.Duration
	}
	if d < time.Second || d > maxChange {
		return BurstStatus{}, store.NewError(store.InvalidArgument, "a surge lasts 1 second to 366 days")
	}
	return call[BurstStatus](ctx, h, h.burster, startSurge{d})
}

// StopSurge ends the surge under way. Errors: Conflict (there is none),
// Unavailable.
func (h *Heijunka) StopSurge(ctx context.Context) (BurstStatus, error) {
	return call[BurstStatus](ctx, h, h.burster, stopSurge{})
}
