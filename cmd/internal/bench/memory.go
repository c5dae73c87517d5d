package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	mib      = 1 << 20
	manyPark = 10_000
)

// resident reads a figure of /proc/PID/status, in bytes: VmRSS is what is
// resident now, VmHWM the most that was.
func resident(pid int, field string) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading a process's memory: %w", err)
	}
	for line := range bytes.Lines(raw) {
		if rest, ok := strings.CutPrefix(string(line), field+":"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of process %d", field, pid)
}

// forgetPeak makes VmHWM start again at what is resident now.
func forgetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// memory takes E1.
func (r *run) memory(ctx context.Context) (err error) {
	c, err := r.controller(ctx, "memory",
		// They come all at once, and do not come again when they are refused.
		"TAKT_HEIJUNKA_HARD_LIMIT=20000", "TAKT_HEIJUNKA_POOLS=fleet=10/5/30/256/20000", "TAKT_HEIJUNKA_WAIT=1m")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
	idle, err := resident(c.PID(), "VmRSS")
	if err != nil {
		return err
	}
	r.memoryFigure("resident memory of an idle takt, without its database", idle, 60*mib)
	r.say("E1: parking %d polls", manyPark)
	inner, cancel := context.WithCancelCause(ctx)
	wait, err := park(inner, c, manyPark, make(chan arrival, 1))
	if err != nil {
		cancel(err)
		return err
	}
	defer func() {
		cancel(errors.New("measured"))
		err = errors.Join(err, wait())
	}()
	if err := awaitParked(ctx, c, manyPark); err != nil {
		return err
	}
	full, err := resident(c.PID(), "VmRSS")
	if err != nil {
		return err
	}
	r.memoryFigure(fmt.Sprintf("the same with %d parked polls", manyPark), full, 400*mib)
	return nil
}

func (r *run) memoryFigure(what string, got, limit int) {
	r.add(figure{
		name: "E1", what: what, measured: fmt.Sprintf("%d MiB", got/mib),
		ratio: fmt.Sprintf("%.2f of limit", float64(got)/float64(limit)), target: fmt.Sprintf("< %d MiB", limit/mib), met: got < limit,
	})
}

// watchPeak is the largest resident size of pid until stop is called.
func watchPeak(pid int) (stop func() (int, error)) {
	if forgetPeak(pid) != nil {
		return samplePeak(pid) // not allowed here: sample instead
	}
	return func() (int, error) { return resident(pid, "VmHWM") }
}

func samplePeak(pid int) func() (int, error) {
	done, result := make(chan struct{}), make(chan int, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		peak := 0
		for {
			if now, err := resident(pid, "VmRSS"); err == nil {
				peak = max(peak, now)
			}
			select {
			case <-done:
				result <- peak
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int, error) {
		close(done)
		return <-result, nil
	}
}
