package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// admitted is the limit that C2 loads a controller to. One address may have as many
// uploads at once.
const admitted = 32

// overloaded is what a controller does at its capacity and with four times that.
type overloaded struct {
	pair                          // refused requests against trivial ones
	capacity, p99 []time.Duration // p99 of what is accepted, at capacity and beyond
	offered       []float64       // per second, beyond
	accepted      []float64
}

// levelling takes C1: the same route with load levelling on and off, in turns.
func (r *run) levelling(ctx context.Context) {
	on, off := r.start(ctx, "levelled"), r.start(ctx, "unlevelled", "TAKT_HEIJUNKA=off")
	r.compare(comparison{
		name: "C1", what: fmt.Sprintf("a trivial route with levelling on against off, %d connections", connections), peer: "off",
		theirs: off.loading(ctx, r.duration, off.trivial(connections, 400)),
		own:    on.loading(ctx, r.duration, on.trivial(connections, 400)), least: .95,
	})
}

// overload takes C2: at four times its capacity a controller serves those whom it
// accepts nearly as fast, and refuses the others at the price of a trivial request.
func (r *run) overload(ctx context.Context) {
	limits := []string{
		fmt.Sprintf("TAKT_HEIJUNKA_SOFT_LIMIT=%d", admitted), fmt.Sprintf("TAKT_HEIJUNKA_HARD_LIMIT=%d", admitted), "TAKT_HEIJUNKA_RESERVED=0",
	}
	own, older := r.start(ctx, "overload", limits...), r.startOlder(ctx, "overload-older", limits...)
	var o, before overloaded
	for i := range r.rounds {
		r.say("C2: four times the capacity, round %d of %d", i+1, r.rounds)
		if older != nil {
			r.overloadOnce(ctx, older, &before)
		}
		r.overloadOnce(ctx, own, &o)
	}
	was := func(ratio func(*overloaded) float64) string {
		if older == nil {
			return ""
		}
		return fmt.Sprintf(", older %.2f", ratio(&before))
	}
	r.add(figure{
		name: "C2", what: "p99 of what is accepted, at 4 × the capacity against at capacity",
		measured: fmt.Sprintf("%s of %s; %.0f/s of %.0f/s accepted", round(median(o.p99)), round(median(o.capacity)), median(o.accepted), median(o.offered)) +
			was((*overloaded).ratio),
	}.atMost(o.ratio(), 2))
	r.add(figure{
		name: "C2", what: "a refused request against the trivial route: takt's CPU",
		measured: o.own.String() + was(func(o *overloaded) float64 { return o.cpuRatio() }), cpu: o.cpu(),
	}.atMost(o.cpuRatio(), 1.2))
}

func (o *overloaded) ratio() float64 { return float64(median(o.p99)) / float64(median(o.capacity)) }

func (r *run) overloadOnce(ctx context.Context, c *controller, o *overloaded) {
	got := r.rejects(ctx, c)
	o.own.add(got)
	// As many per second over as many connections: a processor that is not busy
	// spends more on each request.
	c.awaitMetric(ctx, "takt_heijunka_load", func(n float64) bool { return n == 0 })
	o.peer.add(c.loaded(ctx, r.duration/2, at(got.Rate(), c.trivial(manyConnections, 400, 503))))

	// At capacity as many work as are admitted, each beginning when it is through.
	capacity, rate := c.offer(ctx, r.duration, admitted, 0)
	beyond, accepted := c.offer(ctx, r.duration, 16*admitted, 4*rate)
	o.capacity, o.p99 = append(o.capacity, capacity), append(o.p99, beyond)
	o.offered, o.accepted = append(o.offered, 4*rate), append(o.accepted, accepted)
}

// rejects fills c with uploads that stand still, and has all else refused.
func (r *run) rejects(ctx context.Context, c *controller) sample {
	for range admitted {
		conn := must.Get(load.Dial(c.Address, 10*time.Second))
		defer func() { _ = conn.Close() }() // it has done its work
		must.Do(conn.Send([]byte("POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + c.APIKey +
			"\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\n")))
	}
	c.awaitMetric(ctx, "takt_heijunka_load", func(n float64) bool { return n >= admitted })
	return c.loaded(ctx, r.duration/2, c.trivial(manyConnections, 503)) // many, because each refusal is held back
}

// offer has n connections ask for a build that is not there, which costs a
// statement, so many times a second in all; 0: as often as they can. It returns
// the p99 of what was accepted, and how many per second that was.
func (c *controller) offer(ctx context.Context, d time.Duration, n int, rate float64) (p99 time.Duration, accepted float64) {
	asking := repeaters(n, request(nil, "GET /api/builds/V1StGXR8_Z5jdHi6B-myT", c.APIKey, "", ""), 404, 503)
	all := clients(asking)
	if rate > 0 {
		all = at(rate, all)
	}
	res := must.Get(load.Run(ctx, c.Address, d, all))
	var took load.Result
	for _, a := range asking {
		took.Latencies = append(took.Latencies, a.took...)
	}
	if len(took.Latencies) == 0 {
		must.Do(fmt.Errorf("none of %d requests was accepted", res.Requests))
	}
	slices.Sort(took.Latencies)
	return took.Quantile(.99), float64(len(took.Latencies)) / res.Elapsed.Seconds()
}
