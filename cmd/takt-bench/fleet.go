package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
)

const (
	quietWorkers = 10_000
	quietEvery   = 5 * time.Second
	// quietFor is how many times as long as another load A9 lasts: presence is
	// written every 30 s.
	quietFor = 4
)

// shift is a connection over which several workers poll in turn, each every
// quietEvery.
type shift struct {
	pollers []*poller
	every   time.Duration
	next    time.Time
	at      int
}

// Next implements load.Client.
func (s *shift) Next(buf []byte) []byte {
	if s.next.IsZero() {
		s.next = time.Now()
	}
	<-time.After(time.Until(s.next))
	s.next = s.next.Add(s.every)
	s.at = (s.at + 1) % len(s.pollers)
	return s.pollers[s.at].Next(buf)
}

// Got implements load.Client.
func (s *shift) Got(status int, body []byte) error { return s.pollers[s.at].Got(status, body) }

// watched is what a quiet fleet costs its database, each second.
type watched struct {
	wal      int // bytes
	postgres time.Duration
}

// watch lets a fleet poll an empty queue.
func (r *run) watch(ctx context.Context, c *process.Controller) (w watched, err error) {
	db := databaseOf(c)
	pollers, err := newPollers(ctx, c, db, quietWorkers)
	if err != nil {
		return w, err
	}
	clients := make([]load.Client, connections)
	for i := range clients {
		share := pollers[i*len(pollers)/len(clients) : (i+1)*len(pollers)/len(clients)]
		clients[i] = &shift{pollers: share, every: quietEvery / time.Duration(len(share))}
	}
	for _, p := range pollers {
		p.idle = true
	}
	if _, err := load.Run(ctx, c.Address, quietEvery, clients); err != nil { // all are known then
		return w, err
	}
	const lsn = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	before, err := db.number(ctx, lsn)
	if err != nil {
		return w, err
	}
	d := quietFor * r.duration
	got, err := r.loaded(ctx, c, c, d, clients)
	if err != nil {
		return w, err
	}
	after, err := db.number(ctx, lsn)
	seconds := got.Elapsed.Seconds()
	return watched{wal: int(float64(after-before) / seconds), postgres: time.Duration(float64(got.cpu.postgres) * float64(got.Requests) / seconds)}, err
}

func (w watched) String() string {
	return fmt.Sprintf("%d kB of WAL and %d ms of PostgreSQL a second", w.wal/1000, w.postgres.Milliseconds())
}

// quiet takes A9.
func (r *run) quiet(ctx context.Context) (err error) {
	host, err := r.Controller(ctx, "quiet", "TAKT_REGISTER_RATE=0")
	if err != nil {
		return err
	}
	r.say("A9: %d workers poll an empty queue", quietWorkers)
	own, err := r.watch(ctx, host)
	ending(ctx, host, &err)
	if err != nil {
		return err
	}
	f := figure{
		name: "A9", what: fmt.Sprintf("%d workers that poll an empty queue every %s, against the older takt", quietWorkers, quietEvery),
		measured: own.String(), target: "≤ 0.3; ≤ 0.3", alone: r.against == "",
	}
	if r.against != "" {
		r.say("A9: the same with the older takt")
		older, err := r.older(ctx, "quiet-older", "TAKT_REGISTER_RATE=0")
		if err != nil {
			return err
		}
		peer, err := r.watch(ctx, older)
		ending(ctx, older, &err)
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
		build, worker, key := m.builder.jobs[0], m.builder.id, m.builder.key
		if m.n%20 == 9 {
			return fmt.Appendf(buf, "POST /api/builds/%s/heartbeat?worker_id=%s HTTP/1.1\r\nHost: takt\r\nContent-Length: 0\r\nX-API-Key: %s\r\n\r\n", build, worker, key)
		}
		const line = `{"level":"info","message":"one more line"}`
		return fmt.Appendf(buf, "POST /api/builds/%s/logs HTTP/1.1\r\nHost: takt\r\nX-Worker-Id: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-API-Key: %s\r\n\r\n%s",
			build, worker, len(line), key, line)
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
			return fmt.Errorf("sign of life: status %d: %s", status, body)
		}
		return nil
	}
	return m.idle.Got(status, body)
}

// mixed takes A10.
func (r *run) mixed(ctx context.Context) (err error) {
	host, err := r.Controller(ctx, "mixed", "TAKT_REGISTER_RATE=0")
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	db := databaseOf(host)
	all, err := newPollers(ctx, host, db, 3*manyConnections)
	if err != nil {
		return err
	}
	mixers, clients := make([]*mixer, manyConnections), make([]load.Client, manyConnections)
	ids := make([]string, manyConnections)
	first := make([]load.Client, manyConnections)
	for i := range mixers {
		mixers[i] = &mixer{idle: all[3*i], busy: all[3*i+1], builder: all[3*i+2]}
		mixers[i].idle.idle = true
		clients[i], ids[i], first[i] = mixers[i], "'"+mixers[i].idle.id+"'", once{mixers[i].builder}
	}
	// Builds are for iOS, so who takes Android alone finds nothing.
	if err := db.exec(ctx, "UPDATE workers SET platforms = '{android}' WHERE id IN ("+strings.Join(ids, ",")+");"); err != nil {
		return err
	}
	if err := r.refill(ctx, db, r.backlog()); err != nil {
		return err
	}
	if _, err := load.Run(ctx, host.Address, time.Minute, first); err != nil { // each builder gets its build
		return err
	}
	var own series
	for i := range r.rounds {
		r.say("A10: mixed work over %d connections, round %d of %d", manyConnections, i+1, r.rounds)
		if err := r.refill(ctx, db, r.backlog()/2); err != nil {
			return err
		}
		got, err := r.loaded(ctx, host, host, r.duration, clients)
		if err != nil {
			return err // one refused request is one too many
		}
		own.add(got)
	}
	r.add(figure{
		name: "A10", what: fmt.Sprintf("mixed work, %d connections: idle polls 7, assigned 2, signs of life 1", manyConnections),
		measured: own.String() + ", no error", cpu: own.cpu().String(),
		ratio: fmt.Sprintf("p99 %s", round(median(own.p99))), target: "p99 ≤ 50 ms, no error", met: median(own.p99) <= 50*time.Millisecond,
	})
	busy := make([]*poller, len(mixers)) // the builders' builds are acknowledged
	for i, m := range mixers {
		busy[i] = m.busy
	}
	return r.checkHandedOutOnce(ctx, db, busy)
}

// once is a poller that stops when it has a build.
type once struct{ *poller }

// Next implements load.Client.
func (o once) Next(buf []byte) []byte {
	if len(o.jobs) > 0 {
		return nil
	}
	return o.poller.Next(buf)
}
