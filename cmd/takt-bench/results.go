package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/http/client"
)

// finisher ends the builds that its poller holds, one after the other, as `takt worker` does: with
// a result, or with a failure, which has no file.
type finisher struct {
	*poller
	fails         bool
	next          bool // it asks for the next build, which the answer may bring
	at            int  // of its jobs, those before it have ended
	carried       int  // builds that came so
	kind          string
	before, after string // the form of a result, around the build's id
	began         time.Time
	took          []time.Duration
}

func newFinisher(p *poller, fails bool) *finisher {
	const mark, octets = "@", "Content-Type: application/octet-stream\r\n"
	form, kind := formOf("result", "result.ipa", "build_id", mark, "worker_id", p.id, "success", "true")
	form = strings.Replace(form, octets, octets+"Content-Digest: "+client.FormatDigest(resultDigest())+"\r\n", 1)
	f := &finisher{poller: p, fails: fails, kind: kind}
	f.before, f.after, _ = strings.Cut(form, mark)
	return f
}

// resultDigest is that of the files of formOf.
func resultDigest() [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Repeat("s", submitSource)))
}

// end appends the report that a build has ended.
func (f *finisher) end(buf []byte, build string) []byte {
	path, kind, body := "upload", f.kind, ""
	if f.fails {
		path, kind, body = "fail", "application/json", `{"build_id":"`+build+`","error":"build command failed: exit code 1"}`
	} else {
		body = f.before + build + f.after
	}
	headers := "X-Build-Id: " + build + "\r\nX-Worker-Id: " + f.id + "\r\nX-Build-Attempt: 1\r\nContent-Type: " + kind + "\r\n"
	if f.next {
		path += "?next=1"
		headers += "X-Worker-Token: " + f.token + "\r\n"
	}
	return request(buf, "POST /api/workers/"+path, f.key, headers, body)
}

// Next implements load.Client.
func (f *finisher) Next(buf []byte) []byte {
	if f.at == len(f.jobs) {
		return nil
	}
	f.began = time.Now()
	return f.end(buf, f.jobs[f.at])
}

// Got implements load.Client.
func (f *finisher) Got(status int, body []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("the end of a build: status %d: %s", status, body)
	}
	f.at++
	f.took = append(f.took, time.Since(f.began))
	if _, ok := cut(body, `"access_token":"`); !ok || !f.next {
		return nil
	}
	had := len(f.jobs)
	err := f.poller.Got(status, body)
	f.carried += len(f.jobs) - had
	return err
}

// holds is true if it has a build that has not ended.
func (f *finisher) holds() bool { return f.at < len(f.jobs) }

// taker polls until its poller has so many jobs.
type taker struct {
	*poller
	from, until int
}

// Next implements load.Client.
func (t *taker) Next(buf []byte) []byte {
	if len(t.jobs) >= t.until {
		return nil
	}
	return t.poll(buf, "?wait=1")
}

// begun makes what was handed out look as it does just before its end: the worker has begun
// it, and was heard a moment ago.
const begun = `
UPDATE builds SET state = 'building', started_at = now(), last_seen_at = now() + interval '1 hour' WHERE state = 'assigned';
VACUUM builds, workers;
`

// ending is a controller whose workers end builds.
type ending struct {
	*controller
	all []*finisher
}

// endings starts takt and the older one, nil if there is none.
func (r *run) endings(ctx context.Context, name string) (own, was *ending) {
	own = &ending{controller: r.start(ctx, name)}
	if older := r.startOlder(ctx, name+"-older"); older != nil {
		was = &ending{controller: older}
	}
	return own, was
}

// finishers are new workers, each with a connection of its own.
func (c *ending) finishers(ctx context.Context, n int, fails bool) (out []*finisher) {
	for _, p := range c.pollers(ctx, n) {
		p.either = true
		out = append(out, newFinisher(p, fails))
	}
	c.all = append(c.all, out...)
	return out
}

func pollersOf(all []*finisher) (out []*poller) {
	for _, f := range all {
		out = append(out, f.poller)
	}
	return out
}

// give lets each of these hold at least n builds, whose sources are there as after a submit.
func (c *ending) give(ctx context.Context, to []*finisher, n int) {
	var takers []*taker
	missing := 0
	for _, f := range to {
		if lacks := n - len(f.jobs) + f.at; lacks > 0 {
			missing += lacks
			takers = append(takers, &taker{f.poller, len(f.jobs), len(f.jobs) + lacks})
		}
	}
	c.renew(ctx, pollersOf(to))
	if missing == 0 {
		return
	}
	c.refill(ctx, missing+1000) // some are locked by another poll
	must.Get(load.Run(ctx, c.Address, time.Hour, clients(takers)))
	c.db.exec(ctx, begun)
	source := bytes.Repeat([]byte("s"), submitSource)
	for _, t := range takers {
		for _, id := range t.jobs[t.from:] {
			path := c.file(id, "source.zip")
			must.Do(errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, source, 0o600)))
		}
	}
	syscall.Sync() // else the first results would have to write all this
}

// file is where a file of a build is.
func (c *controller) file(build, name string) string {
	return filepath.Join(c.DataDir, "files", "builds", build, name)
}

// finishing takes a load of finishers. Who has none left ends early, so each gets half as many
// again as it ended in the load before; the first is not measured.
func (c *ending) finishing(ctx context.Context, d time.Duration, all []*finisher) take {
	load := func(n int) sample {
		c.give(ctx, all, n)
		return c.loaded(ctx, d, clients(all))
	}
	last := load(10)
	return func(int) sample {
		last = load(1 + int(1.5*last.Rate()*d.Seconds())/len(all))
		return last
	}
}

// results takes A12.
func (r *run) results(ctx context.Context) {
	own, was := r.endings(ctx, "results")
	load := func(c *ending, fails bool) take {
		if c == nil {
			return nil
		}
		return c.finishing(ctx, r.duration, c.finishers(ctx, connections, fails))
	}
	r.versus(versus{
		name: "A12", what: fmt.Sprintf("results of %d bytes, %d connections, against the older takt", submitSource, connections),
		theirs: load(was, false), own: load(own, false), least: 3, most: .35, also: ", none lost or twice",
	})
	r.versus(versus{
		name: "A12", what: fmt.Sprintf("failures without a file, %d connections, against the older takt", connections),
		theirs: load(was, true), own: load(own, true), least: 5, most: .2, also: ", none lost or twice",
	})
	r.besideUpload(ctx, own, was)
	own.check(ctx)
}

const (
	// besideRate is how many results a second come while a large one is uploaded, over so many connections.
	besideRate        = 200
	besideConnections = 16
)

// besideUpload adds how long small results take while a large one is uploaded.
func (r *run) besideUpload(ctx context.Context, own, was *ending) {
	content, _ := r.content("beside.bin", int64(resultSize*min(1, r.duration.Seconds()/10)))
	loads := map[*ending]func() (quiet, busy time.Duration){}
	for _, c := range []*ending{own, was} {
		if c != nil {
			loads[c] = c.beside(ctx, r.duration, content)
		}
	}
	var quiet, busy, before []time.Duration
	for i := range r.rounds {
		r.say("A12: results beside an upload of %d MiB, round %d of %d", content.Size/mib, i+1, r.rounds)
		if was != nil {
			_, b := loads[was]()
			before = append(before, b)
		}
		q, b := loads[own]()
		quiet, busy = append(quiet, q), append(busy, b)
	}
	f := figure{
		name: "A12", what: fmt.Sprintf("%d results of %d bytes a second while one of %d MiB is uploaded: p99", besideRate, submitSource, content.Size/mib),
		measured: fmt.Sprintf("%s, without the upload %s", round(median(busy)), round(median(quiet))), alone: was == nil,
	}
	if was != nil {
		f.measured += fmt.Sprintf(", older %s", round(median(before)))
		f.ratio = fmt.Sprintf("%.2f", float64(median(busy))/float64(median(before)))
	}
	r.add(f)
}

// beside measures the p99 of small results, first alone and then for as long as content is uploaded.
func (c *ending) beside(ctx context.Context, d time.Duration, content client.Content) func() (quiet, busy time.Duration) {
	own := c.finishers(ctx, besideConnections, false)
	p99 := func(ctx context.Context, d time.Duration) time.Duration {
		for _, f := range own {
			f.took = nil
		}
		must.Get(load.Run(ctx, c.Address, d, at(besideRate, clients(own))))
		var took load.Result
		for _, f := range own {
			took.Latencies = append(took.Latencies, f.took...)
		}
		slices.Sort(took.Latencies)
		return took.Quantile(.99)
	}
	return func() (quiet, busy time.Duration) {
		c.give(ctx, own, 1+int(besideRate*(d+30*time.Second).Seconds())/len(own))
		holder := own[0]
		last := len(holder.jobs) - 1
		held := client.Held{BuildID: holder.jobs[last], WorkerID: holder.id, Attempt: 1}
		holder.jobs = holder.jobs[:last]
		quiet = p99(ctx, d/2)
		uploading, uploaded := context.WithCancelCause(ctx)
		sent := must.Beside(func() {
			defer uploaded(errors.New("uploaded"))
			must.Get(c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content}))
		})
		err := must.Try(func() { busy = p99(uploading, 30*time.Second) })
		must.Do(errors.Join(err, sent(), os.Truncate(c.file(held.BuildID, "result.ipa"), 0))) // each round makes one
		c.all = append(c.all, &finisher{poller: &poller{id: held.WorkerID, jobs: []string{held.BuildID}}, at: 1})
		return quiet, busy
	}
}

// check looks for every build whose end was answered: it has ended once, as its worker said, with
// one result or none.
func (c *ending) check(ctx context.Context) {
	var given strings.Builder
	ended := 0
	for _, f := range c.all {
		state := "completed"
		if f.fails {
			state = "failed"
		}
		for _, id := range f.jobs[:f.at] {
			fmt.Fprintf(&given, "%s\t%s\t%s\n", id, f.id, state)
			if _, err := os.Stat(c.file(id, "result.ipa")); (err == nil) == f.fails {
				must.Do(fmt.Errorf("%w: build %s has %s, its file: %w", errBroken, id, state, err))
			}
		}
		ended += f.at
	}
	c.db.expect(ctx, "builds whose end was acknowledged and is lost, or was recorded twice",
		"CREATE TEMP TABLE given (id text, worker text, state text);\nCOPY given FROM STDIN;\n"+given.String()+"\\.\nANALYZE given;\n"+`
SELECT count(*) FROM given g LEFT JOIN build_ids i USING (id) LEFT JOIN builds b USING (seq)
	WHERE b.worker_id IS DISTINCT FROM g.worker OR b.state <> g.state OR b.attempt <> 1
	OR (SELECT count(*) FROM build_logs l WHERE l.build = b.seq AND l.kind IN ('completed', 'failed')) <> 1
	OR (SELECT count(*) FROM build_files f WHERE f.build = b.seq AND f.kind = 'result') <> (g.state = 'completed')::int;`, 0)
	c.db.expect(ctx, "builds that have ended", `SELECT count(*) FROM builds WHERE completed_at IS NOT NULL`, ended)
	c.db.expect(ctx, "builds that workers say have ended", `SELECT sum(completed + failed) FROM workers`, ended)
	c.db.expect(ctx, "builds that workers hold beyond those that are held",
		`SELECT (SELECT sum(held) FROM workers) - (SELECT count(*) FROM builds WHERE state IN ('assigned', 'building'))`, 0)
}

// posts takes A12b.
func (r *run) posts(ctx context.Context) {
	own, was := r.endings(ctx, "posts")
	lines := map[*ending]int{}
	load := func(c *ending, n int) take {
		if c == nil {
			return nil
		}
		c.refill(ctx, 2*connections)
		holders := c.pollers(ctx, connections)
		c.holding(ctx, holders)
		var all []*repeater
		for _, p := range holders {
			all = append(all, repeaters(1, p.logs(p.jobs[0], logsOf(n)), 200)...)
		}
		return func(int) sample {
			s := c.loaded(ctx, r.duration, clients(all))
			lines[c] += n * s.Requests
			return s
		}
	}
	for _, row := range []struct {
		n    int
		what string
		most float64
	}{{1, "one log line", 0}, {10, "ten log lines", .45}} {
		r.versus(versus{
			name: "A12b", what: fmt.Sprintf("posts of %s, %d connections, against the older takt", row.what, connections),
			theirs: load(was, row.n), own: load(own, row.n), most: row.most, also: ", none lost",
		})
	}
	own.db.expect(ctx, "log lines", `SELECT count(*) FROM build_logs WHERE by_worker`, lines[own])
}

// logsOf is a post of n log lines.
func logsOf(n int) string {
	return `{"logs":[` + strings.Repeat(`{"level":"info","message":"CompileSwift normal arm64 Feature/View.swift"},`, n-1) + oneLine + `]}`
}
