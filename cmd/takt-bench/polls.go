package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
	"takt/http/api"
)

const (
	connections     = 64
	manyConnections = 1024
)

// poller is a worker that only polls, with rotating tokens as the contract has
// it. It remembers what it was given.
type poller struct {
	key, id, token string
	jobs           []string
	idle           bool // no job is expected
}

// Next implements load.Client.
func (p *poller) Next(buf []byte) []byte {
	buf = append(buf, "GET /api/workers/poll HTTP/1.1\r\nHost: takt\r\nX-API-Key: "...)
	buf = append(buf, p.key...)
	buf = append(buf, "\r\nX-Worker-Token: "...)
	buf = append(buf, p.token...)
	return append(buf, "\r\n\r\n"...)
}

// Got implements load.Client. It cuts the two strings out of the compact reply:
// a full decoder would cost the machine as much as the server's own work.
func (p *poller) Got(status int, body []byte) error {
	if status != 200 {
		return fmt.Errorf("poll: status %d: %s", status, body)
	}
	token, ok := cut(body, `"access_token":"`)
	if !ok {
		return fmt.Errorf("poll: no token in %s", body)
	}
	p.token = token
	job, ok := cut(body, `"job":{"id":"`)
	if ok == p.idle {
		return fmt.Errorf("poll: job expected: %t, got %s", !p.idle, body)
	}
	if ok {
		p.jobs = append(p.jobs, job)
	}
	return nil
}

// cut returns what stands between prefix and the next quote.
func cut(body []byte, prefix string) (string, bool) {
	_, rest, ok := bytes.Cut(body, []byte(prefix))
	if !ok {
		return "", false
	}
	value, _, ok := bytes.Cut(rest, []byte(`"`))
	return string(value), ok
}

// newPollers registers n workers at c that may hold any number of builds, so
// that each of their polls can be given one: the contract's own limit is lifted
// in the database.
func newPollers(ctx context.Context, c *process.Controller, db database, n int) ([]*poller, error) {
	out := make([]*poller, n)
	for i := range out {
		reg, err := c.Client.Register(ctx, api.Register{Name: fmt.Sprintf("bench-%d", i), Capabilities: []byte("{}")})
		if err != nil {
			return nil, fmt.Errorf("registering: %w", err)
		}
		out[i] = &poller{key: c.APIKey, id: reg.ID, token: reg.AccessToken}
	}
	return out, db.exec(ctx, "UPDATE workers SET slots = 1 << 30;")
}

func clientsOf(pollers []*poller, idle bool) []load.Client {
	out := make([]load.Client, len(pollers))
	for i, p := range pollers {
		p.idle = idle
		out[i] = p
	}
	return out
}

// fill makes n pending builds. Their files are not there: nobody downloads them.
const fill = `
WITH b AS (INSERT INTO builds (id, platform, token_hash)
	SELECT left(md5(random()::text), 21), 'ios', '\x00' FROM generate_series(1, %d) RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b;
VACUUM ANALYZE builds;
`

// polls takes A2, A3 and A7.
func (r *run) polls(ctx context.Context) (err error) {
	host, err := r.Controller(ctx, "polls")
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	db := databaseOf(host)
	naive := db
	naive.name = "naive"
	if err := r.prepareNaive(ctx, db, naive); err != nil {
		return err
	}
	if r.wanted("A3") {
		if err := r.idlePolls(ctx, host, db, naive); err != nil {
			return err
		}
	}
	if r.wanted("A2") {
		if err := r.assignedPolls(ctx, host, db, naive); err != nil {
			return err
		}
	}
	if r.wanted("A7") {
		return r.twoControllers(ctx, host, db)
	}
	return nil
}

// contest is one kind of polls against its naive peer.
type contest struct {
	name, what, script string
	connections        int
	target             float64
	idle               bool
	// prepare runs before each round.
	prepare func(context.Context) error
}

func (r *run) idlePolls(ctx context.Context, host *process.Controller, db, naive database) error {
	pollers, err := r.compete(ctx, host, db, naive, contest{
		name: "A3", what: "idle polls over HTTP, %d connections, against naive pgbench", script: "idle.sql", connections: connections, target: 2.2, idle: true,
		prepare: func(context.Context) error { return nil },
	})
	if err != nil {
		return err
	}
	var idle, trivial series
	var ratios []float64
	for i := range r.rounds {
		r.say("A3: the trivial route, then idle polls, round %d of %d", i+1, r.rounds)
		peer, err := r.loaded(ctx, host, host, r.duration, trifles(host, connections))
		if err != nil {
			return err
		}
		own, err := r.loaded(ctx, host, host, r.duration, clientsOf(pollers, true))
		if err != nil {
			return err
		}
		trivial.add(peer)
		idle.add(own)
		ratios = append(ratios, own.Rate()/peer.Rate())
	}
	r.add(figure{
		name: "A3", what: "the same against the trivial route of the same server", measured: fmt.Sprintf("%s, trivial %.0f/s", &idle, median(trivial.rates)),
		cpu:   idle.cpu().String() + fmt.Sprintf(" (trivial %d µs)", trivial.cpu().takt.Microseconds()),
		ratio: fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.75", met: median(ratios) >= .75,
	})
	return nil
}

func (r *run) assignedPolls(ctx context.Context, host *process.Controller, db, naive database) error {
	for _, c := range []struct {
		connections int
		target      float64
	}{{connections, 5}, {manyConnections, 8}} {
		pollers, err := r.compete(ctx, host, db, naive, contest{
			name: "A2", what: "assigned polls over HTTP, %d connections, against naive pgbench without HTTP",
			script: "assigned.sql", connections: c.connections, target: c.target,
			prepare: func(ctx context.Context) error {
				if err := naive.exec(ctx, fmt.Sprintf(naiveFill, int(6_000*r.duration.Seconds()))); err != nil {
					return err
				}
				return r.refill(ctx, db, r.backlog())
			},
		})
		if err != nil {
			return err
		}
		if err := r.checkHandedOutOnce(ctx, db, pollers); err != nil {
			return err
		}
	}
	return nil
}

// compete takes turns with pgbench and adds the median of the ratios to the
// table. It returns the workers that polled.
func (r *run) compete(ctx context.Context, host *process.Controller, db, naive database, c contest) ([]*poller, error) {
	pollers, err := newPollers(ctx, host, db, c.connections)
	if err != nil {
		return nil, err
	}
	var ratios, peers []float64
	var own series
	for i := range r.rounds {
		r.say("%s: polls over %d connections, round %d of %d", c.name, c.connections, i+1, r.rounds)
		if err := c.prepare(ctx); err != nil {
			return nil, err
		}
		peer, err := naive.pgbench(ctx, filepath.Join(r.scripts, c.script), connections, r.duration)
		if err != nil {
			return nil, err
		}
		got, err := r.loaded(ctx, host, host, r.duration, clientsOf(pollers, c.idle))
		if err != nil {
			return nil, err
		}
		own.add(got)
		peers, ratios = append(peers, peer), append(ratios, got.Rate()/peer)
	}
	r.add(figure{
		name: c.name, what: fmt.Sprintf(c.what, c.connections), measured: fmt.Sprintf("%s, naive %.0f/s", &own, median(peers)),
		cpu: own.cpu().String(), ratio: fmt.Sprintf("%.2f", median(ratios)), target: fmt.Sprintf("≥ %.1f", c.target), met: median(ratios) >= c.target,
	})
	return pollers, nil
}

// refill leaves so many builds pending that a run cannot empty the queue.
func (r *run) refill(ctx context.Context, db database, n int) error {
	return db.exec(ctx, fmt.Sprintf(fill, n))
}

// naiveFill does the same for the naive scripts.
const naiveFill = `
INSERT INTO naive_builds (id, platform, token_hash)
	SELECT left(md5(random()::text), 21), 'ios', '\x00' FROM generate_series(1, %d);
VACUUM ANALYZE naive_builds;
`

func (r *run) backlog() int { return int(40_000 * r.duration.Seconds()) }

// checkHandedOutOnce compares what the workers were given with what the
// database says: nothing twice, nothing lost.
func (r *run) checkHandedOutOnce(ctx context.Context, db database, pollers []*poller) error {
	seen := map[string]bool{}
	var values strings.Builder
	for _, p := range pollers {
		for _, id := range p.jobs {
			if seen[id] {
				return fmt.Errorf("build %s was handed out twice", id)
			}
			seen[id] = true
			fmt.Fprintf(&values, "%s\t%s\n", id, p.id)
		}
	}
	script := "CREATE TEMP TABLE given (id text, worker text);\nCOPY given FROM STDIN;\n" + values.String() + "\\.\nANALYZE given;\n" + `
DO $$ BEGIN
  IF EXISTS (SELECT FROM given g LEFT JOIN build_ids i USING (id) LEFT JOIN builds b USING (seq)
             WHERE b.worker_id IS DISTINCT FROM g.worker OR b.attempt <> 1 OR b.state <> 'assigned') THEN
    RAISE 'a worker was given a build that the database does not know as its own';
  END IF;
END $$;`
	if err := db.exec(ctx, script); err != nil {
		return err
	}
	ids := make([]string, 0, len(pollers))
	for _, p := range pollers {
		ids = append(ids, "'"+p.id+"'")
	}
	return db.expect(ctx, "builds assigned to the run's workers",
		"SELECT count(*) FROM builds WHERE worker_id IN ("+strings.Join(ids, ",")+")", len(seen))
}

// twoControllers takes A7.
func (r *run) twoControllers(ctx context.Context, host *process.Controller, db database) (err error) {
	second, err := r.Controller(ctx, "second", host.Shared()...)
	if err != nil {
		return err
	}
	defer ending(ctx, second, &err)
	const n = 256
	pollers, err := newPollers(ctx, host, db, n)
	if err != nil {
		return err
	}
	var ratios, ones, twos []float64
	for i := range r.rounds {
		r.say("A7: one controller, then two, round %d of %d", i+1, r.rounds)
		if err := r.refill(ctx, db, r.backlog()); err != nil {
			return err
		}
		one, err := load.Run(ctx, host.Address, r.duration, clientsOf(pollers, false))
		if err != nil {
			return err
		}
		if err := r.refill(ctx, db, r.backlog()); err != nil {
			return err
		}
		two, err := runBoth(ctx, r.duration, host.Address, second.Address, clientsOf(pollers, false))
		if err != nil {
			return err
		}
		ones, twos, ratios = append(ones, one.Rate()), append(twos, two), append(ratios, two/one.Rate())
	}
	r.add(figure{
		name: "A7", what: fmt.Sprintf("assigned polls, two controllers on one database against one, %d connections", n),
		measured: fmt.Sprintf("%.0f/s, one %.0f/s", median(twos), median(ones)),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.9, nothing twice", met: median(ratios) >= .9,
	})
	return r.checkHandedOutOnce(ctx, db, pollers)
}

// runBoth lets one half of the clients work at a, the other at b.
func runBoth(ctx context.Context, d time.Duration, a, b string, clients []load.Client) (rate float64, err error) {
	type outcome struct {
		res load.Result
		err error
	}
	other := make(chan outcome, 1)
	go func() {
		res, err := load.Run(ctx, b, d, clients[len(clients)/2:])
		other <- outcome{res, err}
	}()
	res, err := load.Run(ctx, a, d, clients[:len(clients)/2])
	o := <-other
	if err == nil {
		err = o.err
	}
	return res.Rate() + o.res.Rate(), err
}
