package main

import (
	"context"
	"fmt"
	"time"
)

// starts takes E2: the time from launching `takt serve` to its first healthy
// answer.
func (r *run) starts(ctx context.Context) (err error) {
	took := func(name string, settings ...string) (d time.Duration, stop func() error, kill func(), err error) {
		begin := time.Now()
		c, err := r.Controller(ctx, name, settings...)
		if err != nil {
			return 0, nil, nil, err
		}
		return time.Since(begin), func() error { return c.Stop(ctx, stopLimit) }, c.Kill, nil
	}
	record := func(what string, times []time.Duration, limit time.Duration) {
		d := median(times)
		r.add(figure{
			name: "E2", what: what, measured: d.Round(time.Millisecond).String(),
			ratio: fmt.Sprintf("%.2f of limit", d.Seconds()/limit.Seconds()), target: "< " + limit.String(), met: d < limit,
		})
	}
	var fresh, existing, killed, external []time.Duration
	for i := range r.rounds {
		r.say("E2: starting and killing controllers, round %d of %d", i+1, r.rounds)
		name := fmt.Sprintf("start-%d", i)
		d, stop, _, err := took(name)
		if err != nil {
			return err
		}
		fresh = append(fresh, d)
		if err := stop(); err != nil {
			return err
		}
		d, _, kill, err := took(name)
		if err != nil {
			return err
		}
		existing = append(existing, d)
		kill()
		d, stop, _, err = took(name)
		if err != nil {
			return err
		}
		killed = append(killed, d)
		if err := stop(); err != nil {
			return err
		}
	}
	host, err := r.Controller(ctx, "start-host")
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	for i := range r.rounds {
		d, stop, _, err := took(fmt.Sprintf("start-external-%d", i), host.Shared()...)
		if err != nil {
			return err
		}
		external = append(external, d)
		if err := stop(); err != nil {
			return err
		}
	}
	record("start, external database", external, 700*time.Millisecond)
	record("start, embedded, existing", existing, 2500*time.Millisecond)
	record("start, embedded, new cluster", fresh, 8*time.Second)
	record("back in service after kill -9", killed, 4*time.Second)
	return nil
}
