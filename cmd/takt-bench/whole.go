package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// whole takes builds from submit to result over one connection, one after the other: it submits
// one, takes the one whose turn it is, posts ten lines and sends the result. With next the answer
// to a result may bring the build that follows, so one is submitted ahead.
type whole struct {
	*finisher
	step      step
	submit    []byte
	lines     string
	submitted int
	posted    int // log lines
}

// step is what a whole does now.
type step int

const (
	submitting step = iota
	taking
	posting
	reporting
)

// linesOfBuild is how many log lines a build writes.
const linesOfBuild = 10

// Next implements load.Client.
func (w *whole) Next(buf []byte) []byte {
	switch w.step {
	case submitting:
		return append(buf, w.submit...)
	case taking:
		return w.poll(buf, "?wait=5")
	case posting:
		return append(buf, w.logs(w.jobs[w.at], w.lines)...)
	case reporting:
		return w.finisher.Next(buf)
	}
	return nil
}

// Got implements load.Client.
func (w *whole) Got(status int, body []byte) error {
	switch {
	case w.step == submitting && status == http.StatusCreated:
		w.submitted++
		if w.step = taking; w.holds() {
			w.step = posting
		}
	case w.step == taking:
		if err := w.poller.Got(status, body); err != nil {
			return err
		}
		if w.holds() {
			w.step = posting
			if w.next {
				w.step = submitting
			}
		}
	case w.step == posting && status == http.StatusOK:
		w.posted += linesOfBuild
		w.step = reporting
	case w.step == reporting:
		w.step = submitting
		return w.finisher.Got(status, body)
	default:
		return fmt.Errorf("a whole build: status %d: %s", status, body)
	}
	return nil
}

// wholes are so many connections for whole builds.
func (c *ending) wholes(ctx context.Context, n int, next bool) []*whole {
	submit := newSubmitters(c.APIKey, 1)[0].request
	out := make([]*whole, n)
	for i, f := range c.finishers(ctx, n, false) {
		f.next = next
		out[i] = &whole{finisher: f, submit: submit, lines: logsOf(linesOfBuild)}
	}
	return out
}

// building takes a load of whole builds.
func (c *ending) building(ctx context.Context, d time.Duration, all []*whole) take {
	var own []*finisher
	for _, w := range all {
		own = append(own, w.finisher)
	}
	return func(int) sample { return c.ended(ctx, d, own, clients(all)) }
}

// ended lets clients work, and counts the builds that their finishers end.
func (c *ending) ended(ctx context.Context, d time.Duration, own []*finisher, all []load.Client) sample {
	c.renew(ctx, pollersOf(own))
	count := func() (n int) {
		for _, f := range own {
			n += f.at
		}
		return n
	}
	begun, before := count(), c.usage()
	res := must.Get(load.Run(ctx, c.Address, d, all))
	s := work(count()-begun, res.Elapsed)
	s.cpu = c.usage().minus(before).of(s.Requests)
	return s
}

// wholeBuilds takes A13.
func (r *run) wholeBuilds(ctx context.Context) {
	own, was := r.endings(ctx, "whole")
	var sent []*whole
	for _, row := range []struct {
		n           int
		next        bool
		least, most float64
	}{{submitters, false, 0, 0}, {connections, false, 1.8, .55}, {connections, true, 0, .5}} {
		what, ours := "whole builds", own.wholes(ctx, row.n, row.next)
		sent = append(sent, ours...)
		if row.next {
			what = "the same with next"
			if !own.carries(ctx, r.duration, ours) {
				r.missing("A13", errors.New("this takt gives no build with the answer to a result"))
				break
			}
		}
		var theirs take
		if was != nil {
			theirs = was.building(ctx, r.duration, was.wholes(ctx, row.n, false))
		}
		r.versus(versus{
			name: "A13", what: fmt.Sprintf("%s (submit, take, %d lines, result), %d connections, against the older takt", what, linesOfBuild, row.n),
			theirs: theirs, own: own.building(ctx, r.duration, ours), least: row.least, most: row.most, also: ", none lost or twice",
		})
	}
	own.check(ctx)
	submitted, posted := 0, 0
	for _, w := range sent {
		submitted += w.submitted
		posted += w.posted
	}
	own.db.expect(ctx, "builds", `SELECT count(*) FROM builds`, submitted)
	own.db.expect(ctx, "log lines", `SELECT count(*) FROM build_logs WHERE by_worker`, posted)
}

// carries reports whether the answer to a result brings builds.
func (c *ending) carries(ctx context.Context, d time.Duration, all []*whole) bool {
	c.building(ctx, d, all)(0)
	n := 0
	for _, w := range all {
		n += w.carried
	}
	return n > 0
}
