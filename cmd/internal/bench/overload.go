package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
)

// admitted is the limit that C2 loads a controller to.
const admitted = 64

// overloaded is what a controller does at its capacity and with four times that.
type overloaded struct {
	trivial, reject series          // takt's CPU
	capacity, p99   []time.Duration // p99 of what is accepted, at capacity and beyond
	offered         []float64       // per second, beyond
	accepted        []float64
}

// overload takes C2: at four times its capacity a controller serves those whom it
// accepts nearly as fast, and refuses the others at the price of a trivial request.
func (r *run) overload(ctx context.Context) (err error) {
	limits := []string{
		fmt.Sprintf("TAKT_HEIJUNKA_SOFT_LIMIT=%d", admitted), fmt.Sprintf("TAKT_HEIJUNKA_HARD_LIMIT=%d", admitted), "TAKT_HEIJUNKA_RESERVED=0",
	}
	own, err := r.controller(ctx, "overload", limits...)
	if err != nil {
		return err
	}
	defer ending(ctx, own, &err)
	older, err := r.older(ctx, "overload-older", limits...)
	if err != nil {
		return err
	}
	defer ending(ctx, older, &err)
	var o, before overloaded
	for i := range r.Rounds {
		r.say("C2: four times the capacity, round %d of %d", i+1, r.Rounds)
		if older != nil {
			if err := r.overloadOnce(ctx, older, &before); err != nil {
				return err
			}
		}
		if err := r.overloadOnce(ctx, own, &o); err != nil {
			return err
		}
	}
	was := func(value string) string {
		if older == nil {
			return ""
		}
		return ", older " + value
	}
	ratio := o.ratio()
	r.add(figure{
		name: "C2", what: "p99 of what is accepted, at 4 × the capacity against at capacity",
		measured: fmt.Sprintf("%s of %s; %.0f/s of %.0f/s accepted", round(median(o.p99)), round(median(o.capacity)), median(o.accepted), median(o.offered)) +
			was(fmt.Sprintf("%.2f", before.ratio())),
		ratio: fmt.Sprintf("%.2f", ratio), target: "≤ 2", met: ratio <= 2,
	})
	cost := o.cost()
	r.add(figure{
		name: "C2", what: "a refused request against the trivial route: takt's CPU",
		measured: o.reject.String() + was(fmt.Sprintf("%.2f", before.cost())), cpu: o.reject.cpu().String() + fmt.Sprintf(" (trivial %d µs)", o.trivial.cpu().takt.Microseconds()),
		ratio: fmt.Sprintf("%.2f", cost), target: "≤ 1.2", met: cost <= 1.2,
	})
	return nil
}

func (o *overloaded) ratio() float64 {
	if len(o.p99) == 0 {
		return 0
	}
	return float64(median(o.p99)) / float64(median(o.capacity))
}

func (o *overloaded) cost() float64 {
	if len(o.p99) == 0 {
		return 0
	}
	return float64(o.reject.cpu().takt) / float64(max(o.trivial.cpu().takt, 1))
}

func (r *run) overloadOnce(ctx context.Context, c *process.Controller, o *overloaded) error {
	got, err := r.loaded(ctx, c, c, r.Duration/2, trifles(c, admitted))
	if err != nil {
		return err
	}
	o.trivial.add(got)
	if got, err = r.rejects(ctx, c); err != nil {
		return err
	}
	o.reject.add(got)

	// At capacity as many work as are admitted, each beginning when it is through.
	at, rate, err := offer(ctx, c, r.Duration, admitted, 0)
	if err != nil {
		return err
	}
	beyond, accepted, err := offer(ctx, c, r.Duration, 8*admitted, 4*rate)
	if err != nil {
		return err
	}
	o.capacity, o.p99 = append(o.capacity, at), append(o.p99, beyond)
	o.offered, o.accepted = append(o.offered, 4*rate), append(o.accepted, accepted)
	return nil
}

// rejects fills c with uploads that stand still, and has all else refused.
func (r *run) rejects(ctx context.Context, c *process.Controller) (sample, error) {
	for range admitted {
		conn, err := load.Dial(c.Address, 10*time.Second)
		if err != nil {
			return sample{}, err
		}
		defer conn.Close()
		if err := conn.Send([]byte("POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + c.APIKey +
			"\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\n")); err != nil {
			return sample{}, err
		}
	}
	for {
		n, err := c.Metric(ctx, "takt_heijunka_load")
		if err != nil {
			return sample{}, err
		}
		if n >= admitted {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return sample{}, context.Cause(ctx)
		}
	}
	clients := make([]load.Client, admitted)
	for i := range clients {
		clients[i] = refused{trifle{c.APIKey}}
	}
	return r.loaded(ctx, c, c, r.Duration/2, clients)
}

// refused is a trifle that is not admitted.
type refused struct{ trifle }

// Got implements load.Client.
func (refused) Got(status int, body []byte) error {
	if status != 503 {
		return fmt.Errorf("while all places were taken: status %d: %s", status, body)
	}
	return nil
}

// offer has n connections ask for a build that is not there, which costs a
// statement, so many times a second in all; 0: as often as they can. It returns
// the p99 of what was accepted, and how many per second that was.
func offer(ctx context.Context, c *process.Controller, d time.Duration, n int, rate float64) (p99 time.Duration, accepted float64, err error) {
	clients, all := make([]load.Client, n), make([]*paced, n)
	for i := range clients {
		all[i] = &paced{key: c.APIKey}
		if rate > 0 {
			all[i].every = time.Duration(float64(n) / rate * float64(time.Second))
			all[i].next = time.Now().Add(all[i].every * time.Duration(i) / time.Duration(n))
		}
		clients[i] = all[i]
	}
	res, err := load.Run(ctx, c.Address, d, clients)
	if err != nil {
		return 0, 0, err
	}
	var latencies []time.Duration
	for _, p := range all {
		latencies = append(latencies, p.accepted...)
	}
	if len(latencies) == 0 {
		return 0, 0, fmt.Errorf("none of %d requests was accepted", res.Requests)
	}
	slices.Sort(latencies)
	return latencies[len(latencies)*99/100], float64(len(latencies)) / res.Elapsed.Seconds(), nil
}

// paced asks every so often for a build that is not there.
type paced struct {
	key         string
	every       time.Duration
	next, began time.Time
	accepted    []time.Duration
}

// Next implements load.Client.
func (p *paced) Next(buf []byte) []byte {
	if p.every > 0 {
		if wait := time.Until(p.next); wait > 0 {
			time.Sleep(wait)
		}
		p.next = p.next.Add(p.every)
	}
	p.began = time.Now()
	return append(append(append(buf, "GET /api/builds/V1StGXR8_Z5jdHi6B-myT HTTP/1.1\r\nHost: takt\r\nX-API-Key: "...), p.key...), "\r\n\r\n"...)
}

// Got implements load.Client.
func (p *paced) Got(status int, body []byte) error {
	switch status {
	case 404:
		p.accepted = append(p.accepted, time.Since(p.began))
	case 503:
	default:
		return fmt.Errorf("asking for a build: status %d: %s", status, body)
	}
	return nil
}
