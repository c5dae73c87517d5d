package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"takt/cmd/internal/await"
	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

const (
	parked   = 1000
	manyPark = 10_000
	wakes    = 300
	cutWakes = 5
)

// arrival is a job in the hands of a worker.
type arrival struct {
	id string
	at time.Time
}

// parking are polls that are to be parked.
type parking struct {
	*controller
	registered atomic.Int64 // workers, each once
	again      atomic.Int64 // those that registered again: their tokens had expired
	failed     atomic.Pointer[error]
}

// fail notes an error of a poll, unless that was the end.
func (p *parking) fail(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		p.failed.CompareAndSwap(nil, &err)
	}
}

// failure is the first error of a poll.
func (p *parking) failure() error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// await waits until nearly n polls are parked: some are between two polls.
func (p *parking) await(ctx context.Context, n int) error {
	most := 0.0
	return p.Await(ctx, fmt.Sprintf("%d polls to be parked", n), func() string {
		return fmt.Sprintf("%.0f were parked at most, %d workers registered", most, p.registered.Load())
	}, func(ctx context.Context) (bool, error) {
		if err := p.failure(); err != nil {
			return false, err
		}
		got, err := p.Metric(ctx, "takt_queue_parked_polls")
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		most = max(most, got)
		return got >= .99*float64(n), err
	})
}

// poll sends one poll of a worker, which waits for a build.
type poll = func(ctx context.Context, worker *poller) (status int, body []byte, err error)

// dial makes a connection for polls.
type dial = func(ctx context.Context, c *controller) (poll, error)

// park keeps n polls parked until the measurement ends, a new one for each that was answered,
// and reports the jobs that they bring. So many workers at a time share a connection that dial
// makes. It returns when c knows nearly all of them.
func (r *run) park(ctx context.Context, c *controller, n, each int, dial dial, jobs chan<- arrival) *parking {
	p := &parking{controller: c}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	r.atEnd(func() error {
		cancel(errors.New("measured"))
		running.Wait()
		if n := p.again.Load(); n > 0 {
			r.say("%d workers had to register again", n)
		}
		return p.failure()
	})
	workers := newPollers(c.APIKey, n)
	for k := range connections {
		running.Go(func() { // tokens expire, so each worker polls as soon as it is registered
			for from := k * each; from < n && ctx.Err() == nil && p.failure() == nil; from += connections * each {
				send, err := dial(ctx, c)
				for _, worker := range workers[from:min(n, from+each)] {
					if err == nil {
						err = c.register(ctx, worker)
					}
					if err != nil {
						break
					}
					p.registered.Add(1)
					running.Go(func() { p.fail(ctx, p.keep(ctx, send, worker, jobs)) })
				}
				p.fail(ctx, err)
			}
		})
	}
	must.Do(p.await(ctx, n))
	return p
}

// ownConnection is a connection for one worker.
func ownConnection(ctx context.Context, c *controller) (poll, error) {
	conn, err := load.Dial(c.Address, await.Patience)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	var buf []byte
	return func(_ context.Context, worker *poller) (int, []byte, error) {
		buf = worker.poll(buf[:0], "?wait=55")
		return conn.Do(buf)
	}, nil
}

// keep lets a worker poll until ctx ends, which may break the last poll off.
func (p *parking) keep(ctx context.Context, send poll, worker *poller, jobs chan<- arrival) error {
	for ctx.Err() == nil {
		status, body, err := send(ctx, worker)
		at := time.Now()
		switch {
		case err != nil:
			return err
		case status == http.StatusServiceUnavailable: // as a worker would
			process.Pause(ctx, time.Second)
		case status == http.StatusUnauthorized: // it was refused for longer than tokens last
			p.again.Add(1)
			if err := p.register(ctx, worker); err != nil {
				return err
			}
		default:
			worker.either = true
			if err := worker.Got(status, body); err != nil {
				return err
			}
			if !worker.idle {
				select {
				case jobs <- arrival{worker.jobs[len(worker.jobs)-1], at}:
				case <-ctx.Done():
				}
			}
		}
	}
	return nil
}

// awaitMetric waits until a metric is as it should be.
func (c *controller) awaitMetric(ctx context.Context, name string, right func(n float64) bool) {
	last := 0.0
	must.Do(c.Await(ctx, "the right "+name, func() string { return fmt.Sprint(last) }, func(ctx context.Context) (bool, error) {
		n, err := c.Metric(ctx, name)
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		last = n
		return err == nil && right(n), err
	}))
}

// wake takes A4.
func (r *run) wake(ctx context.Context) {
	c := r.start(ctx, "wake")
	jobs := make(chan arrival, parked)
	r.park(ctx, c, parked, 1, ownConnection, jobs)
	r.say("A4: %d submits, one at a time, with %d parked polls", wakes, parked)
	took := arrivals(ctx, wakes, jobs, func() string {
		return must.Get(c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))})).ID
	})
	p50, p99 := took.Quantile(.5), took.Quantile(.99)
	r.add(figure{
		name: "A4", what: fmt.Sprintf("from the start of a submit to the job at a parked worker, %d parked: p50, p99", parked),
		measured: fmt.Sprintf("%s, %s", round(p50), round(p99)),
		ratio:    fmt.Sprintf("%.2f, %.2f of limit", p50.Seconds()/.010, p99.Seconds()/.050), target: "< 10 ms, < 50 ms",
		met: p50 < 10*time.Millisecond && p99 < 50*time.Millisecond,
	})
	r.say("A4: %d builds without a NOTIFY", cutWakes)
	took = arrivals(ctx, cutWakes, jobs, func() string {
		c.db.exec(ctx, fmt.Sprintf(fill, 1)) // as when another controller's notification is lost
		return ""
	})
	r.add(duration("A4", "the same with the notification cut, worst", took.Quantile(1), 2500*time.Millisecond))
}

// arrivals makes n builds, one at a time, and measures how long each takes to the
// hands of a worker. An id that makeOne returns has to be the one that arrives.
func arrivals(ctx context.Context, n int, jobs <-chan arrival, makeOne func() (id string)) (took load.Result) {
	for range n {
		begin := time.Now()
		id := makeOne()
		select {
		case got := <-jobs:
			if id != "" && got.id != id {
				must.Do(fmt.Errorf("submitted %s, a worker got %s", id, got.id))
			}
			took.Latencies = append(took.Latencies, got.at.Sub(begin))
		case <-time.After(await.Patience):
			must.Do(fmt.Errorf("no worker got the build within %s", await.Patience))
		case <-ctx.Done():
			must.Do(context.Cause(ctx))
		}
	}
	slices.Sort(took.Latencies)
	return took
}

// parkedMemory takes E1.
func (r *run) parkedMemory(ctx context.Context) {
	c := r.start(ctx, "memory", many(manyPark)...)
	r.add(memory("E1", "resident memory of an idle takt, without its database", c.resident(), 60*mib))
	r.say("E1: parking %d polls", manyPark)
	p := r.park(ctx, c, manyPark, 1, ownConnection, nil)
	full := c.resident()
	must.Do(p.failure())
	r.add(memory("E1", fmt.Sprintf("the same with %d parked polls", manyPark), full, 400*mib))
}
