package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Client is what one connection does. Next appends its next request to buf and
// returns it, or nil when the client has nothing left to send; Got takes the
// reply. A client is never called twice at once.
type Client interface {
	Next(buf []byte) []byte
	Got(status int, body []byte) error
}

// Result is the outcome of a run.
type Result struct {
	Requests int
	Elapsed  time.Duration
	// Latencies of all requests, sorted, from send to whole reply.
	Latencies []time.Duration
}

// Rate is the number of requests per second.
func (r Result) Rate() float64 { return float64(r.Requests) / r.Elapsed.Seconds() }

// Quantile returns the latency that the fraction q (0 to 1) of requests did not
// exceed.
func (r Result) Quantile(q float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(q*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// Run lets every client work over a connection of its own to addr until all
// are done, limit has passed or ctx ends, whichever is first. Running out of
// time is no error; a failed request is.
func Run(ctx context.Context, addr string, limit time.Duration, clients []Client) (Result, error) {
	conns := make([]*Conn, 0, len(clients))
	defer func() {
		for _, c := range conns {
			_ = c.Close() // every reply was read
		}
	}()
	for range clients {
		c, err := Dial(addr, time.Minute)
		if err != nil {
			return Result{}, err
		}
		conns = append(conns, c)
	}
	start := time.Now()
	deadline := start.Add(limit)
	latencies := make([][]time.Duration, len(clients))
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	for i, client := range clients {
		wg.Go(func() { latencies[i], errs[i] = drive(ctx, conns[i], client, deadline) })
	}
	wg.Wait()
	res := Result{Elapsed: time.Since(start), Latencies: slices.Concat(latencies...)}
	res.Requests = len(res.Latencies)
	slices.Sort(res.Latencies)
	return res, errors.Join(errs...)
}

// replyLimit is how long one reply may take, after the run's own end too.
const replyLimit = 90 * time.Second

func drive(ctx context.Context, conn *Conn, client Client, deadline time.Time) ([]time.Duration, error) {
	var (
		out []time.Duration
		buf []byte
	)
	if err := conn.SetDeadline(deadline.Add(replyLimit)); err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		begin := time.Now()
		if begin.After(deadline) {
			break
		}
		req := client.Next(buf[:0])
		if req == nil {
			break
		}
		buf = req
		status, body, err := conn.Do(req)
		if err != nil {
			return out, err
		}
		out = append(out, time.Since(begin))
		if err := client.Got(status, body); err != nil {
			return out, fmt.Errorf("after %d requests: %w", len(out), err)
		}
	}
	return out, nil
}
