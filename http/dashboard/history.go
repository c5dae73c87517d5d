package dashboard

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"takt/http"
	"takt/http/edge"
	"takt/store"
)

// figure is a number that history samples.
type figure int

const (
	figRunning figure = iota
	figArrived        // since the previous sample, like figStarted
	figStarted
	figWaited // the wait of the started builds, in seconds
	figLoad
	figSoft
	figHard
	figRejectedRegular
	figRejectedHard
	figBalance
	figDemand
	figBaseline
	figPending                             // of each platform
	figPools   = figPending + maxPlatforms // poolFigures for each pool
)

const (
	poolBusy figure = iota
	poolWaiting
	poolLatency
	poolPlaces
	poolFigures

	// maxPlatforms is how many platforms have a line. If there are more, the last line is the rest.
	maxPlatforms = 6
	maxPools     = 8
	figCount     = figPools + maxPools*poolFigures
)

// sums reports whether a figure counts events, because counts are added up over a
// minute.
func (f figure) sums() bool {
	return f == figArrived || f == figStarted || f == figRejectedRegular || f == figRejectedHard
}

const (
	sampleEvery      = time.Second
	pulseEvery       = 10 * time.Second       // without viewers: plots show minutes
	watchedFor       = 10                     // seconds after the last view
	pulseLimit       = 900 * time.Millisecond // less than sampleEvery
	maxMachinePoints = 120                    // per worker
	maxPoints        = 300_000                // in total; 16 bytes each
	machineLife      = time.Hour
)

// sample holds all figures of a time. NaN means unknown.
type sample [figCount]float32

func newSample() (v sample) {
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return v
}

// ring holds the figures of the last steps: their means, and the sums of what is counted.
type ring struct {
	step  int64 // in seconds
	steps []sample
	at    []int64 // the number of each step since 1970
	// Of the current step.
	sum [figCount]float64
	n   [figCount]int
}

func newRing(step time.Duration, n int) *ring {
	return &ring{step: int64(step / time.Second), steps: make([]sample, n), at: make([]int64, n)}
}

func (r *ring) add(now time.Time, v *sample) {
	at := now.Unix() / r.step
	i := at % int64(len(r.at))
	if r.at[i] != at {
		r.at[i], r.sum, r.n = at, [figCount]float64{}, [figCount]int{}
		r.steps[i] = newSample()
	}
	for f := range v {
		if math.IsNaN(float64(v[f])) {
			continue
		}
		r.sum[f] += float64(v[f])
		r.n[f]++
		r.steps[i][f] = float32(r.sum[f])
		if !figure(f).sums() {
			r.steps[i][f] /= float32(r.n[f])
		}
	}
}

// values returns a figure of all steps up to the one at end, oldest first.
func (r *ring) values(f figure, end time.Time) []float32 {
	n := len(r.at)
	values := make([]float32, n)
	for i := range values {
		at := end.Unix()/r.step - int64(n-1-i)
		values[i] = float32(math.NaN())
		if k := at % int64(len(r.at)); r.at[k] == at {
			values[i] = r.steps[k][f]
		}
	}
	return values
}

// periods are the times that plots may cover, and the steps in which history keeps them.
var periods = []struct {
	Name         string
	step, length time.Duration
}{{"1h", 10 * time.Second, time.Hour}, {"24h", time.Minute, 24 * time.Hour}, {"7d", 10 * time.Minute, 7 * 24 * time.Hour}}

// History keeps figures in memory: those of each period, about 500 KB, and at most 5 MB of
// worker telemetry. It
// is not part of the server, so that it outlives restarts of the endpoint. Each
// controller has its own and loses it at exit. It reads the database only while there is
// work, then every pulseEvery, and each second for viewers; all else is in memory anyway.
type History struct {
	heijunka  http.Heijunka
	platforms []string                        // those that builds may be for
	counted   func() (store.QueueCount, bool) // nil without the service builds
	readPulse func(ctx context.Context, since time.Time) (store.Pulse, error)
	began     time.Time

	mu       sync.Mutex
	rings    []*ring // of the periods
	newest   sample
	newestAt time.Time
	pools    []string

	machines map[string][]machinePoint // by worker
	points   int

	watched atomic.Int64 // when the queue's plots were last viewed, in seconds since 1970

	// What follows is used by take only.
	rejected [2]int64
	pulse    store.Pulse // the last one
	read     time.Time   // when it was read; zero if the last attempt failed
	changes  uint64      // QueueCount.Changes before it was read
}

// machinePoint is the telemetry of a worker's machine at a time.
type machinePoint struct {
	at uint32     // seconds since 1970
	v  [3]float32 // processor, memory and disk; NaN is unknown
}

// NewHistory returns a History without a past. It starts nothing. Builds may be for platforms;
// none means ios and android.
func NewHistory(h http.Heijunka, platforms []store.Platform) *History {
	history := &History{heijunka: h, platforms: platformNames(platforms), machines: map[string][]machinePoint{}, began: time.Now()}
	for _, p := range periods {
		history.rings = append(history.rings, newRing(p.step, int(p.length/p.step)))
	}
	return history
}

// Run takes a sample each second. The returned function stops it and waits for the
// last sample.
func (h *History) Run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			h.take(ctx, time.Now())
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(time.Now().Truncate(sampleEvery).Add(sampleEvery))):
			}
		}
	})
	return func() {
		cancel(edge.ErrServerClosed)
		running.Wait()
	}
}

// take takes a sample. A figure that can't be read is NaN.
func (h *History) take(ctx context.Context, now time.Time) {
	v := newSample()
	if h.counted != nil {
		h.takeQueue(ctx, now, &v)
	}
	var pools []string
	if h.heijunka != nil {
		pools = h.takeLoad(&v)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pools = pools
	h.add(now, &v)
}

// takeQueue takes the number of waiting builds from the count that the queue manager makes of all controllers'
// builds. It reads the rest only while it may change: nothing starts, and nothing runs, that
// was not pending before.
func (h *History) takeQueue(ctx context.Context, now time.Time, v *sample) {
	count, ok := h.counted()
	if !ok {
		return // an outage
	}
	pending := 0
	for i := range h.lines() {
		v[figPending+figure(i)] = 0
	}
	for platform, n := range count.Pending {
		pending += n
		if i := slices.Index(h.platforms, string(platform)); i >= 0 {
			v[figPending+figure(min(i, maxPlatforms-1))] += float32(n)
		}
	}
	work := pending+h.pulse.Running > 0 || count.Changes != h.changes
	every := pulseEvery
	if now.Unix()-h.watched.Load() <= watchedFor {
		every = sampleEvery
	}
	was, begun := h.pulse, h.read
	if work && now.Sub(h.read) >= every {
		ctx, cancel := context.WithTimeoutCause(ctx, pulseLimit, errSlowPage)
		defer cancel()
		p, err := h.readPulse(ctx, was.At)
		if err != nil {
			h.read = time.Time{}
			return
		}
		h.pulse, h.read, h.changes = p, now, count.Changes
	}
	v[figRunning], v[figArrived], v[figStarted] = float32(h.pulse.Running), 0, 0
	if h.read != begun && !was.At.IsZero() { // the first pulse has no predecessor
		v[figArrived], v[figStarted] = float32(max(h.pulse.Submitted-was.Submitted, 0)), float32(h.pulse.Started)
		if h.pulse.Started > 0 {
			v[figWaited] = float32(h.pulse.Waited.Seconds())
		}
	}
}

func (h *History) takeLoad(v *sample) (pools []string) {
	st := h.heijunka.Status()
	r := st.Regulator
	v[figLoad], v[figSoft], v[figHard] = float32(r.Load), float32(r.SoftLimit), float32(r.HardLimit)
	v[figRejectedRegular] = float32(max(r.RejectedRegular-h.rejected[0], 0))
	v[figRejectedHard] = float32(max(r.RejectedHard-h.rejected[1], 0))
	h.rejected = [2]int64{r.RejectedRegular, r.RejectedHard}
	v[figBalance], v[figDemand], v[figBaseline] = float32(st.Balance.Coefficient), float32(st.Burst.Demand), float32(st.Burst.Baseline)
	for i, p := range st.Pools[:min(len(st.Pools), maxPools)] {
		at := figPools + figure(i)*poolFigures
		v[at+poolBusy], v[at+poolWaiting] = float32(p.Busy), float32(p.QueueLength)
		v[at+poolLatency], v[at+poolPlaces] = float32(p.AverageLatencyMS), float32(p.Workers)
		pools = append(pools, p.Name)
	}
	return pools
}

// lines names the lines of platforms, in the order of their figures.
func (h *History) lines() []string {
	if len(h.platforms) <= maxPlatforms {
		return h.platforms
	}
	return append(slices.Clone(h.platforms[:maxPlatforms-1]), "others")
}

// add adds a sample. The caller holds mu.
func (h *History) add(now time.Time, v *sample) {
	for _, r := range h.rings {
		r.add(now, v)
	}
	h.newest, h.newestAt = *v, now
}

// over returns a figure of a period up to now in its steps, oldest first. What is counted is
// per minute, and NaN for the current step. Of other figures that has the newest value.
func (h *History) over(f figure, period int, now time.Time) []float32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.rings[period]
	values := r.values(f, now)
	current := &values[len(values)-1]
	if f.sums() {
		*current = float32(math.NaN())
		for i := range values {
			values[i] *= 60 / float32(r.step)
		}
	} else if f != figWaited && h.newestAt.Unix()/r.step == now.Unix()/r.step {
		*current = h.newest[f]
	}
	return values
}

// Refused returns how many requests were refused within five minutes, because too many ran.
func (h *History) Refused() int {
	now, refused := time.Now(), float32(0)
	for _, f := range [...]figure{figRejectedRegular, figRejectedHard} {
		rates := h.over(f, 0, now) // by the minute, in steps of ten seconds
		for _, rate := range rates[len(rates)-30:] {
			if rate > 0 { // not NaN
				refused += rate / 6
			}
		}
	}
	return int(refused + 0.5)
}

// pool returns the index of a pool's first figure.
func (h *History) pool(name string) (f figure, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.pools, name)
	return figPools + figure(i)*poolFigures, i >= 0
}

// machine records the telemetry of a worker's machine.
func (h *History) machine(worker string, t store.Telemetry, now time.Time) {
	unknown := math.NaN()
	value := func(f *float64) float32 { return float32(*cmp.Or(f, &unknown)) }
	p := machinePoint{uint32(now.Unix()), [3]float32{value(t.CPUPercent), value(t.MemoryMB), value(t.DiskPercent)}}
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.machines[worker]
	if h.points >= maxPoints && len(list) < maxMachinePoints {
		h.forget(now)
		if h.points >= maxPoints {
			return // the limit is reached: keep the workers recorded so far
		}
	}
	if len(list) == maxMachinePoints {
		list = slices.Delete(list, 0, 1)
		h.points--
	}
	h.machines[worker] = append(list, p)
	h.points++
}

// forget drops machines without recent telemetry.
func (h *History) forget(now time.Time) {
	for worker, list := range h.machines {
		if now.Unix()-int64(list[len(list)-1].at) > int64(machineLife.Seconds()) {
			h.points -= len(list)
			delete(h.machines, worker)
		}
	}
}

// machineBetween returns the telemetry of a worker's machine between from and to.
func (h *History) machineBetween(worker string, from, to time.Time) (points []machinePoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.machines[worker] {
		if at := int64(p.at); at >= from.Unix() && at <= to.Unix() {
			points = append(points, p)
		}
	}
	return points
}

// observedBuilds is Builds, and records telemetry in the history.
type observedBuilds struct {
	http.Builds
	history *History
}

// Observe adds the service builds. counted returns the queue manager's last count, and pulse
// reads how busy the queue is. The history records the telemetry that the returned builds
// receive. Call Observe before Run.
func (h *History) Observe(
	counted func() (store.QueueCount, bool), pulse func(ctx context.Context, since time.Time) (store.Pulse, error), builds http.Builds,
) http.Builds {
	h.counted, h.readPulse = counted, pulse
	return observedBuilds{builds, h}
}

// Telemetry forwards to Builds and records t.
func (b observedBuilds) Telemetry(ctx context.Context, heartbeat store.Heartbeat, t store.Telemetry) (store.HeartbeatReply, error) {
	reply, err := b.Builds.Telemetry(ctx, heartbeat, t)
	if err == nil {
		b.history.machine(heartbeat.WorkerID, t, time.Now())
	}
	return reply, err
}
