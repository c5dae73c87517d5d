package main

import (
	"context"
	"fmt"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
)

// usage is processor time, of takt and of its PostgreSQL.
type usage struct{ takt, postgres time.Duration }

func (u usage) minus(o usage) usage { return usage{u.takt - o.takt, u.postgres - o.postgres} }

// of is the share of one of n operations.
func (u usage) of(n int) usage {
	return usage{u.takt / time.Duration(max(n, 1)), u.postgres / time.Duration(max(n, 1))}
}

func (u usage) String() string {
	return fmt.Sprintf("takt %d µs, PostgreSQL %d µs", u.takt.Microseconds(), u.postgres.Microseconds())
}

// usage reads what c and its embedded server have used so far.
func (c *controller) usage() (u usage, err error) {
	own, err := process.TimesOf(c.PID())
	if err != nil {
		return u, err
	}
	postmaster, err := c.Postmaster()
	if err != nil {
		return u, err
	}
	u.takt = own.Own
	for pid, t := range process.All() {
		switch {
		case pid == postmaster:
			u.postgres += t.Own + t.Ended
		case t.Parent == postmaster:
			u.postgres += t.Own
		}
	}
	return u, nil
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
func (c *controller) loaded(ctx context.Context, d time.Duration, clients []load.Client) (s sample, err error) {
	before, err := c.usage()
	if err != nil {
		return s, err
	}
	if s.Result, err = load.Run(ctx, c.Address, d, clients); err != nil {
		return s, err
	}
	after, err := c.usage()
	s.cpu = after.minus(before).of(s.Requests)
	return s, err
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
	return fmt.Sprintf("%.0f/s (p50 %s, p99 %s)", s.rate(), round(median(s.p50)), round(median(s.p99)))
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// pair is a load and the peer that it is compared with, in the same rounds.
type pair struct {
	own, peer series
	ratios    []float64
}

// ratio is takt's rate against that of the peer.
func (p *pair) ratio() float64 { return median(p.ratios) }

// cpu is takt's processor time of a request, and the peer's.
func (p *pair) cpu() string {
	return fmt.Sprintf("%s (trivial %d µs)", p.own.cpu(), p.peer.cpu().takt.Microseconds())
}

// take is one round of a load.
type take = func(ctx context.Context, round int) (sample, error)

// turns takes the peer, unless it is nil, and then takt, once in each round.
func (r *run) turns(ctx context.Context, what string, peer, own take) (*pair, error) {
	p := &pair{}
	for i := range r.rounds {
		r.say("%s, round %d of %d", what, i+1, r.rounds)
		var theirs sample
		var err error
		if peer != nil {
			if theirs, err = peer(ctx, i); err != nil {
				return nil, err
			}
			p.peer.add(theirs)
		}
		ours, err := own(ctx, i)
		if err != nil {
			return nil, err
		}
		p.own.add(ours)
		if peer != nil {
			p.ratios = append(p.ratios, ours.Rate()/theirs.Rate())
		}
	}
	return p, nil
}

// loading takes a load of clients that are the same in all rounds.
func (c *controller) loading(d time.Duration, clients []load.Client) take {
	return func(ctx context.Context, _ int) (sample, error) { return c.loaded(ctx, d, clients) }
}
