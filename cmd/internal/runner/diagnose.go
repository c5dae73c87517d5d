package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"

	"takt/http/api"
	"takt/store"
)

// diagnose makes the reports that [Worker.Report] requests until ctx ends. A report that
// builds can't be run is followed by another one when they can.
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

// fit returns why builds can't be run, nil if they can.
func (w *Worker) fit(ctx context.Context) error {
	w.mu.Lock()
	unfit, image, stuck := w.health.unfit, w.image, len(w.stuck)
	w.mu.Unlock()
	if unfit != nil {
		return unfit
	}
	if stuck == w.cfg.Concurrency {
		return errors.New("no slot takes builds")
	}
	return w.cfg.Command.Check(ctx, image)
}

// report sends a diagnostic report, and returns whether builds can be run.
func (w *Worker) report(ctx context.Context) (fit bool, err error) {
	w.mu.Lock()
	r := api.PostDiagnostic{WorkerID: w.id, Status: "healthy", RunAt: *api.NewMillis(time.Now())}
	w.mu.Unlock()
	for _, check := range []struct {
		name, found string
		run         func(context.Context) (said string, err error)
	}{
		{"runner", "fail", func(ctx context.Context) (string, error) { return "builds can be run", w.fit(ctx) }},
		{"key", "warn", w.checkKey}, // an early one, because lists show the first that warns
		{"slots", "warn", w.checkSlots},
		{"limits", "warn", w.checkLimits},
		{"cpu", "warn", checkCPU},
		{"memory", "warn", w.checkMemory},
		{"disk", "warn", w.checkDisk},
	} {
		began := time.Now()
		c := api.DiagnosticCheck{Name: check.name, Status: "pass"}
		said, err := check.run(ctx)
		if err != nil {
			c.Status, said = check.found, err.Error()
		}
		c.Message, c.DurationMS = store.Clip(said, maxErrorMessage), float64(time.Since(began).Milliseconds())
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

// MendKey says how to keep the worker's key from builds.
const MendKey = "run takt worker enroll as root and remove the file, or use --user or --image"

func (w *Worker) checkKey(context.Context) (string, error) {
	if w.cfg.KeyExposed != "" {
		return "", fmt.Errorf("%s: %s (%s)", api.KeyExposed, MendKey, w.cfg.KeyExposed)
	}
	return "builds find no key of this worker in files", nil
}

func (w *Worker) checkLimits(context.Context) (string, error) {
	if w.unlimited != nil {
		return "", fmt.Errorf("some limits of builds can't be enforced here: %w", w.unlimited)
	}
	return "limits of builds can be enforced", nil
}

// maxLoad is a five-minute load average of each core that builds seldom exceed by
// themselves.
const maxLoad = 4

func checkCPU(ctx context.Context) (string, error) {
	average, err := load.AvgWithContext(ctx)
	if err != nil {
		return "", err
	}
	cores, err := cpu.CountsWithContext(ctx, true)
	if err != nil {
		return "", err
	}
	return judgeCPU(average.Load5, cores)
}

func judgeCPU(load float64, cores int) (string, error) {
	said := fmt.Sprintf("load average %.1f on %d cores", load, cores)
	if load > maxLoad*float64(cores) {
		return "", errors.New(said + ": builds will be slow")
	}
	return said, nil
}

func (w *Worker) checkMemory(ctx context.Context) (string, error) {
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	building := len(w.active)
	w.mu.Unlock()
	return w.cfg.judgeMemory(building, memory.Total, memory.Available)
}

// lowMemory is what should be available where builds have no limit, in bytes.
const lowMemory = 512 << 20

// judgeMemory compares what builds may use with the memory of the machine, and what
// those may use that can still begin with what is available now.
func (c Config) judgeMemory(building int, total, available uint64) (string, error) {
	limit := uint64(c.Resources.Memory)
	if need := limit * uint64(c.Concurrency); need > total {
		return "", fmt.Errorf("builds may use %s of memory, the machine has %s", humanize.IBytes(need), humanize.IBytes(total))
	}
	if need := cmp.Or(limit*uint64(max(c.Concurrency-building, 0)), lowMemory); need > available {
		return "", fmt.Errorf("further builds may need %s of memory, %s are available", humanize.IBytes(need), humanize.IBytes(available))
	}
	return fmt.Sprintf("%s of %s available", humanize.IBytes(available), humanize.IBytes(total)), nil
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
