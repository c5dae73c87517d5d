package heijunka

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// coefficient says how evenly pools are used: 1 - σ/0.5 of their utilisations,
// from 1 (all alike) to 0 (half idle, half full).
func coefficient(utilisations []float64) float64 {
	if len(utilisations) == 0 {
		return 1
	}
	mean, variance := 0.0, 0.0
	for _, u := range utilisations {
		mean += u / float64(len(utilisations))
	}
	for _, u := range utilisations {
		variance += (u - mean) * (u - mean) / float64(len(utilisations))
	}
	return max(0, 1-math.Sqrt(variance)/0.5)
}

// standing is a pool as balance sees it.
type standing struct {
	Pool        string
	Utilisation float64
	// Demand is who works or waits, per worker.
	Demand           float64
	Workers          int // by scaling, without surge and overflow
	Minimum, Maximum int
}

// Rebalance is what a rebalancing does, or would do.
type Rebalance struct {
	Coefficient float64
	Standings   []standing
	// From and To are the pools that lose and gain a worker; "" if none does.
	From, To string
	// Reason says why them, or why nothing is to be done.
	Reason string
	Done   bool
	At     time.Time
}

// plan decides between which pools a worker moves: from the least loaded that
// can spare one to the most loaded that can take one.
func plan(pools []standing) Rebalance {
	r := Rebalance{Standings: pools}
	utilisations := make([]float64, 0, len(pools))
	var from, to *standing
	for i := range pools {
		p := &pools[i]
		utilisations = append(utilisations, p.Utilisation)
		if p.Workers > p.Minimum && (from == nil || p.Demand < from.Demand) {
			from = p
		}
		if p.Workers < p.Maximum && (to == nil || p.Demand > to.Demand) {
			to = p
		}
	}
	r.Coefficient = coefficient(utilisations)
	switch {
	case from == nil:
		r.Reason = "no pool has more workers than its minimum"
	case to == nil:
		r.Reason = "every pool has its maximum of workers"
	case from == to || to.Demand <= from.Demand:
		r.Reason = "no pool that could gain a worker has more to do than one that could lose one"
	default:
		r.From, r.To = from.Pool, to.Pool
		r.Reason = fmt.Sprintf("%s has %.2f requests per worker, %s %.2f", to.Pool, to.Demand, from.Pool, from.Demand)
	}
	return r
}

// moves remembers rebalancing.
type moves struct {
	mu    sync.Mutex // guards what follows
	last  Rebalance  // the last that was done
	count int64
}

// note keeps a move that was made.
func (m *moves) note(r Rebalance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
	m.count++
}

// read returns the last move and how many there were.
func (m *moves) read() (Rebalance, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.count
}
