package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

// park keeps n polls parked until stop, a new one for each that was answered,
// and reports the jobs that they bring. It returns when c knows all of them.
func (c *controller) park(ctx context.Context, n int, jobs chan<- arrival) (stop func() error, err error) {
	pollers, err := c.pollers(ctx, n)
	if err != nil {
		return nil, err
	}
	conns := make([]*load.Conn, 0, n)
	for range pollers {
		conn, err := load.Dial(c.Address, 10*time.Second)
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, conn)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	unblock := context.AfterFunc(ctx, func() { closeAll(conns) })
	for i, p := range pollers {
		wg.Go(func() { errs[i] = keepParked(ctx, conns[i], p, jobs) })
	}
	stop = func() error {
		cancel(errors.New("measured"))
		wg.Wait()
		unblock()
		closeAll(conns)
		return errors.Join(errs...)
	}
	err = c.awaitMetric(ctx, "takt_queue_parked_polls", func(got float64) bool { return int(got) >= n })
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func closeAll(conns []*load.Conn) {
	for _, c := range conns {
		_ = c.Close() // closed already is fine
	}
}

func keepParked(ctx context.Context, conn *load.Conn, p *poller, jobs chan<- arrival) error {
	var buf []byte
	for ctx.Err() == nil {
		buf = p.poll(buf[:0], "?wait=55")
		status, body, err := conn.Do(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end closed the connection
			}
			return err
		}
		at := time.Now()
		if status == 503 { // as a worker would
			<-time.After(time.Second)
			continue
		}
		if err := (taker{p}).Got(status, body); err != nil {
			return err
		}
		if !p.idle {
			select {
			case jobs <- arrival{p.jobs[len(p.jobs)-1], at}:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// awaitMetric waits until a metric is as it should be.
func (c *controller) awaitMetric(ctx context.Context, name string, right func(n float64) bool) error {
	return c.Await(ctx, "the right "+name, nil, func(ctx context.Context) (bool, error) {
		n, err := c.Metric(ctx, name)
		return right(n), err
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
		case <-time.After(10 * time.Second):
			return took, errors.New("no worker got the build within 10s")
		case <-ctx.Done():
			return took, context.Cause(ctx)
		}
	}
	slices.Sort(took.Latencies)
	return took, nil
}

// parkedMemory takes E1.
func (r *run) parkedMemory(ctx context.Context) (err error) {
	c, err := r.start(ctx, "memory",
		// The polls come all at once.
		"TAKT_HEIJUNKA_HARD_LIMIT=20000", "TAKT_HEIJUNKA_POOLS=fleet=10/5/30/256/20000")
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
