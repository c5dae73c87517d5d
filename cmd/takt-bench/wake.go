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

func (p *parking) fail(err error) {
	if err != nil {
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

// park keeps n polls parked until stop, a new one for each that was answered,
// and reports the jobs that they bring. It returns when c knows nearly all of them.
func (c *controller) park(ctx context.Context, n int, jobs chan<- arrival) (stop func() error, err error) {
	p := &parking{controller: c}
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	stop = func() error {
		cancel(errors.New("measured"))
		running.Wait()
		return p.failure()
	}
	for k := range connections {
		running.Go(func() { // tokens expire, so each worker polls as soon as it is registered
			for i := k; i < n && ctx.Err() == nil && p.failure() == nil; i += connections {
				worker, err := c.poller(ctx, i)
				if err == nil {
					p.registered.Add(1)
					var conn *load.Conn
					if conn, err = load.Dial(c.Address, await.Patience); err == nil {
						running.Go(func() { p.fail(p.keepParked(ctx, conn, worker, jobs)) })
					}
				}
				if ctx.Err() == nil {
					p.fail(err)
				}
			}
		})
	}
	if err := p.await(ctx, n); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func (p *parking) keepParked(ctx context.Context, conn *load.Conn, worker *poller, jobs chan<- arrival) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // closed already is fine
	defer func() { _ = conn.Close() }()
	var buf []byte
	for ctx.Err() == nil {
		buf = worker.poll(buf[:0], "?wait=55")
		status, body, err := conn.Do(buf)
		at := time.Now()
		switch {
		case ctx.Err() != nil: // the end closed the connection
			return nil
		case err != nil:
			return err
		case status == http.StatusServiceUnavailable: // as a worker would
			rest(ctx, time.Second)
		case status == http.StatusUnauthorized:
			p.again.Add(1)
			if err := p.register(ctx, worker); err != nil && ctx.Err() == nil {
				return err
			}
		default:
			if err := (taker{worker}).Got(status, body); err != nil {
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
func (c *controller) awaitMetric(ctx context.Context, name string, right func(n float64) bool) error {
	last := 0.0
	return c.Await(ctx, "the right "+name, func() string { return fmt.Sprint(last) }, func(ctx context.Context) (bool, error) {
		n, err := c.Metric(ctx, name)
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		last = n
		return err == nil && right(n), err
	})
}

// wake takes A4.
func (r *run) wake(ctx context.Context) (err error) {
	c, err := r.start(ctx, "wake")
	if err != nil {
		return err
	}
	jobs := make(chan arrival, parked)
	stop, err := c.park(ctx, parked, jobs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r.say("A4: %d submits, one at a time, with %d parked polls", wakes, parked)
	took, err := arrivals(ctx, wakes, jobs, func() (string, error) {
		sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))})
		return sub.ID, err
	})
	if err != nil {
		return err
	}
	p50, p99 := took.Quantile(.5), took.Quantile(.99)
	r.add(figure{
		name: "A4", what: fmt.Sprintf("from the start of a submit to the job at a parked worker, %d parked: p50, p99", parked),
		measured: fmt.Sprintf("%s, %s", round(p50), round(p99)),
		ratio:    fmt.Sprintf("%.2f, %.2f of limit", p50.Seconds()/.010, p99.Seconds()/.050), target: "< 10 ms, < 50 ms",
		met: p50 < 10*time.Millisecond && p99 < 50*time.Millisecond,
	})
	r.say("A4: %d builds without a NOTIFY", cutWakes)
	took, err = arrivals(ctx, cutWakes, jobs, func() (string, error) {
		// As when another controller's notification is lost.
		return "", c.db.exec(ctx, fmt.Sprintf(fill, 1))
	})
	if err != nil {
		return err
	}
	worst := took.Quantile(1)
	f := figure{name: "A4", what: "the same with the notification cut, worst", measured: worst.Round(10 * time.Millisecond).String()}
	r.add(f.below(worst.Seconds(), 2.5, "2.5 s"))
	return nil
}

// arrivals makes n builds, one at a time, and measures how long each takes to the
// hands of a worker. An id that makeOne returns has to be the one that arrives.
func arrivals(ctx context.Context, n int, jobs <-chan arrival, makeOne func() (id string, err error)) (took load.Result, err error) {
	for range n {
		begin := time.Now()
		id, err := makeOne()
		if err != nil {
			return took, err
		}
		select {
		case got := <-jobs:
			if id != "" && got.id != id {
				return took, fmt.Errorf("submitted %s, a worker got %s", id, got.id)
			}
			took.Latencies = append(took.Latencies, got.at.Sub(begin))
		case <-time.After(await.Patience):
			return took, fmt.Errorf("no worker got the build within %s", await.Patience)
		case <-ctx.Done():
			return took, context.Cause(ctx)
		}
	}
	slices.Sort(took.Latencies)
	return took, nil
}

// parkedMemory takes E1.
func (r *run) parkedMemory(ctx context.Context) (err error) {
	c, err := r.start(ctx, "memory", many(manyPark)...)
	if err != nil {
		return err
	}
	idle, _, err := c.Resident()
	if err != nil {
		return err
	}
	r.add(memory("E1", "resident memory of an idle takt, without its database", idle, 60*mib))
	r.say("E1: parking %d polls", manyPark)
	stop, err := c.park(ctx, manyPark, make(chan arrival, 1))
	if err != nil {
		return err
	}
	full, _, err := c.Resident()
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	r.add(memory("E1", fmt.Sprintf("the same with %d parked polls", manyPark), full, 400*mib))
	return nil
}
