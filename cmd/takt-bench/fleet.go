package main

import (
	"context"
	"fmt"
	"time"

	"takt/cmd/internal/load"
)

const (
	quietWorkers = 10_000
	quietEvery   = 5 * time.Second
	// quietFor is how many times as long as another load A9 lasts: presence is
	// written every 30 s.
	quietFor = 4
)

// quietCost is what a quiet fleet costs its database, each second.
type quietCost struct {
	wal      int // bytes
	postgres time.Duration
}

func (q quietCost) String() string {
	return fmt.Sprintf("%d kB of WAL and %d ms of PostgreSQL a second", q.wal/1000, q.postgres.Milliseconds())
}

// quietly lets a fleet poll an empty queue at c, which is stopped then.
func (r *run) quietly(ctx context.Context, c *controller) (q quietCost, err error) {
	pollers, err := c.pollers(ctx, quietWorkers)
	if err != nil {
		return q, err
	}
	polling(pollers, true)
	shifts := make([]*shift, connections)
	for i := range shifts {
		shifts[i] = &shift{pollers: pollers[i*len(pollers)/len(shifts) : (i+1)*len(pollers)/len(shifts)]}
	}
	if err := c.renew(ctx, pollers); err != nil { // the first may have waited for the last
		return q, err
	}
	all := at(float64(quietWorkers)/quietEvery.Seconds(), clients(shifts))
	if _, err := load.Run(ctx, c.Address, quietEvery, all); err != nil { // all are known then
		return q, err
	}
	const lsn = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	before, err := c.db.number(ctx, lsn)
	if err != nil {
		return q, err
	}
	got, err := c.loaded(ctx, quietFor*r.duration, all)
	if err != nil {
		return q, err
	}
	after, err := c.db.number(ctx, lsn)
	if err != nil {
		return q, err
	}
	seconds := got.Elapsed.Seconds()
	q = quietCost{wal: int(float64(after-before) / seconds), postgres: time.Duration(float64(got.cpu.postgres) * float64(got.Requests) / seconds)}
	return q, r.stopAll(ctx)
}

// quiet takes A9.
func (r *run) quiet(ctx context.Context) error {
	host, err := r.start(ctx, "quiet")
	if err != nil {
		return err
	}
	r.say("A9: %d workers poll an empty queue", quietWorkers)
	own, err := r.quietly(ctx, host)
	if err != nil {
		return err
	}
	f := figure{
		name: "A9", what: fmt.Sprintf("%d workers that poll an empty queue every %s, against the older takt", quietWorkers, quietEvery),
		measured: own.String(), target: "≤ 0.3; ≤ 0.3", alone: r.against == "",
	}
	if !f.alone {
		r.say("A9: the same with the older takt")
		older, err := r.startOlder(ctx, "quiet-older")
		if err != nil {
			return err
		}
		peer, err := r.quietly(ctx, older)
		if err != nil {
			return err
		}
		wal, cpu := float64(own.wal)/float64(peer.wal), float64(own.postgres)/float64(peer.postgres)
		f.measured += ", older " + peer.String()
		f.ratio, f.met = fmt.Sprintf("%.2f; %.2f", wal, cpu), wal <= .3 && cpu <= .3
	}
	r.add(f)
	return nil
}

// mixer is a connection with mixed work: of ten requests seven are idle polls, two
// polls that get a build, and one is a heartbeat or a log line, in turn.
type mixer struct {
	idle, busy, builder *poller
	n                   int
}

// Next implements load.Client.
func (m *mixer) Next(buf []byte) []byte {
	m.n++
	switch m.n % 10 {
	case 3, 7:
		return m.busy.Next(buf)
	case 9:
		build, b := "POST /api/builds/"+m.builder.jobs[0], m.builder
		if m.n%20 == 9 {
			return request(buf, build+"/heartbeat?worker_id="+b.id, b.key, "", "")
		}
		return request(buf, build+"/logs", b.key, "X-Worker-Id: "+b.id+"\r\nContent-Type: application/json\r\n",
			`{"level":"info","message":"one more line"}`)
	}
	return m.idle.Next(buf)
}

// Got implements load.Client.
func (m *mixer) Got(status int, body []byte) error {
	switch m.n % 10 {
	case 3, 7:
		return m.busy.Got(status, body)
	case 9:
		if status != 200 {
			return fmt.Errorf("heartbeat or log line: status %d: %s", status, body)
		}
		return nil
	}
	return m.idle.Got(status, body)
}

// mixed takes A10.
func (r *run) mixed(ctx context.Context) error {
	host, err := r.start(ctx, "mixed")
	if err != nil {
		return err
	}
	all, err := host.pollers(ctx, 3*manyConnections)
	if err != nil {
		return err
	}
	idle, busy, builders := all[:manyConnections], all[manyConnections:2*manyConnections], all[2*manyConnections:]
	mixers := make([]*mixer, manyConnections)
	for i := range mixers {
		// Builds are for iOS, so who takes Android alone finds nothing.
		idle[i].idle, idle[i].platform, idle[i].at = true, "android", time.Time{}
		mixers[i] = &mixer{idle: idle[i], busy: busy[i], builder: builders[i], n: i} // not in step
	}
	if err := host.refill(ctx, r.backlog()); err != nil {
		return err
	}
	if err := host.holding(ctx, builders); err != nil {
		return err
	}
	// The trivial route shows what is left to mixed work of a limit in milliseconds.
	trivial := host.loading(r.duration/2, host.trivial(manyConnections, 400))
	p, err := r.turns(ctx, fmt.Sprintf("A10: the trivial route, then mixed work over %d connections", manyConnections), trivial, func(ctx context.Context, _ int) (sample, error) {
		if err := host.refill(ctx, r.backlog()/2); err != nil {
			return sample{}, err
		}
		if err := host.renew(ctx, all[:2*manyConnections]); err != nil {
			return sample{}, err
		}
		return host.loaded(ctx, r.duration, clients(mixers)) // one refused request is one too many
	})
	if err != nil {
		return err
	}
	rate, p99 := p.ratio(), float64(median(p.own.p99))/float64(median(p.peer.p99))
	r.add(figure{
		name: "A10", what: fmt.Sprintf("mixed work, %d connections: idle polls 7, assigned 2, heartbeats and log lines 1", manyConnections),
		measured: fmt.Sprintf("%s, no error, trivial %s", &p.own, &p.peer), cpu: p.cpu(),
		ratio: fmt.Sprintf("%.2f, p99 %.2f", rate, p99), target: "rate ≥ 0.4, p99 ≤ 2, no error", met: rate >= 0.4 && p99 <= 2,
	})
	return host.db.checkHandedOutOnce(ctx, busy) // the builders' builds are acknowledged
}
