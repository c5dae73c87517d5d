package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime/multipart"
	"os"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// fill makes n pending builds. Their files are not there: nobody downloads them.
const fill = `
WITH b AS (INSERT INTO builds (id, platform, token_hash)
	SELECT left(md5(random()::text), 21), 'ios', '\x00' FROM generate_series(1, %d) RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b;
VACUUM ANALYZE builds;
`

// naiveFill does the same for the naive scripts.
const naiveFill = `
INSERT INTO naive_builds (id, platform, token_hash)
	SELECT left(md5(random()::text), 21), 'ios', '\x00' FROM generate_series(1, %d);
VACUUM ANALYZE naive_builds;
`

// backlog is more builds than a load can take.
func (r *run) backlog() int { return int(40_000 * r.duration.Seconds()) }

// refill makes n more builds pending. What is done behind its back takt finds by a count.
func (c *controller) refill(ctx context.Context, n int) {
	c.db.exec(ctx, fmt.Sprintf(fill, n))
	c.awaitMetric(ctx, "takt_queue_pending_builds", func(n float64) bool { return n > 0 })
}

// polls takes A2, A3 and A7.
func (r *run) polls(ctx context.Context) {
	host := r.start(ctx, "polls")
	naive := database(strings.Replace(string(host.db), "dbname=takt", "dbname=naive", 1))
	r.prepareNaive(ctx, host.db, naive)
	for _, m := range []struct {
		name string
		take func(ctx context.Context, host *controller, naive database)
	}{{"A3", r.idlePolls}, {"A2", r.assignedPolls}, {"A7", r.twoControllers}} {
		if r.wanted(m.name) {
			if err := must.Try(func() { m.take(ctx, host, naive) }); err != nil {
				r.missing(m.name, err)
			}
		}
	}
}

// prepareNaive makes the database that the naive scripts work on, on the same
// server.
func (r *run) prepareNaive(ctx context.Context, db, naive database) {
	if _, err := os.Stat(filepath.Join(r.scripts, "setup.sql")); err != nil {
		must.Do(fmt.Errorf("the naive scripts are not in %s: run from takt's source directory or give --scripts: %w", r.scripts, err))
	}
	db.exec(ctx, "CREATE DATABASE naive")
	naive.run(ctx, "psql", "", "-X", "-q", "-v", fmt.Sprintf("workers=%d", connections), "-v", "pending=1000",
		"-f", filepath.Join(r.scripts, "setup.sql"))
}

func (r *run) idlePolls(ctx context.Context, host *controller, naive database) {
	idle := host.polling(ctx, r.duration, host.pollers(ctx, connections), true)
	r.compare(comparison{
		name: "A3", what: fmt.Sprintf("idle polls over HTTP, %d connections, against naive pgbench", connections), peer: "naive",
		theirs: func(int) sample {
			return naive.pgbench(ctx, filepath.Join(r.scripts, "idle.sql"), connections, r.duration)
		}, own: idle, least: 2.2,
	})
	r.compare(comparison{
		name: "A3", what: "the same against the trivial route of the same server", peer: "trivial",
		theirs: host.loading(ctx, r.duration, host.trivial(connections, 400)), own: idle, least: .75,
	})
}

func (r *run) assignedPolls(ctx context.Context, host *controller, naive database) {
	for i, n := range []int{connections, manyConnections} {
		pollers := host.pollers(ctx, n)
		r.compare(comparison{
			name: "A2", what: fmt.Sprintf("assigned polls over HTTP, %d connections, against naive pgbench without HTTP", n), peer: "naive",
			theirs: func(int) sample {
				naive.exec(ctx, fmt.Sprintf(naiveFill, int(6_000*max(r.duration.Seconds(), 1))))
				host.refill(ctx, r.backlog())
				return naive.pgbench(ctx, filepath.Join(r.scripts, "assigned.sql"), connections, r.duration)
			}, own: host.polling(ctx, r.duration, pollers, false), least: []float64{4.5, 7}[i],
		})
		host.db.checkHandedOutOnce(ctx, pollers)
	}
}

// checkHandedOutOnce compares what the workers were given with what the
// database says: nothing twice, nothing lost.
func (d database) checkHandedOutOnce(ctx context.Context, pollers []*poller) {
	seen := map[string]*poller{}
	var values, ids strings.Builder
	for i, p := range pollers {
		for _, id := range p.jobs {
			if had := seen[id]; had == p && p.renewed {
				continue
			} else if had != nil {
				must.Do(fmt.Errorf("%w: build %s was handed out twice", errBroken, id))
			}
			seen[id] = p
			fmt.Fprintf(&values, "%s\t%s\n", id, p.id)
		}
		fmt.Fprintf(&ids, "%s'%s'", strings.Repeat(",", min(i, 1)), p.id)
	}
	script := "CREATE TEMP TABLE given (id text, worker text);\nCOPY given FROM STDIN;\n" + values.String() + "\\.\nANALYZE given;\n" + `
SELECT count(*) FROM given g LEFT JOIN build_ids i USING (id) LEFT JOIN builds b USING (seq)
	WHERE b.worker_id IS DISTINCT FROM g.worker OR b.attempt <> 1 OR b.state <> 'assigned';`
	d.expect(ctx, "builds that a worker was given and the database does not know as its own", script, 0)
	d.expect(ctx, "builds assigned to the run's workers", "SELECT count(*) FROM builds WHERE worker_id IN ("+ids.String()+")", len(seen))
}

// twoControllers takes A7.
func (r *run) twoControllers(ctx context.Context, host *controller, _ database) {
	second := r.start(ctx, "second", host.Shared()...)
	const n = 256
	pollers := host.pollers(ctx, n)
	all := polling(pollers, false)
	prepare := func() {
		host.refill(ctx, r.backlog())
		host.renew(ctx, pollers)
	}
	r.compare(comparison{
		name: "A7", what: fmt.Sprintf("assigned polls, two controllers on one database against one, %d connections", n), peer: "one",
		theirs: func(int) sample {
			prepare()
			return sample{Result: must.Get(load.Run(ctx, host.Address, r.duration, all))}
		}, own: func(int) sample {
			prepare()
			var other load.Result
			wait := must.Beside(func() { other = must.Get(load.Run(ctx, second.Address, r.duration, all[n/2:])) })
			res, err := load.Run(ctx, host.Address, r.duration, all[:n/2])
			must.Do(errors.Join(err, wait()))
			return work(res.Requests+other.Requests, res.Elapsed)
		}, least: .9, also: ", nothing twice",
	})
	host.db.checkHandedOutOnce(ctx, pollers)
}

// alone takes A11 for polls: what one worker waits for while nobody else is there.
func (r *run) alone(ctx context.Context) {
	host := r.start(ctx, "alone")
	pollers := host.pollers(ctx, 2) // who holds builds is not idle
	p := r.turns("A11: one connection, the trivial route, then idle polls",
		host.loading(ctx, r.duration/2, host.trivial(1, 400)), host.polling(ctx, r.duration/2, pollers[:1], true))
	assigned := r.turns("A11: one connection, assigned polls", nil, func(int) sample {
		host.refill(ctx, int(4_000*r.duration.Seconds()))
		return host.polling(ctx, r.duration/2, pollers[1:], false)(0)
	})
	p50, peer := median(p.own.p50), median(p.peer.p50)
	r.add(figure{
		name: "A11", what: "an idle poll over one connection against the trivial route: p50 and takt's CPU",
		measured: fmt.Sprintf("p50 %s, trivial %s", round(p50), round(peer)), cpu: p.cpu(),
	}.both(float64(p50)/float64(peer), p.cpuRatio(), 1.3))
	p50 = median(assigned.own.p50)
	r.add(figure{
		name: "A11", what: "an assigned poll over one connection", measured: assigned.own.String(), cpu: assigned.cpu(),
		ratio: fmt.Sprintf("%.2f ms", p50.Seconds()*1000), target: "≤ 1.0 ms", met: p50 <= time.Millisecond,
	})
	host.db.checkHandedOutOnce(ctx, pollers)
}

const (
	submitters   = 16
	submitSource = 2_000
)

// newSubmitters submit one small build after the other.
func newSubmitters(key string, n int) []*repeater {
	form, kind := formOf("source", "source.zip", "platform", "ios")
	return repeaters(n, request(nil, "POST /api/builds", key, "Content-Type: "+kind+"\r\n", form), 201)
}

// formOf is a form with a file of some bytes and fields, and its type.
func formOf(file, name string, fields ...string) (form, kind string) {
	var body bytes.Buffer // it takes everything
	w := multipart.NewWriter(&body)
	for i := 1; i < len(fields); i += 2 {
		_ = w.WriteField(fields[i-1], fields[i])
	}
	part, _ := w.CreateFormFile(file, name)
	_, _ = part.Write(bytes.Repeat([]byte("s"), submitSource))
	_ = w.Close()
	return body.String(), w.FormDataContentType()
}

// submits takes A11 for submits.
func (r *run) submits(ctx context.Context) {
	host, older := r.start(ctx, "submits"), r.startOlder(ctx, "submits-older")
	var peer take
	if older != nil {
		peer = older.loading(ctx, r.duration, clients(newSubmitters(older.APIKey, submitters)))
	}
	own := newSubmitters(host.APIKey, submitters)
	r.versus(versus{
		name: "A11", what: fmt.Sprintf("submits of %d bytes, %d connections, against the older takt", submitSource, submitters),
		theirs: peer, own: host.loading(ctx, r.duration, clients(own)), least: 2, also: ", none lost",
	})
	total := 0
	for _, s := range own {
		total += len(s.took)
	}
	host.db.expect(ctx, "builds with their source", `SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'source'`, total)
}
