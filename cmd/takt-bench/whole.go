package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// whole takes builds from submit to result over one connection, one after the other: it submits
// one, takes the one whose turn it is, posts ten lines and sends the result. With next the answer
// to a result may bring the build that follows, so one is submitted ahead.
type whole struct {
	*finisher
	next      bool
	step      step
	submit    []byte
	lines     string
	submitted int
	posted    int // log lines
	carried   int // builds that the answer to a result brought
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
		if w.next {
			return w.end(buf, w.jobs[w.at], "?next=1")
		}
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
		if err := w.finisher.Got(status, body); err != nil {
			return err
		}
		w.step = submitting
		if _, ok := cut(body, `"access_token":"`); w.next && ok {
			if err := w.poller.Got(status, body); err != nil {
				return err
			}
			w.carried += len(w.jobs) - w.at
		}
	default:
		return fmt.Errorf("a whole build: status %d: %s", status, body)
	}
	return nil
}

// holds is true if it has a build that has not ended.
func (w *whole) holds() bool { return w.at < len(w.jobs) }

// wholes are so many connections for whole builds.
func (c *ending) wholes(ctx context.Context, n int, next bool) []*whole {
	submit := newSubmitters(c.APIKey, 1)[0].request
	out := make([]*whole, n)
	for i, f := range c.finishers(ctx, n, false) {
		out[i] = &whole{finisher: f, next: next, submit: submit, lines: logsOf(linesOfBuild)}
	}
	return out
}

// building takes a load of whole builds.
func (c *ending) building(ctx context.Context, r *run, all []*whole) take {
	count := func() (n int) {
		for _, w := range all {
			n += w.at
		}
		return n
	}
	return func(int) sample {
		c.renew(ctx, pollersOf(c.all))
		begun, before := count(), c.usage()
		res := must.Get(load.Run(ctx, c.Address, r.duration, clients(all)))
		n := count() - begun
		s := work(n, res.Elapsed)
		s.cpu = c.usage().minus(before).of(n)
		return s
	}
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
			if !own.carries(ctx, r, ours) {
				r.missing("A13", errors.New("this takt gives no build with the answer to a result"))
				break
			}
		}
		var theirs take
		if was != nil {
			theirs = was.building(ctx, r, was.wholes(ctx, row.n, false))
		}
		r.versus(versus{
			name: "A13", what: fmt.Sprintf("%s (submit, take, %d lines, result), %d connections, against the older takt", what, linesOfBuild, row.n),
			theirs: theirs, own: own.building(ctx, r, ours), least: row.least, most: row.most, also: ", none lost or twice",
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
func (c *ending) carries(ctx context.Context, r *run, all []*whole) bool {
	c.building(ctx, r, all)(0)
	n := 0
	for _, w := range all {
		n += w.carried
	}
	return n > 0
}
