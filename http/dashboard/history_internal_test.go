package dashboard

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestHistoryIsASecondAndAMinuteFine(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
	begin := time.Unix(1_800_000_000, 0) // a whole minute
	for i := range 180 {
		var v [figCount]float32
		v[figRunning], v[figArrived] = float32(i/60), 2
		v[figBalance] = float32(math.NaN())
		h.mu.Lock()
		h.add(begin.Add(time.Duration(i)*time.Second), v)
		h.mu.Unlock()
	}
	now := begin.Add(3*time.Minute - time.Second)
	require.Equal(t, []float32{0, 1, 2}, h.past(figRunning, 3, now))
	require.Equal(t, []float32{120, 120, 120}, h.past(figArrived, 3, now), "what happened is added up")
	require.True(t, math.IsNaN(float64(h.past(figBalance, 1, now)[0])))
	require.True(t, math.IsNaN(float64(h.past(figRunning, 60, now)[0])), "before it was looked")
	recent := h.recent(figArrived, now.Add(time.Second))
	require.Len(t, recent, 60)
	require.InDelta(t, 20, recent[59], 0)
}

// pulses is a Store in which one build arrives and starts between any two pulses.
type pulses struct {
	Store
	n           int
	away, quiet bool
}

func (p *pulses) Pulse(context.Context, time.Time) (store.Pulse, error) {
	if p.n++; p.away {
		return store.Pulse{}, store.NewError(store.Unavailable, "away")
	}
	if p.quiet {
		return store.Pulse{At: time.Unix(int64(p.n), 0)}, nil
	}
	return store.Pulse{At: time.Unix(int64(p.n), 0), PendingIOS: p.n, Submitted: int64(p.n), Started: 1, Waited: 3 * time.Second}, nil
}

func TestPlotsReadTheDatabaseSeldomAndLoseNothing(t *testing.T) {
	t.Parallel()
	db := &pulses{}
	h := NewHistory(nil)
	waiting := 0
	h.Observe(db, func() int { return waiting }, nil)
	minute := time.Unix(1_800_000_000, 0)
	for i := range 60 {
		h.take(t.Context(), minute.Add(time.Duration(i)*time.Second))
	}
	now := minute.Add(59 * time.Second)
	require.Equal(t, 6, db.n)
	require.Equal(t, []float32{5}, h.past(figArrived, 1, now), "the first pulse has no predecessor")
	require.Equal(t, []float32{3}, h.past(figWaited, 1, now))
	require.Equal(t, []float32{6}, h.past(figPendingIOS, 1, now), "the newest one")

	h.read = time.Time{} // a page reads the figures that it shows
	pending, err := h.pending(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7, pending[store.IOS])
	db.away, h.read = true, time.Time{}
	_, err = h.pending(t.Context())
	require.Error(t, err)
	h.take(t.Context(), minute.Add(60*time.Second))
	require.True(t, math.IsNaN(float64(h.past(figRunning, 1, minute.Add(60*time.Second))[0])), "unknown while it is away")
	db.away = false
	h.take(t.Context(), minute.Add(61*time.Second))
	require.Equal(t, []float32{4}, h.past(figArrived, 1, minute.Add(61*time.Second)), "also what the page found, and what arrived during the outage")

	db.quiet, h.read = true, time.Time{}
	h.take(t.Context(), minute.Add(70*time.Second))
	read := db.n
	h.take(t.Context(), minute.Add(129*time.Second))
	require.Equal(t, read, db.n, "nothing waits and nothing runs")
	require.Equal(t, []float32{0}, h.past(figPendingIOS, 1, minute.Add(129*time.Second)))
	waiting = 1
	h.take(t.Context(), minute.Add(130*time.Second))
	require.Equal(t, read+1, db.n, "memory knows of a build")
}

func TestMachinesAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	h := NewHistory(nil)
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
