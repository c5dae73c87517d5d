package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/actors/pubsub"
	"takt/actors/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener keeps what is published.
type listener struct {
	mu   sync.Mutex // guards told
	told []telemetry.SupervisorEvent
}

func (l *listener) take(e pubsub.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := e.Data.(telemetry.SupervisorEvent); ok {
		l.told = append(l.told, e)
	}
}

// last returns the last event that was published.
func (l *listener) last() telemetry.SupervisorEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told[len(l.told)-1]
}

// fragile is a log that panics once when it is told to.
type fragile struct {
	bytes.Buffer
	panics atomic.Bool
}

func (f *fragile) Write(p []byte) (int, error) {
	if f.panics.CompareAndSwap(true, false) {
		panic("a defect")
	}
	return f.Buffer.Write(p)
}

// metric returns the value of a counter or gauge, and whether it is there.
func metric(t *testing.T, g prometheus.Gatherer, name string, labels ...string) (float64, bool) {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if slices.Equal(values, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

// run starts a system that reports to a telemetry child of its own.
func run(t *testing.T, logs *fragile) (*telemetry.Telemetry, *listener, *otp.System) {
	t.Helper()
	bus, l := pubsub.New(), &listener{}
	bus.Subscribe(l.take, pubsub.SupervisorEvent)
	tel := telemetry.New(zerolog.New(logs), bus)
	sys := otp.New(otp.Options{Logger: zerolog.Nop(), OnEvent: tel.Hook})
	_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Intensity: 10, Children: []otp.ChildSpec{
		tel.Spec(),
		{ID: "idle", Task: func(ctx context.Context) error { <-ctx.Done(); return nil }},
	}})
	require.NoError(t, err)
	synctest.Wait()
	return tel, l, sys
}

func TestEvents(t *testing.T) {
	t.Parallel()

	otptest.Bubble(t, "an event becomes a line, a metric and an event on the bus", func(t otptest.T) {
		var logs fragile
		tel, l, sys := run(t.T, &logs)
		defer sys.Shutdown(context.Background())
		logs.Reset()
		sys.Whereis("takt/idle").Exit(errors.New("a defect"))
		synctest.Wait()

		restarts, _ := metric(t.T, tel.Gatherer(), "takt_supervisor_restarts_total", "takt/idle")
		require.InDelta(t, 1, restarts, 0)
		exits, _ := metric(t.T, tel.Gatherer(), "takt_supervisor_events_total", "exit")
		require.InDelta(t, 1, exits, 0)

		var line map[string]any
		require.NoError(t, json.NewDecoder(&logs).Decode(&line))
		require.Equal(t, "exit", line["event"])
		require.Equal(t, "error", line["level"])
		require.Equal(t, "a defect", line["reason"])

		require.Equal(t, "started", l.last().Event)
		require.Equal(t, "takt/idle", l.last().Path)
	})

	otptest.Bubble(t, "its own crash loses one event at most", func(t otptest.T) {
		var logs fragile
		tel, _, sys := run(t.T, &logs)
		defer sys.Shutdown(context.Background())
		logs.panics.Store(true)
		sys.Whereis("takt/idle").Exit(errors.New("a defect"))
		synctest.Wait()
		restarts, _ := metric(t.T, tel.Gatherer(), "takt_supervisor_restarts_total", "takt/telemetry")
		require.InDelta(t, 1, restarts, 0)
		require.Contains(t, logs.String(), "telemetry.(*Telemetry).run", "the stack of its own crash is told")
	})

	otptest.Bubble(t, "what is queued at the stop is told", func(t otptest.T) {
		_, l, sys := run(t.T, &fragile{})
		sys.Shutdown(context.Background())
		require.Equal(t, "takt/idle", l.last().Path)
		require.Equal(t, "exit", l.last().Event)
	})

	otptest.Bubble(t, "the newest are kept", func(t otptest.T) {
		tel, l, sys := run(t.T, &fragile{})
		for i := range 501 {
			tel.Hook(otp.Event{Kind: otp.EventStarted, Path: "x", Restarts: i})
			synctest.Wait()
		}
		sys.Shutdown(context.Background())
		recent := tel.Recent()
		require.Len(t, recent, 500)
		require.Equal(t, l.last(), recent[499])
	})

	t.Run("the hook never blocks and counts what it drops", func(t *testing.T) {
		t.Parallel()
		tel := telemetry.New(zerolog.Nop(), pubsub.New())
		for range 1100 {
			tel.Hook(otp.Event{Kind: otp.EventStarted, At: time.Now()})
		}
		dropped, _ := metric(t, tel.Gatherer(), "takt_supervisor_events_dropped_total")
		require.InDelta(t, 1100-1024, dropped, 0)
	})
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	tel := telemetry.New(zerolog.Nop(), pubsub.New())
	pending := prometheus.GaugeOpts{Name: "takt_queue_pending", Help: "Pending builds."}
	tel.Register(prometheus.NewGaugeFunc(pending, func() float64 { return 7 }))

	v, ok := metric(t, tel.Gatherer(), "takt_queue_pending")
	require.True(t, ok)
	require.InDelta(t, 7, v, 0)
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		v, ok = metric(t, tel.Gatherer(), name)
		require.True(t, ok, name)
		require.Positive(t, v)
	}
	require.Panics(t, func() { tel.Register(prometheus.NewGauge(pending)) }, "twice")
}
