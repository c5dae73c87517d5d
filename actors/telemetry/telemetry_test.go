package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bus keeps what is published.
type bus struct {
	mu     sync.Mutex // guards told
	told   []telemetry.SupervisorEvent
	panics bool
}

func (b *bus) Publish(topic string, data any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.panics {
		b.panics = false
		panic("a defect")
	}
	if e, ok := data.(telemetry.SupervisorEvent); ok && topic == telemetry.TopicSupervisorEvent {
		b.told = append(b.told, e)
	}
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
func run(t *testing.T, logs *bytes.Buffer, b *bus) (*telemetry.Telemetry, *otp.System) {
	t.Helper()
	tel := telemetry.New(zerolog.New(zerolog.SyncWriter(logs)))
	sys := otp.New(otp.Options{Logger: zerolog.Nop(), OnEvent: tel.Hook()})
	_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Intensity: 10, Children: []otp.ChildSpec{
		tel.Spec(b),
		{ID: "idle", Task: func() otp.Task {
			return otp.Task{Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}
		}},
	}})
	require.NoError(t, err)
	synctest.Wait()
	return tel, sys
}

func TestEvents(t *testing.T) {
	t.Parallel()

	t.Run("an event becomes a line, a metric and an event on the bus", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var logs bytes.Buffer
			b := &bus{}
			tel, sys := run(t, &logs, b)
			defer sys.Shutdown(context.Background())
			logs.Reset()
			sys.Whereis("takt/idle").Exit(errors.New("a defect"))
			synctest.Wait()

			restarts, _ := metric(t, tel.Gatherer(), "takt_supervisor_restarts_total", "takt/idle")
			require.InDelta(t, 1, restarts, 0)
			exits, _ := metric(t, tel.Gatherer(), "takt_supervisor_events_total", "exit")
			require.InDelta(t, 1, exits, 0)

			var line map[string]any
			require.NoError(t, json.NewDecoder(&logs).Decode(&line))
			require.Equal(t, "exit", line["event"])
			require.Equal(t, "error", line["level"])
			require.Equal(t, "a defect", line["reason"])

			b.mu.Lock()
			defer b.mu.Unlock()
			last := b.told[len(b.told)-1]
			require.Equal(t, "started", last.Event)
			require.Equal(t, "takt/idle", last.Path)
		})
	})

	t.Run("its own crash loses one event at most", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var logs bytes.Buffer
			b := &bus{}
			tel, sys := run(t, &logs, b)
			defer sys.Shutdown(context.Background())
			b.mu.Lock()
			b.panics = true
			b.mu.Unlock()
			sys.Whereis("takt/idle").Exit(errors.New("a defect"))
			synctest.Wait()
			restarts, _ := metric(t, tel.Gatherer(), "takt_supervisor_restarts_total", "takt/telemetry")
			require.InDelta(t, 1, restarts, 0)
			require.Contains(t, logs.String(), "telemetry.(*Telemetry).run", "the stack of its own crash is told")
		})
	})

	t.Run("what is queued at the stop is told", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var logs bytes.Buffer
			b := &bus{}
			_, sys := run(t, &logs, b)
			sys.Shutdown(context.Background())
			b.mu.Lock()
			defer b.mu.Unlock()
			require.Equal(t, "takt/idle", b.told[len(b.told)-1].Path)
			require.Equal(t, "exit", b.told[len(b.told)-1].Event)
		})
	})

	t.Run("the hook never blocks and counts what it drops", func(t *testing.T) {
		t.Parallel()
		tel := telemetry.New(zerolog.Nop())
		hook := tel.Hook()
		for range 1100 {
			hook(otp.Event{Kind: otp.EventStarted, At: time.Now()})
		}
		dropped, _ := metric(t, tel.Gatherer(), "takt_supervisor_events_dropped_total")
		require.InDelta(t, 1100-1024, dropped, 0)
	})
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	tel := telemetry.New(zerolog.Nop())
	tel.Gauge("takt_queue_pending", "Pending builds.", func() float64 { return 7 })
	tel.Counter("takt_builds_assigned_total", "Assigned builds.", func() float64 { return 3 })

	v, ok := metric(t, tel.Gatherer(), "takt_queue_pending")
	require.True(t, ok)
	require.InDelta(t, 7, v, 0)
	v, _ = metric(t, tel.Gatherer(), "takt_builds_assigned_total")
	require.InDelta(t, 3, v, 0)
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		v, ok = metric(t, tel.Gatherer(), name)
		require.True(t, ok, name)
		require.Positive(t, v)
	}
	require.Panics(t, func() { tel.Gauge("takt_queue_pending", "Twice.", func() float64 { return 0 }) })
}
