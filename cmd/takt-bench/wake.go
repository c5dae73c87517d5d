package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

const (
	parked     = 1000
	wakes      = 300
	cutWakes   = 5
	parkedWait = 55 * time.Second
)

// arrival is a job in the hands of a worker.
type arrival struct {
	id string
	at time.Time
}

// park keeps n polls parked at c until stop, a new one for each that was answered,
// and reports the jobs that they bring. It returns when c knows all of them.
func park(ctx context.Context, c *process.Controller, n int, jobs chan<- arrival) (stop func() error, err error) {
	pollers, err := newPollers(ctx, c, databaseOf(c), n)
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
	err = awaitMetric(ctx, c, "takt_queue_parked_polls", func(got float64) bool { return int(got) >= n })
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
	wait := strconv.Itoa(int(parkedWait.Seconds()))
	for ctx.Err() == nil {
		buf = append(buf[:0], "GET /api/workers/poll?wait="+wait+" HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+p.key+"\r\nX-Worker-Token: "+p.token+"\r\n\r\n"...)
		status, body, err := conn.Do(buf)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end closed the connection
			}
			return err
		}
		at := time.Now()
		id, ok := cut(body, `"job":{"id":"`)
		p.idle = !ok
		if err := p.Got(status, body); err != nil {
			return err
		}
		if ok {
			select {
			case jobs <- arrival{id, at}:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// awaitMetric waits until a metric of c is as it should be.
func awaitMetric(ctx context.Context, c *process.Controller, name string, right func(n float64) bool) error {
	return c.Await(ctx, time.Minute, "the right "+name, func(ctx context.Context) (bool, error) {
		n, err := c.Metric(ctx, name)
		return right(n), err
	})
}

// wake takes A4.
func (r *run) wake(ctx context.Context) (err error) {
	c, err := r.Controller(ctx, "wake")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
	jobs := make(chan arrival, parked)
	stop, err := park(ctx, c, parked, jobs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r.say("A4: %d submits, one at a time, with %d parked polls", wakes, parked)
	took, err := submitAndWait(ctx, c, wakes, jobs)
	if err != nil {
		return err
	}
	p50, p99 := quantile(took, .5), quantile(took, .99)
	r.add(figure{
		name: "A4", what: fmt.Sprintf("from the start of a submit to the job at a parked worker, %d parked: p50, p99", parked),
		measured: fmt.Sprintf("%s, %s", p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond)),
		ratio:    fmt.Sprintf("%.2f, %.2f of limit", p50.Seconds()/.010, p99.Seconds()/.050), target: "< 10 ms, < 50 ms",
		met: p50 < 10*time.Millisecond && p99 < 50*time.Millisecond,
	})
	r.say("A4: %d builds that no NOTIFY announces", cutWakes)
	took, err = appearAndWait(ctx, databaseOf(c), cutWakes, jobs)
	if err != nil {
		return err
	}
	worst := took[len(took)-1]
	r.add(figure{
		name: "A4", what: "the same with the notification cut, worst", measured: worst.Round(10 * time.Millisecond).String(),
		ratio: fmt.Sprintf("%.2f of limit", worst.Seconds()/2.5), target: "< 2.5 s", met: worst < 2500*time.Millisecond,
	})
	return nil
}

func submitAndWait(ctx context.Context, c *process.Controller, n int, jobs <-chan arrival) ([]time.Duration, error) {
	var took []time.Duration
	for range n {
		begin := time.Now()
		sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))})
		if err != nil {
			return nil, err
		}
		got, err := next(ctx, jobs)
		if err != nil {
			return nil, err
		}
		if got.id != sub.ID {
			return nil, fmt.Errorf("submitted %s, a worker got %s", sub.ID, got.id)
		}
		took = append(took, got.at.Sub(begin))
	}
	slices.Sort(took)
	return took, nil
}

func next(ctx context.Context, jobs <-chan arrival) (arrival, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no worker got the build within 10s"))
	defer cancel()
	select {
	case a := <-jobs:
		return a, nil
	case <-ctx.Done():
		return arrival{}, context.Cause(ctx)
	}
}

// appearAndWait makes builds that the controller is not told of, as when
// another controller's notification is lost.
func appearAndWait(ctx context.Context, db database, n int, jobs <-chan arrival) ([]time.Duration, error) {
	var took []time.Duration
	for range n {
		begin := time.Now()
		if err := db.exec(ctx, `WITH b AS (INSERT INTO builds (id, platform, token_hash)
			VALUES (left(md5(random()::text), 21), 'ios', '\x00') RETURNING id, seq)
			INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`); err != nil {
			return nil, err
		}
		got, err := next(ctx, jobs)
		if err != nil {
			return nil, err
		}
		took = append(took, got.at.Sub(begin))
	}
	slices.Sort(took)
	return took, nil
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
