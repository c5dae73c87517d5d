package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// peers is what `takt-bench peers` compares: takt and other queues, of which
// each client takes one job at a time, and says that it is done before it takes the next.
type peers struct {
	run
	clients []int
	// tools is the directory of beanstalkd and redis-server, nats the server of NATS.
	tools, nats string
}

// jobSize is the size of a job of the peers, in bytes. takt's replies have about as many.
const jobSize = 200

func jobText() string { return strings.Repeat("j", jobSize) }

// queue is one of them.
type queue interface {
	// fill makes so many more jobs.
	fill(ctx context.Context, jobs int)
	// work lets n clients take and end jobs for d, or until there are none. It counts what was
	// acknowledged.
	work(ctx context.Context, n int, d time.Duration) sample
	// check compares what is left with what was made and what was acknowledged.
	check(ctx context.Context, made, acknowledged int)
}

func newPeers() *cobra.Command {
	p := &peers{}
	cmd := &cobra.Command{
		Use: "peers", Short: "Compare taking and ending jobs with beanstalkd, Redis streams, NATS JetStream and River",
		Args: cobra.NoArgs,
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if p.rounds < 1 || p.duration <= 0 {
				return cli.Usage("--rounds and --duration have to be positive")
			}
			p.out, p.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return p.in(ctx, func() error { return errors.Join(must.Try(func() { p.compare(ctx) }), p.end()) })
		}),
	}
	f := cmd.Flags()
	process.Flag(f, &p.takt, os.Getenv("TAKT_BINARY"))
	f.StringVar(&p.tools, "tools", "", "directory of beanstalkd and redis-server (make setup-peers)")
	f.StringVar(&p.nats, "nats", "", "the nats-server to start")
	f.IntSliceVar(&p.clients, "clients", []int{connections, manyConnections}, "how many clients work at once")
	f.DurationVar(&p.duration, "duration", 10*time.Second, "how long each load lasts")
	f.IntVar(&p.rounds, "rounds", 3, "how often each is taken, in turns; the median counts")
	return cmd
}

// contender is a queue and what was measured of it.
type contender struct {
	name string
	queue
	series
	most       float64 // jobs a second, of any load
	made, done int
	failed     error // why it is not measured any more
}

// take lets n clients work, who find twice as many jobs as they ever ended in that time, but at least
// so many.
func (c *contender) take(ctx context.Context, n int, d time.Duration, least int) {
	if c.failed != nil {
		return
	}
	c.failed = must.Try(func() {
		if lacks := max(least, int(2*c.most*d.Seconds())) - (c.made - c.done); lacks > 0 {
			c.fill(ctx, lacks)
			c.made += lacks
		}
		s := c.work(ctx, n, d)
		c.done += s.Requests
		c.most = max(c.most, s.Rate())
		c.add(s)
	})
}

// compare takes all in turns and prints their rows.
func (p *peers) compare(ctx context.Context) {
	own := &ending{controller: p.start(ctx, "takt")}
	two, one := &contender{name: "takt, two requests"}, &contender{name: "takt, one request"}
	all := []*contender{two, one, {name: "beanstalkd"}, {name: "Redis streams"}, {name: "NATS JetStream"}, {name: "River"}}
	for i, start := range []func() queue{
		func() queue { return &taktQueue{ending: own} },
		func() queue { return &taktQueue{ending: own, next: true} },
		func() queue { return p.startBeanstalkd(ctx) },
		func() queue { return p.startRedis(ctx) },
		func() queue { return p.startNATS(ctx) },
		func() queue { return p.startRiver(ctx, own.controller) },
	} {
		all[i].failed = must.Try(func() { all[i].queue = start() })
	}
	fmt.Fprintln(p.out, "| | clients | jobs a second | least and most | CPU of the servers, µs a job | takt ÷ it, two requests | takt ÷ it, one request |\n|---|---|---|---|---|---|---|")
	for _, n := range p.clients {
		for _, c := range all {
			p.say("%s, %d clients: not measured yet", c.name, n)
			c.take(ctx, n, p.duration/5, 2000+50*n)
			c.series = series{}
		}
		for i := range p.rounds {
			for _, c := range all {
				p.say("%s, %d clients, round %d of %d", c.name, n, i+1, p.rounds)
				c.take(ctx, n, p.duration, 0)
			}
		}
		for _, c := range all {
			p.row(c, n, two, one)
		}
	}
	for _, c := range all {
		if c.failed == nil {
			c.check(ctx, c.made, c.done)
		}
	}
}

// row prints what was measured with n clients.
func (p *peers) row(c *contender, n int, two, one *contender) {
	if c.failed != nil {
		fmt.Fprintf(p.out, "| %s | %d | not taken: %s |\n", c.name, n, reason(c.failed))
		return
	}
	against := func(takt *contender) string {
		if takt.failed != nil {
			return "–"
		}
		ratios := make([]float64, p.rounds)
		for i := range ratios {
			ratios[i] = takt.rates[i] / c.rates[i]
		}
		return fmt.Sprintf("%.2f ×", median(ratios))
	}
	fmt.Fprintf(p.out, "| %s | %d | %.0f | %.0f, %.0f | %d | %s | %s |\n", c.name, n, c.rate(), slices.Min(c.rates), slices.Max(c.rates),
		c.cpu().all().Microseconds(), against(two), against(one))
}

// taktQueue is takt, whose workers poll and report a failure. With next the report is the poll, too.
type taktQueue struct {
	*ending
	next    bool
	workers []*finisher
	clients []load.Client
}

// failer takes builds and reports that they failed.
type failer struct{ *finisher }

// Next implements load.Client.
func (f *failer) Next(buf []byte) []byte {
	if f.holds() {
		return f.finisher.Next(buf)
	} else if f.idle { // there were none for a second
		return nil
	}
	return f.poll(buf, "?wait=1")
}

// Got implements load.Client.
func (f *failer) Got(status int, body []byte) error {
	if f.holds() {
		return f.finisher.Got(status, body)
	}
	return f.poller.Got(status, body)
}

func (q *taktQueue) fill(ctx context.Context, jobs int) { q.refill(ctx, jobs) }

func (q *taktQueue) work(ctx context.Context, n int, d time.Duration) sample {
	if len(q.workers) != n {
		q.workers, q.clients = q.finishers(ctx, n, true), nil
		for _, f := range q.workers {
			f.next = q.next
			q.clients = append(q.clients, &failer{f})
		}
	}
	for _, f := range q.workers {
		f.idle = false
	}
	s := q.ended(ctx, d, q.workers, q.clients)
	if q.next && !slices.ContainsFunc(q.workers, func(f *finisher) bool { return f.carried > 0 }) {
		must.Do(errors.New("this takt gives no build with the answer to a result"))
	}
	return s
}

// check looks at the builds of both ways.
func (q *taktQueue) check(ctx context.Context, _, _ int) { q.ending.check(ctx) }
