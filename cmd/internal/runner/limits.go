package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// Resources bound what one build may use. Zero is no limit.
type Resources struct {
	// CPUs is in cores, such as 1.5.
	CPUs float64
	// Memory is in bytes, without swap. With it come at most maxProcesses processes, which
	// containers always have.
	Memory int64
	// Disk is in bytes: the build's directory, with deleted files that are still open (Linux),
	// and what its container writes elsewhere, but for volumes.
	Disk int64
}

// maxProcesses, threads included, ends fork bombs and no build.
const maxProcesses = 4096

func (r Resources) memoryLimit() limitError {
	return limitError("memory limit of " + humanize.IBytes(uint64(r.Memory)))
}

func (r Resources) diskLimit() limitError {
	return limitError("disk limit of " + humanize.IBytes(uint64(r.Disk)))
}

// controllers are those of the cgroups that hold CPU and memory.
func (r Resources) controllers() (names []string) {
	if r.CPUs > 0 {
		names = append(names, "cpu")
	}
	if r.Memory > 0 {
		names = append(names, "memory", "pids")
	}
	return names
}

// limitError is the limit that ended a build.
type limitError string

func (e limitError) Error() string { return "build exceeded its " + string(e) }

// timeoutError is the limit of time.
type timeoutError struct{ limitError }

func (e timeoutError) Unwrap() error { return e.limitError }

// endOf returns how a build's command ended, as far as its error says so.
func endOf(err error) (end client.Ended) {
	if exit, ok := errors.AsType[exitError](err); ok && faultOf(err) == store.FaultBuild {
		end.ExitCode, end.Signal = exit.Code, int(exit.Signal)
	}
	_, end.TimedOut = errors.AsType[timeoutError](err)
	return end
}

// limit bounds a command's time and disk. The context that it returns ends with a
// limitError; the function releases it.
func (w *Worker) limit(ctx context.Context, timeout time.Duration, root string, plan Plan) (context.Context, func()) {
	limited, stop := context.WithTimeoutCause(ctx, timeout, timeoutError{limitError(fmt.Sprintf("time limit of %s", timeout))})
	if w.cfg.Resources.Disk == 0 {
		return limited, stop
	}
	limited, end := context.WithCancelCause(limited)
	var watching sync.WaitGroup
	watching.Go(func() { end(w.watchDisk(limited, root, plan.written)) })
	return limited, func() {
		stop()
		watching.Wait()
	}
}

// diskLook is the minimum time between two checks of a build's disk usage.
const diskLook = time.Second

// watchDisk checks until ctx ends (nil), or root and what was written elsewhere exceed the
// limit. Checks take at most a twentieth of the time, however many files there are.
func (w *Worker) watchDisk(ctx context.Context, root string, written func(context.Context) int64) error {
	if real, err := filepath.EvalSymlinks(root); err == nil { // as /proc names it
		root = real
	}
	for ctx.Err() == nil {
		began := time.Now()
		used := usage(ctx, root) + unlinked(root)
		if written != nil {
			used += written(ctx)
		}
		if used > w.cfg.Resources.Disk {
			return w.cfg.Resources.diskLimit()
		}
		_ = backoff.Pause(ctx, max(diskLook, 20*time.Since(began)))
	}
	return nil
}

// usage is the disk usage of a tree in bytes, as du counts it: without holes, and files
// with several names once.
func usage(ctx context.Context, root string) (bytes int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if stat := statOf(d); err == nil && stat != nil && !seen[stat.Ino] {
			bytes += stat.Blocks * 512
			if stat.Nlink > 1 {
				seen[stat.Ino] = true
			}
		}
		return nil
	})
	return bytes
}

// statOf returns nil for a file that no longer exists.
func statOf(d fs.DirEntry) *syscall.Stat_t {
	if d == nil {
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return nil
	}
	stat, _ := info.Sys().(*syscall.Stat_t)
	return stat
}
