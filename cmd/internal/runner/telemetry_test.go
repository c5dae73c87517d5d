package runner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestTelemetryTellsTheMachineAndThePhase(t *testing.T) {
	t.Parallel()
	b, id := building(t, slow, func(c *Config) { c.Telemetry = 10 * time.Millisecond })
	var last store.Telemetry
	b.Await(t, "the build's phase is told", func() bool {
		for _, sent := range b.Build(id).Telemetry {
			last = must(store.ParseTelemetry([]byte(`"`+sent.Type+`"`), []byte(`"`+sent.Timestamp+`"`), sent.Data))(t)
		}
		return last.Stage == phaseBuild
	})
	require.NotNil(t, last.CPUPercent)
	require.Positive(t, *last.MemoryMB)
	require.Positive(t, *last.DiskPercent)
}
