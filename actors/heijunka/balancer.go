package heijunka

import (
	"fmt"
	"math"
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	// uneven is the coefficient under which a place moves.
	uneven = 0.8
	// moveGap is the minimum time between two moves, so that the effect of one is
	// seen before the next.
	moveGap = 30 * time.Second
)

// coefficient is how evenly pools are used: 1 - σ/0.5 of their utilisations,
// from 1 (all alike) to 0 (half idle, half full).
func coefficient(pools []store.HeijunkaPoolUse) float64 {
	mean, variance, n := 0.0, 0.0, float64(max(len(pools), 1))
	for _, p := range pools {
		mean += p.Utilisation / n
	}
	for _, p := range pools {
		variance += (p.Utilisation - mean) * (p.Utilisation - mean) / n
	}
	return max(0, 1-math.Sqrt(variance)/0.5)
}

// plan decides between which pools a place moves: from the least loaded that can
// spare one to the most loaded that can take one.
func plan(pools []store.HeijunkaPoolUse) store.HeijunkaRebalance {
	r := store.HeijunkaRebalance{Pools: pools, Coefficient: coefficient(pools)}
	var from, to *store.HeijunkaPoolUse
	for i := range pools {
		p := &pools[i]
		if p.Workers > p.Min && (from == nil || p.Demand < from.Demand) {
			from = p
		}
		if p.Workers < p.Max && (to == nil || p.Demand > to.Demand) {
			to = p
		}
	}
	switch {
	case from == nil:
		r.Reason = "no pool has more places than its minimum"
	case to == nil:
		r.Reason = "every pool has its maximum of places"
	case from == to || to.Demand <= from.Demand:
		r.Reason = "no pool that could gain a place is more loaded than one that could lose one"
	default:
		r.From, r.To = from.Name, to.Name
		r.Reason = fmt.Sprintf("%s has %.2f requests per place, %s %.2f", to.Name, to.Demand, from.Name, from.Demand)
	}
	return r
}

// Rebalance moves a place from the least to the most loaded pool, or returns why none can
// be moved. It ignores the coefficient and the time since the last move. dryRun only
// returns what would be done. Errors: Conflict (a pool was scaled a moment ago).
func (h *Heijunka) Rebalance(dryRun bool) (store.HeijunkaRebalance, error) {
	below := 2.0 // more than a coefficient can be
	if dryRun {
		below = 0
	}
	return h.rebalance(below, 0)
}

// rebalance moves a place if the coefficient is less than below and the last move was
// at least gap ago.
func (h *Heijunka) rebalance(below float64, gap time.Duration) (store.HeijunkaRebalance, error) {
	m, now := &h.balance, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	pools := make([]store.HeijunkaPoolUse, 0, len(h.pools))
	for _, p := range h.pools {
		pools = append(pools, p.use())
	}
	r := plan(pools)
	r.At, m.known.Coefficient = store.NewMillis(now), r.Coefficient
	if r.From == "" || r.Coefficient >= below || now.Sub(m.last) < gap {
		return r, nil
	}
	// The new place is added first, so that a failure in between loses no capacity.
	up, down := 1, -1
	err := h.Scale(r.To, &up, nil)
	if err == nil {
		err = h.Scale(r.From, &down, nil)
	}
	if err == nil {
		r.Done = true
		last := r
		m.last, m.known.Last = now, &last
		m.known.Moves++
	}
	return r, err
}

// Balancer is the actor that moves places to busier pools. Requests are routed without
// it. A restart loses nothing.
func (h *Heijunka) Balancer() otp.ChildSpec {
	return periodic("balancer", func() []job { return []job{{h.cfg.balanceEvery, h.weigh}} })
}

// weigh moves a place if the pools are used unevenly.
func (h *Heijunka) weigh(c *otp.Ctx) {
	r, err := h.rebalance(uneven, moveGap)
	switch {
	case err != nil:
		c.Logger().Warn().Err(err).Str("from", r.From).Str("to", r.To).Msg("moving a place failed")
	case r.Done:
		c.Logger().Info().Str("from", r.From).Str("to", r.To).Float64("coefficient", r.Coefficient).Msg("place moved")
	}
}
