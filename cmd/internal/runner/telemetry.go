package runner

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"

	"takt/http/api"
)

// The phases of a build, as telemetry names them.
const (
	phaseDownload = "download"
	phaseBuild    = "build"
	phaseUpload   = "upload"
)

// telemetry reports the machine and the phase of each build until ctx ends. A report that does
// not arrive is not sent again, because the next one replaces it.
func (w *Worker) telemetry(ctx context.Context) {
	ticker := time.NewTicker(w.cfg.Telemetry)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.tell(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// tell sends one report for each build, all within the time until the next.
func (w *Worker) tell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Telemetry)
	defer cancel()
	w.mu.Lock()
	builds := slices.Collect(maps.Values(w.active))
	w.mu.Unlock()
	machine := w.machine(ctx)
	for _, a := range builds {
		data, err := json.Marshal(api.TelemetryHeartbeat{Stage: a.phase.Load().(string), Metrics: &machine})
		if err == nil {
			err = w.api.Telemetry(ctx, a.held, api.Telemetry{Type: "heartbeat", Timestamp: api.FormatTime(time.Now()), Data: data})
		}
		if err != nil {
			w.log.Debug().Err(err).Str("build", a.job.ID).Msg("telemetry not sent")
		}
	}
}

// machine measures this machine: the load since the last call, memory, and the disk with
// the builds. Unavailable figures are nil.
func (w *Worker) machine(ctx context.Context) (m api.Metrics) {
	// The controller takes no more than 1000 %.
	if load, err := cpu.PercentWithContext(ctx, 0, false); err == nil && len(load) > 0 {
		if cores, err := cpu.CountsWithContext(ctx, true); err == nil {
			m.CPUPercent = tenths(min(load[0]*float64(cores), 1000))
		}
	}
	if memory, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		m.MemoryMB = tenths(float64(memory.Used) / 1e6)
	}
	if usage, err := disk.UsageWithContext(ctx, w.state.dir); err == nil {
		m.DiskPercent = tenths(usage.UsedPercent)
	}
	return m
}

// tenths rounds, because people read these figures in the build's log.
func tenths(f float64) *float64 {
	f = math.Round(f*10) / 10
	return &f
}
