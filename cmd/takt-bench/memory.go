package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"takt/cmd/internal/process"
)

const (
	mib      = 1 << 20
	manyPark = 10_000
)

// forgetPeak makes VmHWM start again at what is resident now.
func forgetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// memory takes E1.
func (r *run) memory(ctx context.Context) (err error) {
	c, err := r.Controller(ctx, "memory",
		// They come all at once, and do not come again when they are refused.
		"TAKT_HEIJUNKA_HARD_LIMIT=20000", "TAKT_HEIJUNKA_POOLS=fleet=10/5/30/256/20000")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
	idle, _, err := c.Resident()
	if err != nil {
		return err
	}
	r.memoryFigure("resident memory of an idle takt, without its database", idle, 60*mib)
	r.say("E1: parking %d polls", manyPark)
	stop, err := park(ctx, c, manyPark, make(chan arrival, 1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	full, _, err := c.Resident()
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

// watchPeak is the largest resident size of p until stop is called.
func watchPeak(p *process.Process) (stop func() (int, error)) {
	if forgetPeak(p.PID()) != nil {
		return samplePeak(p) // not allowed here: sample instead
	}
	return func() (int, error) {
		_, most, err := p.Resident()
		return most, err
	}
}

func samplePeak(p *process.Process) func() (int, error) {
	done, result := make(chan struct{}), make(chan int, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		peak := 0
		for {
			if now, _, err := p.Resident(); err == nil {
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
