package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// resident is how much memory c has resident, in bytes.
func (c *controller) resident() int {
	now, _, err := c.Resident()
	must.Do(err)
	return now
}

// growth watches how far resident memory grows; grown ends that and returns by how
// many bytes it did.
func (c *controller) growth(ctx context.Context) (grown func() int) {
	before := c.resident()
	peak := before
	watching, stop := context.WithCancelCause(ctx)
	watched := must.Beside(func() {
		for watching.Err() == nil {
			peak = max(peak, c.resident())
			process.Pause(watching, 10*time.Millisecond)
		}
	})
	return func() int {
		stop(errors.New("measured"))
		must.Do(watched())
		return peak - before
	}
}

// starts takes E2: the time from launching `takt serve` to its first healthy
// answer.
func (r *run) starts(ctx context.Context) {
	var fresh, existing, killed, external []time.Duration
	// timed starts a controller and ends it.
	timed := func(times *[]time.Duration, kill bool, name string, settings ...string) {
		begin := time.Now()
		c := r.start(ctx, name, settings...)
		*times = append(*times, time.Since(begin))
		if kill {
			c.Kill()
		} else {
			must.Do(c.Stop(ctx, stopLimit))
		}
	}
	for i := range r.rounds {
		r.say("E2: starting and killing controllers, round %d of %d", i+1, r.rounds)
		name := fmt.Sprintf("start-%d", i)
		timed(&fresh, false, name)
		timed(&existing, true, name)
		timed(&killed, false, name)
	}
	host := r.start(ctx, "start-host")
	for i := range r.rounds {
		timed(&external, false, fmt.Sprintf("start-external-%d", i), host.Shared()...)
	}
	r.add(duration("E2", "start, external database", median(external), 700*time.Millisecond))
	r.add(duration("E2", "start, embedded, existing", median(existing), 2500*time.Millisecond))
	r.add(duration("E2", "start, embedded, new cluster", median(fresh), 8*time.Second))
	r.add(duration("E2", "back in service after kill -9", median(killed), 4*time.Second))
}
