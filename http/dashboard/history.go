package dashboard

import (
	"context"
	"math"
	"sync"
	"time"

	"takt/http"
	"takt/http/edge"
	"takt/store"
)

// figure is a number that history samples.
type figure int

const (
	figPendingIOS figure = iota
	figPendingAndroid
	figRunning
	figArrived // since the previous sample, like figStarted
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
	figPools // poolFigures for each pool
)

const (
	poolBusy figure = iota
	poolWaiting
	poolLatency
	poolWorkers
	poolFigures

	maxPools = 8
	figCount = figPools + maxPools*poolFigures
)

// sums reports whether a figure counts events, because counts are added up over a
// minute.
func (f figure) sums() bool {
	return f == figArrived || f == figStarted || f == figRejectedRegular || f == figRejectedHard
}

const (
	fineStep, fineLen     = time.Second, 600       // 10 minutes
	coarseStep, coarseLen = time.Minute, 24 * 60   // 24 hours
	pulseLimit            = 900 * time.Millisecond // less than a step
	maxMachinePoints      = 120                    // per worker
	maxPoints             = 300_000                // in total; 16 bytes each
	machineLife           = time.Hour
	pulseEvery            = 10 * time.Second // plots show minutes
	quietEvery            = time.Minute      // while nothing is pending and nothing runs
)

// sample holds all figures at a time, in steps since 1970. NaN means unknown.
type sample struct {
	at int64
	v  [figCount]float32
}

// History keeps figures in memory: each second of the last ten minutes and each
// minute of the last day, about 400 KB, and at most 5 MB of worker telemetry. It
// is no part of the server, because it then outlives restarts of the endpoint. Each
// controller has its own and loses it at exit. It reads the database every pulseEvery, or
// every quietEvery while memory knows of no work, and more often only for the pages that
// somebody looks at.
type History struct {
	store    Store
	waiting  func() int
	heijunka http.Heijunka

	mu     sync.Mutex
	fine   [fineLen]sample
	coarse [coarseLen]sample
	sum    [figCount]float64 // of the current minute
	n      [figCount]int
	minute int64
	pools  []string

	machines map[string][]machinePoint // by worker
	points   int

	rejected [2]int64 // used by take only

	reading sync.Mutex // guards what follows, and is held while a pulse is read
	pulse   store.Pulse
	read    time.Time // when pulse was read; zero if the last attempt failed
	// What pulses found since the last sample: arrivals, starts, and the wait of all that
	// started.
	arrived, started int64
	waited           time.Duration
}

// machinePoint is the telemetry of a worker's machine at a time.
type machinePoint struct {
	at             uint32 // seconds since 1970
	cpu, mem, disk float32
}

// NewHistory returns a History without a past. It starts nothing.
func NewHistory(h http.Heijunka) *History {
	return &History{heijunka: h, machines: map[string][]machinePoint{}}
}

// Run takes a sample each second. The returned function stops it and waits for the
// last sample.
func (h *History) Run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex
	var timer *time.Timer
	var tick func()
	tick = func() {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		h.take(ctx, time.Now())
		timer = time.AfterFunc(time.Until(time.Now().Truncate(fineStep).Add(fineStep)), tick)
	}
	mu.Lock()
	timer = time.AfterFunc(0, tick)
	mu.Unlock()
	return func() {
		cancel(edge.ErrServerClosed)
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// take takes a sample. A figure that can't be read is NaN.
func (h *History) take(ctx context.Context, now time.Time) {
	var v [figCount]float32
	for i := range v {
		v[i] = float32(math.NaN())
	}
	if h.store != nil {
		h.takePulse(ctx, now, &v)
	}
	var pools []string
	if h.heijunka != nil {
		pools = h.takeLoad(&v)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pools = pools
	h.add(now, v)
}

func (h *History) takePulse(ctx context.Context, now time.Time, v *[figCount]float32) {
	h.reading.Lock()
	defer h.reading.Unlock()
	every := pulseEvery
	if h.pulse.Running+h.pulse.PendingIOS+h.pulse.PendingAndroid+h.waiting() == 0 {
		every = quietEvery
	}
	if h.readPulse(ctx, now, every) != nil {
		return
	}
	p := h.pulse
	v[figPendingIOS], v[figPendingAndroid], v[figRunning] = float32(p.PendingIOS), float32(p.PendingAndroid), float32(p.Running)
	v[figArrived], v[figStarted] = float32(h.arrived), float32(h.started)
	if h.started > 0 {
		v[figWaited] = float32((h.waited / time.Duration(h.started)).Seconds())
	}
	h.arrived, h.started, h.waited = 0, 0, 0
}

// readPulse reads the pulse unless the last one is younger than age. The caller holds
// reading.
func (h *History) readPulse(ctx context.Context, now time.Time, age time.Duration) error {
	if now.Sub(h.read) < age {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pulseLimit, errSlowPage)
	defer cancel()
	was := h.pulse
	p, err := h.store.Pulse(ctx, was.At)
	if err != nil {
		h.read = time.Time{}
		return err
	}
	if !was.At.IsZero() { // the first one has no predecessor
		h.arrived += max(p.Submitted-was.Submitted, 0)
		h.started += int64(p.Started)
		h.waited += time.Duration(p.Started) * p.Waited
	}
	h.pulse, h.read = p, now
	return nil
}

// pending returns how many builds wait, at most a second ago. It fails while the database
// is away.
func (h *History) pending(ctx context.Context) (map[store.Platform]int, error) {
	h.reading.Lock()
	defer h.reading.Unlock()
	if err := h.readPulse(ctx, time.Now(), fineStep); err != nil {
		return nil, err
	}
	return map[store.Platform]int{store.IOS: h.pulse.PendingIOS, store.Android: h.pulse.PendingAndroid}, nil
}

func (h *History) takeLoad(v *[figCount]float32) (pools []string) {
	st := h.heijunka.Status()
	r := st.Regulator
	v[figLoad], v[figSoft], v[figHard] = float32(r.Load), float32(r.SoftLimit), float32(r.HardLimit)
	v[figRejectedRegular] = float32(max(r.RejectedRegular-h.rejected[0], 0))
	v[figRejectedHard] = float32(max(r.RejectedHard-h.rejected[1], 0))
	h.rejected = [2]int64{r.RejectedRegular, r.RejectedHard}
	v[figBalance], v[figDemand], v[figBaseline] = float32(st.Balance.Coefficient), float32(st.Burst.Demand), float32(st.Burst.Baseline)
	for i, p := range st.Pools {
		if i == maxPools {
			break
		}
		at := figPools + figure(i)*poolFigures
		v[at+poolBusy], v[at+poolWaiting] = float32(p.Busy), float32(p.QueueLength)
		v[at+poolLatency], v[at+poolWorkers] = float32(p.AverageLatencyMS), float32(p.Workers)
		pools = append(pools, p.Name)
	}
	return pools
}

// add adds a sample. The caller holds mu.
func (h *History) add(now time.Time, v [figCount]float32) {
	second, minute := now.Unix(), now.Unix()/60
	h.fine[second%fineLen] = sample{second, v}
	if minute != h.minute {
		h.sum, h.n, h.minute = [figCount]float64{}, [figCount]int{}, minute
	}
	s := &h.coarse[minute%coarseLen]
	s.at = minute
	for i := range v {
		if !math.IsNaN(float64(v[i])) {
			h.sum[i] += float64(v[i])
			h.n[i]++
		}
		switch f := figure(i); {
		case h.n[i] == 0:
			s.v[i] = float32(math.NaN())
		case f.sums():
			s.v[i] = float32(h.sum[i])
		default:
			s.v[i] = float32(h.sum[i] / float64(h.n[i]))
		}
	}
}

// past returns a figure per minute, oldest first. Of the current minute, which is last,
// it returns the newest value, or for what is counted the sum so far.
func (h *History) past(f figure, minutes int, now time.Time) []float32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	values := make([]float32, minutes)
	end := now.Unix() / 60
	for i := range values {
		minute := end - int64(minutes) + 1 + int64(i)
		values[i] = float32(math.NaN())
		if s := &h.coarse[minute%coarseLen]; s.at == minute {
			values[i] = s.v[f]
		}
	}
	if s := h.newest(); s.at/60 == end && f != figWaited && !f.sums() {
		values[minutes-1] = s.v[f]
	}
	return values
}

// newest returns the last sample. The caller holds mu.
func (h *History) newest() *sample {
	newest := &h.fine[0]
	for i := range h.fine {
		if h.fine[i].at > newest.at {
			newest = &h.fine[i]
		}
	}
	return newest
}

// recent returns a figure in steps of ten seconds over the last ten minutes.
func (h *History) recent(f figure, now time.Time) []float32 {
	const step = 10
	h.mu.Lock()
	defer h.mu.Unlock()
	values := make([]float32, fineLen/step)
	end := now.Unix() / step * step
	for i := range values {
		sum, n := 0.0, 0
		for second := end - fineLen + int64(i)*step; second < end-fineLen+int64(i+1)*step; second++ {
			if s := &h.fine[second%fineLen]; s.at == second && !math.IsNaN(float64(s.v[f])) {
				sum, n = sum+float64(s.v[f]), n+1
			}
		}
		switch {
		case n == 0:
			values[i] = float32(math.NaN())
		case f.sums():
			values[i] = float32(sum)
		default:
			values[i] = float32(sum / float64(n))
		}
	}
	return values
}

// pool returns the index of a pool's first figure.
func (h *History) pool(name string) (f figure, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, n := range h.pools {
		if n == name {
			return figPools + figure(i)*poolFigures, true
		}
	}
	return 0, false
}

// machine records the telemetry of a worker's machine.
func (h *History) machine(worker string, t store.Telemetry, now time.Time) {
	value := func(f *float64) float32 {
		if f == nil {
			return float32(math.NaN())
		}
		return float32(*f)
	}
	p := machinePoint{uint32(now.Unix()), value(t.CPUPercent), value(t.MemoryMB), value(t.DiskPercent)}
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
		copy(list, list[1:])
		list = list[:len(list)-1]
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

// Observe adds the service builds: the history reads the queue from s, and records the
// telemetry that the returned builds receive. waiting returns how many builds are pending
// as far as this process knows; it may be called at any time. Call Observe before Run.
func (h *History) Observe(s Store, waiting func() int, builds http.Builds) http.Builds {
	h.store, h.waiting = s, waiting
	return observedBuilds{builds, h}
}

// Telemetry forwards to Builds and records t.
func (b observedBuilds) Telemetry(ctx context.Context, beat store.Beat, t store.Telemetry) (store.BeatReply, error) {
	reply, err := b.Builds.Telemetry(ctx, beat, t)
	if err == nil {
		b.history.machine(beat.WorkerID, t, time.Now())
	}
	return reply, err
}
