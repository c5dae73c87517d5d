package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// usage is processor time, of takt and of its PostgreSQL.
type usage struct{ takt, postgres time.Duration }

func (u usage) minus(o usage) usage { return usage{u.takt - o.takt, u.postgres - o.postgres} }

func (u usage) all() time.Duration { return u.takt + u.postgres }

// of is the share of one of n operations.
func (u usage) of(n int) usage {
	return usage{u.takt / time.Duration(max(n, 1)), u.postgres / time.Duration(max(n, 1))}
}

func (u usage) String() string {
	return fmt.Sprintf("takt %d µs, PostgreSQL %d µs", u.takt.Microseconds(), u.postgres.Microseconds())
}

// usage reads what c and its embedded server have used so far.
func (c *controller) usage() (u usage) {
	u.takt = must.Get(process.TimesOf(c.PID())).Own
	postmaster := must.Get(c.Postmaster())
	for pid, t := range process.All() {
		switch {
		case pid == postmaster:
			u.postgres += t.Own + t.Ended
		case t.Parent == postmaster:
			u.postgres += t.Own
		}
	}
	return u
}

// sample is a load and what it cost.
type sample struct {
	load.Result
	cpu usage // of one request
}

// work is a sample of n things done in a time.
func work(n int, took time.Duration) sample {
	return sample{Result: load.Result{Requests: n, Elapsed: took}}
}

// loaded lets clients work at c.
func (c *controller) loaded(ctx context.Context, d time.Duration, clients []load.Client) (s sample) {
	before := c.usage()
	s.Result = must.Get(load.Run(ctx, c.Address, d, clients))
	s.cpu = c.usage().minus(before).of(s.Requests)
	return s
}

// series is one kind of load over several rounds.
type series struct {
	rates    []float64
	p50, p99 []time.Duration
	takt, pg []time.Duration
}

func (s *series) add(got sample) {
	s.rates = append(s.rates, got.Rate())
	s.p50, s.p99 = append(s.p50, got.Quantile(.5)), append(s.p99, got.Quantile(.99))
	s.takt, s.pg = append(s.takt, got.cpu.takt), append(s.pg, got.cpu.postgres)
}

func (s *series) rate() float64 { return median(s.rates) }

func (s *series) cpu() usage { return usage{median(s.takt), median(s.pg)} }

func (s *series) String() string {
	text := fmt.Sprintf("%.0f/s", s.rate())
	if p99 := median(s.p99); p99 > 0 {
		text += fmt.Sprintf(" (p50 %s, p99 %s)", round(median(s.p50)), round(p99))
	}
	return text
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// pair is a load and the peer that it is compared with, in the same rounds.
type pair struct {
	own, peer series
	ratios    []float64
}

// ratio is takt's rate against that of the peer.
func (p *pair) ratio() float64 { return median(p.ratios) }

// cpu is the processor time of a request, and takt's for one of the peer's if that is a
// trivial route of takt; "" if it was not taken.
func (p *pair) cpu() (text string) {
	if p.own.cpu().takt > 0 {
		text = p.own.cpu().String()
	}
	if len(p.peer.takt) > 0 && p.peer.cpu().takt > 0 {
		text += fmt.Sprintf(" (trivial %d µs)", p.peer.cpu().takt.Microseconds())
	}
	return text
}

// cpuRatio is takt's processor time of a request against that of the peer's.
func (p *pair) cpuRatio() float64 {
	return float64(p.own.cpu().takt) / float64(max(p.peer.cpu().takt, 1))
}

// figure is the row of a pair. peer says what that is.
func (p *pair) figure(name, what, peer string) figure {
	return figure{name: name, what: what, measured: fmt.Sprintf("%s, %s %.0f/s", &p.own, peer, p.peer.rate()), cpu: p.cpu()}
}

// take is one round of a load.
type take = func(round int) sample

// turns takes the peer, unless it is nil, and then takt, once in each round.
func (r *run) turns(what string, peer, own take) *pair {
	p := &pair{}
	for i := range r.rounds {
		r.say("%s, round %d of %d", what, i+1, r.rounds)
		var theirs sample
		if peer != nil {
			theirs = peer(i)
			p.peer.add(theirs)
		}
		ours := own(i)
		p.own.add(ours)
		if peer != nil {
			p.ratios = append(p.ratios, ours.Rate()/theirs.Rate())
		}
	}
	return p
}

// comparison is a row of the table: takt's rate against that of a peer.
type comparison struct {
	name, what string
	peer       string // what the peer is called
	theirs     take
	own        take
	least      float64
	also       string // what else was asked for
}

// compare takes both and adds the row.
func (r *run) compare(c comparison) {
	p := r.turns(fmt.Sprintf("%s: %s, then takt", c.name, c.peer), c.theirs, c.own)
	r.add(p.figure(c.name, c.what, c.peer).atLeast(p.ratio(), c.least, c.also))
}

// versus is a row of the table: takt against the older one, unless theirs is nil.
type versus struct {
	name, what  string
	theirs, own take
	// least is wanted of takt's rate, most of the processor time of takt and PostgreSQL for one
	// operation; 0: nothing is.
	least, most float64
	also        string // what else was asked for
}

// versus takes both and adds the row.
func (r *run) versus(v versus) {
	p := r.turns(fmt.Sprintf("%s: %s", v.name, v.what), v.theirs, v.own)
	f := figure{name: v.name, what: v.what, measured: p.own.String(), cpu: p.own.cpu().String(), alone: v.theirs == nil}
	var wanted []string
	if v.least > 0 {
		wanted = append(wanted, fmt.Sprintf("≥ %g", v.least))
	}
	if v.most > 0 {
		wanted = append(wanted, fmt.Sprintf("CPU ≤ %g", v.most))
	}
	if len(wanted) > 0 {
		f.target = strings.Join(wanted, "; ") + v.also
	}
	if v.theirs != nil {
		cpu := float64(p.own.cpu().all()) / float64(p.peer.cpu().all())
		f.measured += ", older " + p.peer.String()
		f.cpu += "; older " + p.peer.cpu().String()
		f.ratio = fmt.Sprintf("%.2f; CPU %.2f", p.ratio(), cpu)
		f.met = p.ratio() >= v.least && (v.most == 0 || cpu <= v.most)
	}
	r.add(f)
}

// loading takes a load of clients that are the same in all rounds.
func (c *controller) loading(ctx context.Context, d time.Duration, clients []load.Client) take {
	return func(int) sample { return c.loaded(ctx, d, clients) }
}
