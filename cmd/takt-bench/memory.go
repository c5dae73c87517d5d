package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// growth watches how far resident memory grows; grown ends that and returns by how
// many bytes it did.
func (c *controller) growth() (grown func() (int, error), err error) {
	before, _, err := c.Resident()
	if err != nil {
		return nil, err
	}
	// VmHWM starts again at what is resident now.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", c.PID()), []byte("5"), 0); err == nil {
		return func() (int, error) {
			_, most, err := c.Resident()
			return most - before, err
		}, nil
	}
	stop := c.samplePeak() // it is not allowed here
	return func() (int, error) { return stop() - before, nil }, nil
}

// samplePeak is the largest resident size until it is called.
func (c *controller) samplePeak() func() int {
	done, result := make(chan struct{}), make(chan int, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		peak := 0
		for {
			if now, _, err := c.Resident(); err == nil {
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
	return func() int {
		close(done)
		return <-result
	}
}

// starts takes E2: the time from launching `takt serve` to its first healthy
// answer.
func (r *run) starts(ctx context.Context) error {
	var fresh, existing, killed, external []time.Duration
	// timed starts a controller and ends it.
	timed := func(times *[]time.Duration, kill bool, name string, settings ...string) error {
		begin := time.Now()
		c, err := r.start(ctx, name, settings...)
		if err != nil {
			return err
		}
		*times = append(*times, time.Since(begin))
		if kill {
			c.Kill()
			return nil
		}
		return c.Stop(ctx, stopLimit)
	}
	for i := range r.rounds {
		r.say("E2: starting and killing controllers, round %d of %d", i+1, r.rounds)
		name := fmt.Sprintf("start-%d", i)
		if err := timed(&fresh, false, name); err != nil {
			return err
		}
		if err := timed(&existing, true, name); err != nil {
			return err
		}
		if err := timed(&killed, false, name); err != nil {
			return err
		}
	}
	host, err := r.start(ctx, "start-host")
	if err != nil {
		return err
	}
	for i := range r.rounds {
		if err := timed(&external, false, fmt.Sprintf("start-external-%d", i), host.Shared()...); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		what  string
		times []time.Duration
		limit time.Duration
	}{
		{"start, external database", external, 700 * time.Millisecond},
		{"start, embedded, existing", existing, 2500 * time.Millisecond},
		{"start, embedded, new cluster", fresh, 8 * time.Second},
		{"back in service after kill -9", killed, 4 * time.Second},
	} {
		took := median(f.times)
		row := figure{name: "E2", what: f.what, measured: took.Round(time.Millisecond).String()}
		r.add(row.below(took.Seconds(), f.limit.Seconds(), f.limit.String()))
	}
	return nil
}
