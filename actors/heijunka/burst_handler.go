package heijunka

import (
	"cmp"
	"sync"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// The thresholds of a burst, and the response to it.
const (
	sampleEvery = time.Second
	baseline    = 60 // samples of which the mean is taken
	warmUp      = 5  // samples that make a baseline
	factor      = 10 // a burst is at least this multiple of the baseline
	volume      = 20 // minimum number of requests for a burst
	// near is the share of the gate's limit above which demand is a burst whatever the
	// baseline, because factor times the baseline may be more than the gate admits.
	near = 0.9

	surgePlaces   = 5 // places that each pool gets, on top of its maximum
	surgeDuration = 5 * time.Minute
	surgeCooldown = 30 * time.Second // minimum time from a surge's end to the next
	surgeCost     = 2.0              // cost of a place, in the operator's units
)

// surge is extra capacity for a while. It belongs to the handle, so that it ends on
// time even if an actor restarts.
type surge struct {
	mu    sync.Mutex // guards what follows
	until time.Time
	rest  time.Time // no other surge begins before
	known store.HeijunkaBursts
}

func (s *surge) update(f func(known *store.HeijunkaBursts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.known)
}

// beginSurge gives every pool its surge places, because of the last sample or because
// an operator asked for it (manual). An operator may also prolong the current surge. It
// reports whether anything changed.
func (h *Heijunka) beginSurge(now time.Time, manual bool, d time.Duration) bool {
	s := &h.surge
	s.mu.Lock()
	defer s.mu.Unlock()
	k, added := &s.known, surgePlaces*len(h.pools)
	if !manual && (!k.Enabled || k.Active || now.Before(s.rest)) {
		return false
	}
	s.until = now.Add(d)
	k.Until = store.NewMillis(s.until)
	if k.Active {
		return true
	}
	k.Active, k.Manual, k.BeganAt = true, manual, store.NewMillis(now)
	k.TriggerDemand, k.TriggerBaseline = k.Demand, k.Baseline
	k.Events++
	k.WorkersAdded += int64(added)
	k.Cost += float64(added) * surgeCost
	for _, p := range h.pools {
		p.setSurge(surgePlaces)
	}
	return true
}

// endSurge removes the surge places and reports whether there were any. Without force
// it does so only when their time is over.
func (h *Heijunka) endSurge(now time.Time, force bool) bool {
	s := &h.surge
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known.Active || !force && now.Before(s.until) {
		return false
	}
	s.known.Active, s.rest = false, now.Add(surgeCooldown)
	for _, p := range h.pools {
		p.setSurge(0)
	}
	return true
}

// StartSurge begins a surge by hand, or prolongs the current one. A duration of 0 means
// five minutes. Errors: InvalidArgument.
func (h *Heijunka) StartSurge(d time.Duration) error {
	d = cmp.Or(d, surgeDuration)
	if d < time.Second || d > maxChange {
		return store.NewError(store.InvalidArgument, "a surge lasts 1 second to 366 days")
	}
	h.beginSurge(time.Now(), true, d)
	return nil
}

// StopSurge ends the surge under way. Errors: Conflict (there is none).
func (h *Heijunka) StopSurge() error {
	if !h.endSurge(time.Now(), true) {
		return store.NewError(store.Conflict, "There is no surge")
	}
	return nil
}

// samples detects bursts. Each incarnation has its own.
type samples struct {
	ring [baseline]float64
	size int // samples ever taken
}

// add takes a sample and reports whether it is a burst. The arguments are the requests
// that run or wait, the places of all pools, and the gate's limit. demand is requests per
// place, mean its mean over the previous samples.
func (s *samples) add(requests, places, most int) (demand, mean float64, burst bool) {
	perPlace, known := 1/float64(max(places, 1)), min(s.size, baseline)
	for _, v := range s.ring[:known] {
		mean += v / float64(known)
	}
	demand = float64(requests) * perPlace
	s.ring[s.size%baseline] = demand
	s.size++
	threshold := min(factor*mean, near*float64(most)*perPlace)
	return demand, mean, known >= warmUp && requests >= volume && demand > threshold
}

// BurstHandler is the actor that compares demand with the mean of the last
// minute, adds places for a while when it jumps, and takes them away when the time
// is over. A restart loses the baseline, which takes a few samples to form.
func (h *Heijunka) BurstHandler() otp.ChildSpec {
	return periodic("burst_handler", func() []job {
		s := &samples{}
		return []job{{sampleEvery, func(c *otp.Ctx) { h.sample(c, s) }}}
	})
}

// sample measures the demand of all pools together.
func (h *Heijunka) sample(c *otp.Ctx, s *samples) {
	now := time.Now()
	if h.endSurge(now, false) {
		c.Logger().Info().Msg("surge ended")
	}
	requests, places := 0, 0
	for _, p := range h.pools {
		n, all := p.requests()
		requests, places = requests+n, places+all
	}
	gate, _ := h.gate.status()
	demand, mean, burst := s.add(requests, places, gate.RegularLimit)
	h.surge.update(func(k *store.HeijunkaBursts) { k.Demand, k.Baseline = demand, mean })
	if burst && h.beginSurge(now, false, surgeDuration) {
		c.Logger().Warn().Float64("demand", demand).Float64("baseline", mean).
			Int("places_per_pool", surgePlaces).Dur("duration", surgeDuration).Msg("surge started")
	}
}
