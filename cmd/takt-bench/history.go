package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// fillHistory makes builds that ended over the last two years, with ten lines and two
// files each, a hundred thousand at a time.
const fillHistory = `
SET synchronous_commit = off;
WITH b AS (INSERT INTO builds (id, platform, token_hash, state, worker_id, attempt, submitted_at, started_at, last_seen_at, completed_at, updated_at, log_bytes, log_lines)
	SELECT left(md5('b' || i), 21), CASE i %% 2 WHEN 0 THEN 'ios' ELSE 'android' END, sha256(i::text::bytea),
		CASE WHEN i %% 20 = 3 THEN 'failed' WHEN i %% 100 = 7 THEN 'cancelled' ELSE 'completed' END,
		'worker-' || i %% 5000, 1, t, t + interval '20 s', t + interval '9 min', t + interval '10 min', t + interval '10 min', 700, 10
	FROM generate_series(%[1]d, %[2]d) i, LATERAL (SELECT now() - interval '2 years' + interval '729 days' * (i::float8 / %[3]d) AS t) x RETURNING id, seq, submitted_at),
k AS (INSERT INTO build_ids (id, seq) SELECT id, seq FROM b),
l AS (INSERT INTO build_logs (build, number, at, message, by_worker, kind, worker, attempt)
	SELECT seq, n, submitted_at + n * interval '50 s', 'CompileSwift normal arm64 /builds/app/Sources/Feature' || (seq * 7 + n) %% 1000 || '/View.swift',
		n <> 1, CASE n WHEN 1 THEN 'assigned' END, CASE n WHEN 1 THEN 'worker-' || seq %% 5000 END, CASE n WHEN 1 THEN 1 END FROM b, generate_series(1, 10) n)
INSERT INTO build_files (build, kind, name, size, sha256)
	SELECT seq, kind, 'builds/' || id || '/' || kind, 1000, sha256(id::bytea) FROM b, unnest(ARRAY['source', 'result']) kind;
`

// fill makes so many builds.
func (s *scale) fill(ctx context.Context, c *controller, builds int) {
	const step = 100_000
	for i := 1; i <= builds; i += step {
		s.say("history: %d of %d builds", i-1, builds)
		c.db.exec(ctx, fmt.Sprintf(fillHistory, i, min(i+step-1, builds), builds))
	}
	c.db.exec(ctx, "VACUUM (FREEZE, ANALYZE); CHECKPOINT;")
}

// history prints what a long history costs.
func (s *scale) history(ctx context.Context) {
	site, name := s.Site, "history"
	if s.dir != "" {
		site.Dir, name = filepath.Split(filepath.Clean(s.dir))
	}
	c := s.startAt(ctx, site, name)
	if s.dir == "" {
		s.fill(ctx, c, s.builds)
	}
	s.row("history of", c.db.number(ctx, "SELECT reltuples::bigint FROM pg_class WHERE relname = 'builds'"),
		megabytes(c.db.number(ctx, "SELECT pg_database_size(current_database())")))
	s.pages(ctx, c)
	c.refill(ctx, s.backlog())
	s.cost(ctx, c, "assigned poll", 1, polling(c.pollers(ctx, connections), false))
	s.say("history: pg_dump")
	begun := time.Now()
	c.db.run(ctx, "pg_dump", "", "-Fc", "-Z1", "-f", filepath.Join(s.Dir, "dump"))
	s.row("pg_dump -Fc -Z1", time.Since(begun).Round(100*time.Millisecond), megabytes(int(must.Get(os.Stat(filepath.Join(s.Dir, "dump"))).Size())))
	must.Do(s.end())
	s.say("history: a round of the janitor that removes the oldest hundredth")
	const age = "17345h" // 99 % of two years
	c = s.startAt(ctx, site, name, "TAKT_RETAIN=source="+age+",result="+age+",logs="+age)
	c.db.exec(ctx, "DELETE FROM settings WHERE key = 'chores'") // of the run before
	var before usage
	must.Do(c.Await(ctx, "a round of the janitor", c.storageProgress(ctx), func(ctx context.Context) (bool, error) {
		if n, err := c.Metric(ctx, "takt_storage_expired_sources_total"); n == 0 || err != nil {
			begun, before = time.Now(), c.usage() // it waits at first
			return false, err
		}
		n, err := c.Metric(ctx, "takt_storage_rounds_total")
		return n >= 1, err
	}))
	cost := c.usage().minus(before)
	s.row("retention", time.Since(begun).Round(10*time.Millisecond), fmt.Sprintf("%.0f builds", must.Get(c.Metric(ctx, "takt_storage_expired_logs_total"))),
		"takt", cost.takt, "PostgreSQL", cost.postgres)
}

func megabytes(bytes int) string { return fmt.Sprintf("%d MB", bytes/1_000_000) }

// storageProgress is what the janitor has removed so far.
func (c *controller) storageProgress(ctx context.Context) func() string {
	return func() string {
		var b strings.Builder
		for _, what := range []string{"sources", "results", "logs"} {
			n, err := c.Metric(ctx, "takt_storage_expired_"+what+"_total")
			if err != nil {
				return err.Error()
			}
			fmt.Fprintf(&b, "%.0f %s removed ", n, what)
		}
		return b.String()
	}
}

// pages prints how long pages and lists take, the median of five.
func (s *scale) pages(ctx context.Context, c *controller) {
	b := &load.Browser{Base: c.URL, Client: &http.Client{CheckRedirect: load.NoRedirects}, Key: c.APIKey}
	must.Do(b.Login(ctx, c.APIKey))
	id := c.db.exec(ctx, "SELECT id FROM builds ORDER BY seq LIMIT 1 OFFSET 10000")
	for _, path := range []string{
		"/builds", "/builds?state=failed", "/builds?q=worker-77", "/builds?q=nothing-has-this", "/queue", "/builds/" + id,
		"/api/builds?limit=100", "/api/builds?limit=100&state=failed", "/api/builds?limit=100&q=nothing-has-this", "/api/builds/" + id + "/logs", "/api/stats", "/metrics",
	} {
		accept, status, took := "text/html", 0, make([]time.Duration, 5)
		if strings.HasPrefix(path, "/api/") {
			accept = "application/json"
		}
		for i := range took {
			begun := time.Now()
			status = must.Get(b.Visit(ctx, path, accept, nil))
			took[i] = time.Since(begun)
		}
		s.row(strings.ReplaceAll(path, id, "ID"), status, median(took).Round(100*time.Microsecond), "first", took[0].Round(100*time.Microsecond))
	}
}
