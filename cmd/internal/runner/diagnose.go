package runner

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"

	"takt/http/api"
)

// diagnose makes the reports that [Worker.Report] asks for until ctx ends. One that says
// that builds can't be run is followed by another when they can.
func (w *Worker) diagnose(ctx context.Context) {
	var again <-chan time.Time
	for {
		fit := true
		select {
		case <-w.asked:
			err := w.forever("report").Do(ctx, func(ctx context.Context) (err error) {
				fit, err = w.report(ctx)
				return err
			})
			if err != nil && ctx.Err() == nil {
				w.log.Warn().Err(err).Msg("diagnostic report not sent")
			}
		case <-again:
			if fit = w.fit(ctx) == nil; fit {
				w.Report()
			}
		case <-ctx.Done():
			return
		}
		again = nil
		if !fit {
			again = time.After(w.cfg.Telemetry)
		}
	}
}

// fit returns why builds can't be run, as far as it is known or can be seen now.
func (w *Worker) fit(ctx context.Context) error {
	w.mu.Lock()
	unfit, image := w.health.unfit, w.image
	w.mu.Unlock()
	if unfit != nil {
		return unfit
	}
	return w.cfg.Command.Check(ctx, image)
}

// report sends a diagnostic report, and says whether it is that builds can be run.
func (w *Worker) report(ctx context.Context) (fit bool, err error) {
	w.mu.Lock()
	r := api.PostDiagnostic{WorkerID: w.id, Status: "healthy", RunAt: *api.NewMillis(time.Now())}
	w.mu.Unlock()
	for _, check := range []struct {
		name, found string
		run         func(context.Context) (said string, err error)
	}{
		{"runner", "fail", func(ctx context.Context) (string, error) { return "builds can be run", w.fit(ctx) }},
		{"limits", "warn", w.checkLimits},
		{"memory", "warn", w.checkMemory},
		{"disk", "warn", w.checkDisk},
	} {
		began := time.Now()
		c := api.DiagnosticCheck{Name: check.name, Status: "pass"}
		said, err := check.run(ctx)
		if err != nil {
			c.Status, said = check.found, err.Error()
		}
		c.Message, c.DurationMS = clip(said, maxErrorMessage), float64(time.Since(began).Milliseconds())
		r.Checks = append(r.Checks, c)
		switch {
		case c.Status == "fail":
			r.Status = "critical"
		case c.Status == "warn" && r.Status == "healthy":
			r.Status = "warning"
		}
	}
	r.DurationMS = time.Since(r.RunAt.Time()).Milliseconds()
	_, err = w.api.Report(ctx, r)
	return r.Status != "critical", err
}

func (w *Worker) checkLimits(context.Context) (string, error) {
	if w.unlimited != nil {
		return "", fmt.Errorf("CPU and memory of builds are not limited: %w", w.unlimited)
	}
	return "limits of builds can be held", nil
}

func (w *Worker) checkMemory(ctx context.Context) (string, error) {
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return "", err
	}
	total := humanize.IBytes(memory.Total)
	if need := uint64(w.cfg.Resources.Memory) * uint64(w.cfg.Concurrency); need > memory.Total {
		return "", fmt.Errorf("builds may use %s of memory, the machine has %s", humanize.IBytes(need), total)
	}
	return fmt.Sprintf("%s of %s used", humanize.IBytes(memory.Used), total), nil
}

// lowDisk is what should be free where builds have no limit, in bytes.
const lowDisk = 1 << 30

func (w *Worker) checkDisk(ctx context.Context) (string, error) {
	usage, err := disk.UsageWithContext(ctx, w.state.dir)
	if err != nil {
		return "", err
	}
	free := humanize.IBytes(usage.Free)
	if need := cmp.Or(uint64(w.cfg.Resources.Disk)*uint64(w.cfg.Concurrency), lowDisk); need > usage.Free {
		return "", fmt.Errorf("builds may need %s of disk, %s are free", humanize.IBytes(need), free)
	}
	return free + " free", nil
}
