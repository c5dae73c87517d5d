package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// What a worker told long ago, or for a build that it has no more, is not its load of now.
func TestOldFiguresAreNotTheLoad(t *testing.T) {
	t.Parallel()
	cpu := 161.0
	at := func(age time.Duration, builds ...string) string {
		w := api.Worker{Builds: builds, Telemetry: &api.WorkerTelemetry{At: time.Now().Add(-age).Format(time.RFC3339)}}
		w.Telemetry.CPUPercent = &cpu
		return workerLoad(w)
	}
	require.Equal(t, "161%", at(time.Minute, "b"))
	require.Equal(t, "-", at(3*time.Minute, "b"))
	require.Equal(t, "-", at(time.Minute))
	require.Equal(t, "-", workerLoad(api.Worker{Builds: []string{"b"}}))
}
