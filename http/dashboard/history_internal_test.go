package dashboard

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestHistoryIsTenSecondsAndAMinuteFine(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil, nil)
	begin := time.Unix(1_800_000_000, 0) // a whole minute
	for i := range 180 {
		var v sample
		v[figRunning], v[figArrived] = float32(i/60), 2
		v[figBalance] = float32(math.NaN())
		h.mu.Lock()
		h.add(begin.Add(time.Duration(i)*time.Second), &v)
		h.mu.Unlock()
	}
	now := begin.Add(3*time.Minute - time.Second)
	last := func(f figure, period, n int) []float32 {
		values := h.over(f, period, now)
		require.Len(t, values, int(periods[period].length/periods[period].step))
		return values[len(values)-n:]
	}
	unknown := func(v float32) bool { return math.IsNaN(float64(v)) }
	require.Equal(t, []float32{0, 1, 2}, last(figRunning, 1, 3))
	for period, complete := range []int{17, 2} {
		arrived := last(figArrived, period, complete+2)
		require.True(t, unknown(arrived[0]), "before it was looked")
		require.Equal(t, slices.Repeat([]float32{120}, complete), arrived[1:complete+1], "what happened is added up, by the minute")
		require.True(t, unknown(arrived[complete+1]), "the current step")
	}
	require.InDelta(t, 2, last(figRunning, 2, 1)[0], 0, "the newest")
	require.True(t, unknown(last(figBalance, 1, 1)[0]))
}

// shared is a database as controllers see it: what was counted, and what a pulse reads.
type shared struct {
	store.Pulse
	count        store.QueueCount
	reads        int
	away, failed bool
}

func (s *shared) counted() (store.QueueCount, bool) { return s.count, !s.away }

func (s *shared) read(_ context.Context, since time.Time) (store.Pulse, error) {
	s.reads++
	s.At = since.Add(time.Second)
	if s.failed {
		return store.Pulse{}, store.NewError(store.Unavailable, "away")
	}
	return s.Pulse, nil
}

func TestPlotsReadTheDatabaseOnlyWhileThereIsWork(t *testing.T) {
	t.Parallel()
	db := &shared{count: store.QueueCount{Changes: 1}}
	h := NewHistory(nil, nil)
	h.Observe(db.counted, db.read, nil)
	second := time.Unix(1_800_000_000, 0)
	pass := func(seconds int) {
		for range seconds {
			h.take(t.Context(), second)
			second = second.Add(time.Second)
		}
	}
	last := func(f figure) float32 { // of the last ten seconds
		values := h.over(f, 0, second.Add(9*time.Second).Truncate(10*time.Second))
		if v := values[len(values)-2]; !f.sums() {
			return v
		}
		return values[len(values)-2] / 6
	}
	pass(600)
	require.Equal(t, 1, db.reads, "at the start, because nothing is known")
	require.Zero(t, last(figRunning))

	// Another controller hands out a build at once, so that no count has seen it pending.
	db.count.Changes, db.Submitted, db.Running, db.Started, db.Waited = 2, 1, 1, 1, 3*time.Second
	pass(10)
	require.Equal(t, 2, db.reads)
	require.Equal(t, []float32{1, 1, 1, 3}, []float32{last(figRunning), last(figArrived), last(figStarted), last(figWaited)})
	db.Started = 0
	pass(50)
	require.Equal(t, 7, db.reads, "every 10 s while it runs")
	h.watched.Store(second.Unix())
	pass(20)
	require.Equal(t, 7+11, db.reads, "each second for those who look, and 10 s on")
	pass(20)
	db.reads = 7
	db.count.Pending, db.Running, db.Submitted = map[store.Platform]int{store.IOS: 2, store.Android: 1}, 0, 4
	pass(10)
	require.Equal(t, []float32{2, 1, 3}, []float32{last(figPending), last(figPending + 1), last(figArrived)})
	db.count.Pending, db.Started = nil, 3 // and ended
	pass(10)
	require.Equal(t, []float32{0, 0}, []float32{last(figPending), last(figRunning)})
	pass(600)
	require.Equal(t, 8, db.reads, "no work")

	unknown := func() bool { return math.IsNaN(float64(last(figRunning))) }
	db.count.Changes, db.failed = 3, true
	pass(10)
	require.Equal(t, 18, db.reads, "tried again each second")
	require.True(t, unknown())
	db.failed, db.Submitted = false, 9
	pass(10)
	require.False(t, unknown())
	require.InDelta(t, 5, last(figArrived), 0, "what arrived during the outage counts too")
	db.away = true
	pass(20)
	require.True(t, unknown())
	require.Equal(t, 19, db.reads)
}

func TestEachPlatformHasALine(t *testing.T) {
	t.Parallel()
	db := &shared{count: store.QueueCount{Pending: map[store.Platform]int{"p0": 1, "p4": 2, "p5": 4, "p7": 8, "unknown": 16}}}
	var set []store.Platform
	for i := range maxPlatforms + 2 {
		set = append(set, store.Platform(fmt.Sprint("p", i)))
	}
	h := NewHistory(nil, set)
	h.Observe(db.counted, db.read, nil)
	now := time.Unix(1_800_000_000, 0)
	h.take(t.Context(), now)
	require.Equal(t, []string{"p0", "p1", "p2", "p3", "p4", "others"}, h.lines())
	for i, want := range []float32{1, 0, 0, 0, 2, 12} {
		values := h.over(figPending+figure(i), 0, now)
		require.InDelta(t, want, values[len(values)-1], 0, i)
	}
	require.Equal(t, []string{"ios", "android"}, NewHistory(nil, nil).lines())
}

func TestMachinesAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil, nil)
	begin := time.Unix(1_800_000_000, 0)
	cpu := 50.0
	for i := range 2 * maxMachinePoints {
		h.machine("w", store.Telemetry{CPUPercent: &cpu}, begin.Add(time.Duration(i)*time.Second))
	}
	points := h.machineBetween("w", begin, begin.Add(time.Hour))
	require.Len(t, points, maxMachinePoints)
	require.Equal(t, maxMachinePoints, h.points)
	h.points = maxPoints // as if others filled it
	h.machine("new", store.Telemetry{}, begin.Add(time.Second))
	require.Empty(t, h.machines["new"], "no room, and nobody is old")
	h.machine("new", store.Telemetry{}, begin.Add(3*time.Hour))
	require.Len(t, h.machines["new"], 1, "who said nothing for an hour makes room")
}
