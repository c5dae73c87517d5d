package main

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
	own, err := r.Controller(ctx, "overload", limits...)
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
	for i := range r.rounds {
		r.say("C2: four times the capacity, round %d of %d", i+1, r.rounds)
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
	got, err := r.rejects(ctx, c)
	if err != nil {
		return err
	}
	o.reject.add(got)
	// As many per second over as many connections: a processor that is not busy
	// spends more on each request.
	if err := loadIs(ctx, c, func(n float64) bool { return n == 0 }); err != nil {
		return err
	}
	if got, err = r.loaded(ctx, c, c, r.duration/2, at(got.Rate(), those(c, 400, 503))); err != nil {
		return err
	}
	o.trivial.add(got)

	// At capacity as many work as are admitted, each beginning when it is through.
	capacity, rate, err := offer(ctx, c, r.duration, admitted, 0)
	if err != nil {
		return err
	}
	beyond, accepted, err := offer(ctx, c, r.duration, 8*admitted, 4*rate)
	if err != nil {
		return err
	}
	o.capacity, o.p99 = append(o.capacity, capacity), append(o.p99, beyond)
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
		defer func() { _ = conn.Close() }() // it has done its work
		if err := conn.Send([]byte("POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + c.APIKey +
			"\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\n")); err != nil {
			return sample{}, err
		}
	}
	if err := loadIs(ctx, c, func(n float64) bool { return n >= admitted }); err != nil {
		return sample{}, err
	}
	return r.loaded(ctx, c, c, r.duration/2, those(c, 503))
}

// loadIs waits until c's load is as it should be.
func loadIs(ctx context.Context, c *process.Controller, right func(n float64) bool) error {
	return awaitMetric(ctx, c, "takt_heijunka_load", right)
}

// those are many trifles, because each refusal is held back, that are answered
// with one of these.
func those(c *process.Controller, statuses ...int) []load.Client {
	clients := make([]load.Client, manyConnections)
	for i := range clients {
		clients[i] = answered{trifle{c.APIKey}, statuses}
	}
	return clients
}

// answered is a trifle that is answered with one of these.
type answered struct {
	trifle
	statuses []int
}

// Got implements load.Client.
func (a answered) Got(status int, body []byte) error {
	if !slices.Contains(a.statuses, status) {
		return fmt.Errorf("heartbeat without worker_id: status %d: %s", status, body)
	}
	return nil
}

// offer has n connections ask for a build that is not there, which costs a
// statement, so many times a second in all; 0: as often as they can. It returns
// the p99 of what was accepted, and how many per second that was.
func offer(ctx context.Context, c *process.Controller, d time.Duration, n int, rate float64) (p99 time.Duration, accepted float64, err error) {
	clients, all := make([]load.Client, n), make([]*asking, n)
	for i := range clients {
		all[i] = &asking{key: c.APIKey}
		clients[i] = all[i]
	}
	if rate > 0 {
		clients = at(rate, clients)
	}
	res, err := load.Run(ctx, c.Address, d, clients)
	if err != nil {
		return 0, 0, err
	}
	var latencies []time.Duration
	for _, a := range all {
		latencies = append(latencies, a.accepted...)
	}
	if len(latencies) == 0 {
		return 0, 0, fmt.Errorf("none of %d requests was accepted", res.Requests)
	}
	slices.Sort(latencies)
	return latencies[len(latencies)*99/100], float64(len(latencies)) / res.Elapsed.Seconds(), nil
}

// asking asks for a build that is not there.
type asking struct {
	key      string
	began    time.Time
	accepted []time.Duration
}

// Next implements load.Client.
func (a *asking) Next(buf []byte) []byte {
	a.began = time.Now()
	return append(append(append(buf, "GET /api/builds/V1StGXR8_Z5jdHi6B-myT HTTP/1.1\r\nHost: takt\r\nX-API-Key: "...), a.key...), "\r\n\r\n"...)
}

// Got implements load.Client.
func (a *asking) Got(status int, body []byte) error {
	switch status {
	case 404:
		a.accepted = append(a.accepted, time.Since(a.began))
	case 503:
	default:
		return fmt.Errorf("asking for a build: status %d: %s", status, body)
	}
	return nil
}

// paced is a client that sends at a fixed rate, or as fast as it is answered if
// that is slower.
type paced struct {
	load.Client
	every time.Duration
	next  time.Time
}

// at lets clients send so many requests a second in all, evenly spread.
func at(rate float64, clients []load.Client) []load.Client {
	every := time.Duration(float64(len(clients)) / rate * float64(time.Second))
	out := make([]load.Client, len(clients))
	for i, c := range clients {
		out[i] = &paced{c, every, time.Now().Add(every * time.Duration(i) / time.Duration(len(clients)))}
	}
	return out
}

// Next implements load.Client.
func (p *paced) Next(buf []byte) []byte {
	<-time.After(time.Until(p.next))
	p.next = p.next.Add(p.every)
	return p.Client.Next(buf)
}
