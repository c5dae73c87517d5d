package main

import (
	"context"
	"fmt"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
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
func (r *run) quietly(ctx context.Context, c *controller) quietCost {
	pollers := c.pollers(ctx, quietWorkers)
	polling(pollers, true)
	c.renew(ctx, pollers) // the first may have waited for the last
	all := at(float64(quietWorkers)/quietEvery.Seconds(), shifts(pollers))
	must.Get(load.Run(ctx, c.Address, quietEvery, all)) // all are known then
	wal := c.db.number(ctx, sqlWAL)
	got := c.loaded(ctx, quietFor*r.duration, all)
	wal = c.db.number(ctx, sqlWAL) - wal
	must.Do(r.end())
	seconds := got.Elapsed.Seconds()
	return quietCost{wal: int(float64(wal) / seconds), postgres: time.Duration(float64(got.cpu.postgres) * float64(got.Requests) / seconds)}
}

// quiet takes A9.
func (r *run) quiet(ctx context.Context) {
	r.say("A9: %d workers poll an empty queue", quietWorkers)
	own := r.quietly(ctx, r.start(ctx, "quiet"))
	f := figure{
		name: "A9", what: fmt.Sprintf("%d workers that poll an empty queue every %s, against the older takt", quietWorkers, quietEvery),
		measured: own.String(), target: "≤ 0.3; ≤ 0.3", alone: r.against == "",
	}
	if !f.alone {
		r.say("A9: the same with the older takt")
		peer := r.quietly(ctx, r.startOlder(ctx, "quiet-older"))
		f.measured += ", older " + peer.String()
		f = f.both(float64(own.wal)/float64(peer.wal), float64(own.postgres)/float64(peer.postgres), .3)
	}
	r.add(f)
}

// mixer is a connection with mixed work: of ten requests seven are idle polls, two
// polls that get a build, and one is a heartbeat or a log line, in turn.
type mixer struct {
	idle, busy *poller
	builder    *repeater // its heartbeats, and its log lines
	log        *repeater
	n          int
}

// client is who sends the nth request.
func (m *mixer) client() load.Client {
	switch {
	case m.n%10 == 3, m.n%10 == 7:
		return m.busy
	case m.n%20 == 9:
		return m.builder
	case m.n%20 == 19:
		return m.log
	}
	return m.idle
}

// Next implements load.Client.
func (m *mixer) Next(buf []byte) []byte {
	m.n++
	return m.client().Next(buf)
}

// Got implements load.Client.
func (m *mixer) Got(status int, body []byte) error { return m.client().Got(status, body) }

// mixed takes A10.
func (r *run) mixed(ctx context.Context) {
	host := r.start(ctx, "mixed")
	all := host.pollers(ctx, 3*manyConnections)
	idle, busy, builders := all[:manyConnections], all[manyConnections:2*manyConnections], all[2*manyConnections:]
	host.refill(ctx, r.backlog())
	host.holding(ctx, builders)
	mixers := make([]*mixer, manyConnections)
	for i, b := range builders {
		// Builds are for iOS, so who takes Android alone finds nothing.
		idle[i].idle, idle[i].platform, idle[i].at = true, "android", time.Time{}
		beat := request(nil, "POST /api/builds/"+b.jobs[0]+"/heartbeat?worker_id="+b.id, b.key, "", "")
		mixers[i] = &mixer{idle: idle[i], busy: busy[i], builder: repeaters(1, beat, 200)[0], log: repeaters(1, b.logs(b.jobs[0], oneLine), 200)[0], n: i} // not in step
	}
	// The trivial route shows what is left to mixed work of a limit in milliseconds.
	p := r.turns(fmt.Sprintf("A10: the trivial route, then mixed work over %d connections", manyConnections),
		host.loading(ctx, r.duration/2, host.trivial(manyConnections, 400)), func(int) sample {
			host.refill(ctx, r.backlog()/2)
			host.renew(ctx, all[:2*manyConnections])
			return host.loaded(ctx, r.duration, clients(mixers)) // one refused request is one too many
		})
	rate, p99 := p.ratio(), float64(median(p.own.p99))/float64(median(p.peer.p99))
	r.add(figure{
		name: "A10", what: fmt.Sprintf("mixed work, %d connections: idle polls 7, assigned 2, heartbeats and log lines 1", manyConnections),
		measured: fmt.Sprintf("%s, no error, trivial %s", &p.own, &p.peer), cpu: p.cpu(),
		ratio: fmt.Sprintf("%.2f, p99 %.2f", rate, p99), target: "rate ≥ 0.4, p99 ≤ 2, no error", met: rate >= 0.4 && p99 <= 2,
	})
	host.db.checkHandedOutOnce(ctx, busy) // the builders' builds are acknowledged
}
