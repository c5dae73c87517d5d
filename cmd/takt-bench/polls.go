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
func (c *controller) refill(ctx context.Context, n int) error {
	if err := c.db.exec(ctx, fmt.Sprintf(fill, n)); err != nil {
		return err
	}
	return c.awaitMetric(ctx, "takt_queue_pending_builds", func(n float64) bool { return n > 0 })
}

// polls takes A2, A3 and A7.
func (r *run) polls(ctx context.Context) error {
	host, err := r.start(ctx, "polls")
	if err != nil {
		return err
	}
	naive := host.db
	naive.name = "naive"
	if err := r.prepareNaive(ctx, host.db, naive); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		take func(ctx context.Context, host *controller, naive database) error
	}{{"A3", r.idlePolls}, {"A2", r.assignedPolls}, {"A7", r.twoControllers}} {
		if r.wanted(m.name) {
			if err := m.take(ctx, host, naive); err != nil {
				r.missing(m.name, err)
			}
		}
	}
	return nil
}

// prepareNaive makes the database that the naive scripts work on, on the same
// server.
func (r *run) prepareNaive(ctx context.Context, db, naive database) error {
	for _, name := range []string{"assigned.sql", "idle.sql", "setup.sql"} {
		if _, err := os.Stat(filepath.Join(r.scripts, name)); err != nil {
			return fmt.Errorf("the naive scripts are not in %s: run from takt's source directory or give --scripts: %w", r.scripts, err)
		}
	}
	if err := db.exec(ctx, "CREATE DATABASE naive"); err != nil {
		return err
	}
	_, err := naive.run(ctx, "psql", "", "-X", "-q", "-v", fmt.Sprintf("workers=%d", connections), "-v", "pending=1000",
		"-f", filepath.Join(r.scripts, "setup.sql"))
	return err
}

func (r *run) idlePolls(ctx context.Context, host *controller, naive database) error {
	pollers, err := host.pollers(ctx, connections)
	if err != nil {
		return err
	}
	idle := host.polling(r.duration, pollers, true)
	p, err := r.turns(ctx, "A3: naive idle polls, then takt's", func(ctx context.Context, _ int) (sample, error) {
		return naive.pgbench(ctx, filepath.Join(r.scripts, "idle.sql"), connections, r.duration)
	}, idle)
	if err != nil {
		return err
	}
	r.add(figure{
		name: "A3", what: fmt.Sprintf("idle polls over HTTP, %d connections, against naive pgbench", connections),
		measured: fmt.Sprintf("%s, naive %.0f/s", &p.own, p.peer.rate()), cpu: p.own.cpu().String(),
	}.atLeast(p.ratio(), 2.2, ""))
	p, err = r.turns(ctx, "A3: the trivial route, then idle polls", host.loading(r.duration, host.trivial(connections, 400)), idle)
	if err != nil {
		return err
	}
	r.add(figure{
		name: "A3", what: "the same against the trivial route of the same server",
		measured: fmt.Sprintf("%s, trivial %.0f/s", &p.own, p.peer.rate()), cpu: p.cpu(),
	}.atLeast(p.ratio(), .75, ""))
	return nil
}

func (r *run) assignedPolls(ctx context.Context, host *controller, naive database) error {
	for i, n := range []int{connections, manyConnections} {
		pollers, err := host.pollers(ctx, n)
		if err != nil {
			return err
		}
		p, err := r.turns(ctx, fmt.Sprintf("A2: naive polls, then takt's over %d connections", n), func(ctx context.Context, _ int) (sample, error) {
			err := naive.exec(ctx, fmt.Sprintf(naiveFill, int(6_000*max(r.duration.Seconds(), 1))))
			if err = errors.Join(err, host.refill(ctx, r.backlog())); err != nil {
				return sample{}, err
			}
			return naive.pgbench(ctx, filepath.Join(r.scripts, "assigned.sql"), connections, r.duration)
		}, host.polling(r.duration, pollers, false))
		if err != nil {
			return err
		}
		r.add(figure{
			name: "A2", what: fmt.Sprintf("assigned polls over HTTP, %d connections, against naive pgbench without HTTP", n),
			measured: fmt.Sprintf("%s, naive %.0f/s", &p.own, p.peer.rate()), cpu: p.own.cpu().String(),
		}.atLeast(p.ratio(), []float64{4.5, 7}[i], ""))
		if err := host.db.checkHandedOutOnce(ctx, pollers); err != nil {
			return err
		}
	}
	return nil
}

// checkHandedOutOnce compares what the workers were given with what the
// database says: nothing twice, nothing lost.
func (d database) checkHandedOutOnce(ctx context.Context, pollers []*poller) error {
	seen := map[string]bool{}
	var values strings.Builder
	for _, p := range pollers {
		for _, id := range p.jobs {
			if seen[id] {
				return fmt.Errorf("%w: build %s was handed out twice", errBroken, id)
			}
			seen[id] = true
			fmt.Fprintf(&values, "%s\t%s\n", id, p.id)
		}
	}
	script := "CREATE TEMP TABLE given (id text, worker text);\nCOPY given FROM STDIN;\n" + values.String() + "\\.\nANALYZE given;\n" + `
SELECT count(*) FROM given g LEFT JOIN build_ids i USING (id) LEFT JOIN builds b USING (seq)
	WHERE b.worker_id IS DISTINCT FROM g.worker OR b.attempt <> 1 OR b.state <> 'assigned';`
	if err := d.none(ctx, "builds that a worker was given and the database does not know as its own", script); err != nil {
		return err
	}
	return d.expect(ctx, "builds assigned to the run's workers", "SELECT count(*) FROM builds WHERE worker_id IN ("+idsOf(pollers)+")", len(seen))
}

// idsOf is a list of workers' ids, for SQL.
func idsOf(pollers []*poller) string {
	ids := make([]string, len(pollers))
	for i, p := range pollers {
		ids[i] = "'" + p.id + "'"
	}
	return strings.Join(ids, ",")
}

// twoControllers takes A7.
func (r *run) twoControllers(ctx context.Context, host *controller, _ database) error {
	second, err := r.start(ctx, "second", host.Shared()...)
	if err != nil {
		return err
	}
	const n = 256
	pollers, err := host.pollers(ctx, n)
	if err != nil {
		return err
	}
	all := polling(pollers, false)
	p, err := r.turns(ctx, "A7: one controller, then two", func(ctx context.Context, _ int) (sample, error) {
		if err := host.refill(ctx, r.backlog()); err != nil {
			return sample{}, err
		}
		if err := host.renew(ctx, pollers); err != nil {
			return sample{}, err
		}
		res, err := load.Run(ctx, host.Address, r.duration, all)
		return sample{Result: res}, err
	}, func(ctx context.Context, _ int) (sample, error) {
		if err := host.refill(ctx, r.backlog()); err != nil {
			return sample{}, err
		}
		if err := host.renew(ctx, pollers); err != nil {
			return sample{}, err
		}
		ended := make(chan error, 1)
		var other load.Result
		go func() {
			var err error
			other, err = load.Run(ctx, second.Address, r.duration, all[n/2:])
			ended <- err
		}()
		res, err := load.Run(ctx, host.Address, r.duration, all[:n/2])
		err = errors.Join(err, <-ended)
		res.Requests += other.Requests
		return sample{Result: res}, err
	})
	if err != nil {
		return err
	}
	r.add(figure{
		name: "A7", what: fmt.Sprintf("assigned polls, two controllers on one database against one, %d connections", n),
		measured: fmt.Sprintf("%.0f/s, one %.0f/s", p.own.rate(), p.peer.rate()),
	}.atLeast(p.ratio(), .9, ", nothing twice"))
	return host.db.checkHandedOutOnce(ctx, pollers)
}

// alone takes A11 for polls: what one worker waits for while nobody else is there.
func (r *run) alone(ctx context.Context) error {
	host, err := r.start(ctx, "alone")
	if err != nil {
		return err
	}
	pollers, err := host.pollers(ctx, 2) // who holds builds is not idle
	if err != nil {
		return err
	}
	p, err := r.turns(ctx, "A11: one connection, the trivial route, then idle polls",
		host.loading(r.duration/2, host.trivial(1, 400)), host.polling(r.duration/2, pollers[:1], true))
	if err != nil {
		return err
	}
	assigned, err := r.turns(ctx, "A11: one connection, assigned polls", nil, func(ctx context.Context, _ int) (sample, error) {
		if err := host.refill(ctx, int(4_000*r.duration.Seconds())); err != nil {
			return sample{}, err
		}
		return host.polling(r.duration/2, pollers[1:], false)(ctx, 0)
	})
	if err != nil {
		return err
	}
	p50, peer := median(p.own.p50), median(p.peer.p50)
	ratio, cpu := float64(p50)/float64(peer), float64(p.own.cpu().takt)/float64(max(p.peer.cpu().takt, 1))
	r.add(figure{
		name: "A11", what: "an idle poll over one connection against the trivial route: p50 and takt's CPU",
		measured: fmt.Sprintf("p50 %s, trivial %s", round(p50), round(peer)), cpu: p.cpu(),
		ratio: fmt.Sprintf("%.2f; %.2f", ratio, cpu), target: "≤ 1.3; ≤ 1.3", met: ratio <= 1.3 && cpu <= 1.3,
	})
	p50 = median(assigned.own.p50)
	r.add(figure{
		name: "A11", what: "an assigned poll over one connection", measured: assigned.own.String(), cpu: assigned.own.cpu().String(),
		ratio: fmt.Sprintf("%.2f ms", p50.Seconds()*1000), target: "≤ 1.0 ms", met: p50 <= time.Millisecond,
	})
	return host.db.checkHandedOutOnce(ctx, pollers)
}

const (
	submitters   = 16
	submitSource = 2_000
)

// newSubmitters submit one small build after the other.
func newSubmitters(key string) []*repeater {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	source, _ := w.CreateFormFile("source", "source.zip") // a buffer takes everything
	_, _ = source.Write(bytes.Repeat([]byte("s"), submitSource))
	_ = w.WriteField("platform", "ios")
	_ = w.Close()
	return repeaters(submitters, request(nil, "POST /api/builds", key, "Content-Type: "+w.FormDataContentType()+"\r\n", body.String()), 201)
}

// submits takes A11 for submits.
func (r *run) submits(ctx context.Context) error {
	host, err := r.start(ctx, "submits")
	if err != nil {
		return err
	}
	older, err := r.startOlder(ctx, "submits-older")
	if err != nil {
		return err
	}
	var peer take
	if older != nil {
		peer = older.loading(r.duration, clients(newSubmitters(older.APIKey)))
	}
	own := newSubmitters(host.APIKey)
	p, err := r.turns(ctx, fmt.Sprintf("A11: submits over %d connections", submitters), peer, host.loading(r.duration, clients(own)))
	if err != nil {
		return err
	}
	f := figure{
		name: "A11", what: fmt.Sprintf("submits of %d bytes, %d connections, against the older takt", submitSource, submitters),
		measured: p.own.String(), cpu: p.own.cpu().String(), target: "≥ 2, none lost", alone: older == nil,
	}
	if older != nil {
		f.measured += fmt.Sprintf(", older %s, %s", &p.peer, p.peer.cpu())
		f = f.atLeast(p.ratio(), 2, ", none lost")
	}
	r.add(f)
	total := 0
	for _, s := range own {
		total += len(s.took)
	}
	return host.db.expect(ctx, "builds with their source", `SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'source'`, total)
}
