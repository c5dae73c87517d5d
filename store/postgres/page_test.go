package postgres_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// paged is a list of ids that is read page by page.
type paged struct {
	name string
	read func(ctx context.Context, p store.Page) (ids []string, next store.Cursor, err error)
	// add adds the n-th further row.
	add string
	// bounded lists take Until and Skip.
	bounded bool
}

// listOf makes a list of ids of a method of the store.
func listOf[T any](read func(ctx context.Context, p store.Page) ([]T, store.Cursor, error), id func(T) string) func(context.Context, store.Page) ([]string, store.Cursor, error) {
	return func(ctx context.Context, p store.Page) (ids []string, next store.Cursor, err error) {
		rows, next, err := read(ctx, p)
		for _, r := range rows {
			ids = append(ids, id(r))
		}
		return ids, next, err
	}
}

const (
	addBuild = `WITH b AS (INSERT INTO builds (id, platform, token_hash, state, worker_id, started_at, completed_at, priority) SELECT 'b' || $1::int, 'ios', '\x00', s,
			CASE s WHEN 'building' THEN 'w1' END, CASE s WHEN 'building' THEN now() END, CASE WHEN s IN ('failed', 'completed') THEN now() END, $1::int % 3
		FROM (SELECT (ARRAY['pending', 'building', 'failed', 'completed'])[$1::int % 4 + 1] AS s) x RETURNING id, seq),
		l AS (INSERT INTO build_labels (build, labels) SELECT seq, '{"a": "b"}' FROM b WHERE $1::int % 3 = 0)
		INSERT INTO build_ids SELECT id, seq FROM b`
	addWorker = `WITH d AS (INSERT INTO worker_details (worker_id, name, capabilities) VALUES ('w' || $1::int, 'Machine ' || $1::int % 4, '{}'))
		INSERT INTO workers (id, slots, completed, failed, draining, critical) VALUES ('w' || $1::int, 1 + $1::int % 3, $1::int % 3, $1::int % 2, $1::int % 5 = 0, $1::int % 7 = 0)`
	addAudit      = `INSERT INTO audit (actor, action, target, reason, detail) SELECT 'tester', 'restart', 'takt/part-' || $1::int, '', '{}'`
	addDeployment = `INSERT INTO deployments (id, request, credential_id, created_at) SELECT 'd' || $1::int, '{}', 'x', timestamptz '2026-01-01' + $1::int / 3 * interval '1 hour'`
	addRepo       = `INSERT INTO deployment_repos (deployment_id, name, target, source, step, finished_at)
		SELECT 'd0', 'r' || $1::int, 'x', '{}', s, CASE WHEN s IN ('done', 'failed', 'skipped') THEN now() END
		FROM (SELECT (ARRAY['skipped', 'done', 'failed', 'planned', 'pushing'])[$1::int % 5 + 1] AS s) x`
	addRate  = `INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (1, $1::int * 7919 % 1009 + 8, 10, 1, 'second')`
	addQueue = `WITH q AS (INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) VALUES ('queue:1:' || $1::int || ':7:0', 1, $1::int, 7, '0') RETURNING seq)
		INSERT INTO action_executions (queue, portal_id, callback_id, expires_at, received_at)
		SELECT seq, 1, 'c' || $1::int, now() + interval '1 day', now() - $1::int % 6 * interval '1 s' FROM q WHERE $1::int % 3 > 0`
)

// pagedLists are all lists of b's database.
func pagedLists(b *fixture) []paged {
	d, audit, deployments := postgres.NewDashboard(b.DB), postgres.NewAudit(b.DB), postgres.NewDeployments(b.DB)
	throttle := must(postgres.NewThrottle(b.DB))(b.t)
	all := []paged{
		{"the audit", listOf(func(ctx context.Context, p store.Page) ([]store.AuditEntry, store.Cursor, error) {
			return audit.List(ctx, "PART-", p)
		}, func(e store.AuditEntry) string { return e.Target }), addAudit, true},
		{"deployments", listOf(deployments.List, func(d store.Deployment) string { return d.ID }), addDeployment, true},
		{"repositories", listOf(func(ctx context.Context, p store.Page) ([]store.DeploymentRepo, store.Cursor, error) {
			return d.Repos(ctx, "d0", p)
		}, func(r store.DeploymentRepo) string { return r.Name }), addRepo, false},
		{"rates", listOf(func(ctx context.Context, p store.Page) ([]store.ThrottleConfig, store.Cursor, error) {
			return throttle.Configs(ctx, 1, p)
		}, func(c store.ThrottleConfig) string { return fmt.Sprint(c.ActionID) }), addRate, true},
		{"waiting builds", listOf(d.Waiting, func(b store.PendingBuild) string { return b.ID }), addBuild, false},
		{"running builds", listOf(d.Running, func(b store.RunningBuild) string { return b.ID }), addBuild, false},
	}
	for _, oldest := range []bool{true, false} {
		all = append(all, paged{fmt.Sprint("queues, oldest ", oldest), listOf(func(ctx context.Context, p store.Page) ([]store.QueueStatus, store.Cursor, error) {
			return throttle.Queues(ctx, 1, oldest, p)
		}, func(q store.QueueStatus) string { return q.ID }), addQueue, true})
	}
	for name, f := range map[string]store.BuildFilter{
		"all": {}, "pending": {States: []store.BuildState{store.Pending}}, "ended": {States: []store.BuildState{store.Failed}},
		"held": {States: []store.BuildState{store.Assigned, store.Building}}, "labelled": {Labels: store.Labels{"a": "b"}},
		"labelled and ended": {Labels: store.Labels{"a": "b"}, States: []store.BuildState{store.Failed}}, "not retried": {States: []store.BuildState{store.Failed}, Unretried: true},
	} {
		all = append(all, paged{"builds, " + name, listOf(func(ctx context.Context, p store.Page) ([]store.Build, store.Cursor, error) {
			return b.builds.List(ctx, f, p)
		}, func(b store.Build) string { return b.ID }), addBuild, true})
	}
	for _, sort := range []string{"", "name", "state", "used", "success", "seen"} {
		all = append(all, paged{"workers by " + sort, listOf(func(ctx context.Context, p store.Page) ([]store.WorkerDetail, store.Cursor, error) {
			return b.workers.List(ctx, store.WorkerFilter{Sort: sort}, p)
		}, func(w store.WorkerDetail) string { return w.ID }), addWorker, sort == ""})
	}
	return all
}

// unchecked is setup without its invariants, because rows are added without their kin.
func unchecked(t *testing.T) *fixture {
	t.Helper()
	db := storetest.New(t)
	return &fixture{Database: db, t: t, builds: postgres.NewBuilds(db.DB, postgres.BuildsConfig{}), workers: postgres.NewWorkers(db.DB)}
}

// Whoever walks a list page by page gets each row that was there from the first page to the
// last one, once and in order, while others are added.
func TestPagesHaveEachRowOnce(t *testing.T) {
	t.Parallel()
	b := unchecked(t)
	n := 0
	add := func(l paged) { n++; b.exec(l.add, n) }
	b.exec(`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (1, 7, 10, 1, 'second')`)
	b.exec(addDeployment, 0)
	all := pagedLists(b)
	for _, l := range all {
		for range 11 {
			add(l)
		}
	}
	for _, l := range all {
		want, next, err := l.read(t.Context(), store.Page{})
		require.NoError(t, err, l.name)
		require.Empty(t, next)
		require.GreaterOrEqual(t, len(want), 8, l.name)
		var got []string
		for p := (store.Page{}); ; p.After = next {
			p.Limit = 1 + rand.IntN(7)
			var ids []string
			ids, next, err = l.read(t.Context(), p)
			require.NoError(t, err, l.name)
			require.LessOrEqual(t, len(ids), p.Limit)
			got = append(got, ids...)
			if next == "" {
				break
			}
			require.Len(t, ids, p.Limit, "%s: a page that another one follows is full", l.name)
			if rand.IntN(3) == 0 {
				add(l)
			}
		}
		seen := slices.Clone(got)
		slices.Sort(seen)
		require.Len(t, slices.Compact(seen), len(got), "%s: no row twice", l.name)
		require.Equal(t, want, slices.DeleteFunc(got, func(id string) bool { return !slices.Contains(want, id) }), l.name)

		if l.bounded {
			want, _, err = l.read(t.Context(), store.Page{})
			require.NoError(t, err)
			_, first, err := l.read(t.Context(), store.Page{Limit: 2})
			require.NoError(t, err)
			ids, end, err := l.read(t.Context(), store.Page{After: first, Skip: 4, Limit: 1})
			require.NoError(t, err)
			require.Equal(t, want[6:7], ids, l.name)
			ids, next, err = l.read(t.Context(), store.Page{After: first, Until: end, Limit: 100})
			require.NoError(t, err)
			require.Equal(t, want[2:7], ids, l.name)
			require.Empty(t, next)
		}
	}
}

// What is no cursor of the list is refused, whatever it holds.
func TestForeignCursorsAreRefused(t *testing.T) {
	t.Parallel()
	b := unchecked(t)
	encode := base64.RawURLEncoding.EncodeToString
	for _, l := range pagedLists(b) {
		for _, c := range []store.Cursor{
			"x", "é", "*", store.Cursor(encode([]byte(`[]`))), store.Cursor(encode([]byte(`[1]`))), store.Cursor(encode([]byte(`[2,"builds",7]`))),
			store.NewCursor("another list", 7), store.NewCursor("another list", 7, "x"), store.NewCursor("builds", "7"), store.NewCursor("workers", nil),
			store.NewCursor("audit", 1.5), store.NewCursor("deployments", "yesterday", "x"),
		} {
			_, _, err := l.read(t.Context(), store.Page{After: c, Limit: 3})
			require.Equal(t, store.InvalidArgument, store.CodeOf(err), "%s: %s", l.name, c)
			require.ErrorContains(t, err, "Invalid cursor")
		}
	}
	_ = listed(b.builds.List(t.Context(), store.BuildFilter{}, store.Page{After: store.NewCursor("builds", 7)}))(t)
	_ = listed(b.workers.List(t.Context(), store.WorkerFilter{Sort: "name"}, store.Page{After: store.NewCursor("workers by name", "a\x00", "b\x00")}))(t)
	_, _, err := b.workers.List(t.Context(), store.WorkerFilter{Sort: "used"}, store.Page{After: store.NewCursor("workers by used", "x", "b")})
	require.Equal(t, store.InvalidArgument, store.CodeOf(err))
}

// Each page of a list is a range of an index, so that the last one costs as much as the
// first, and a search reads the builds that it is for and no others. Idle workers and queues by what they did are sorted instead.
func TestPagesAreRangesOfAnIndex(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	conn := must(pgx.ConnectConfig(t.Context(), db.Config))(t)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	constants := stringConstants(t)
	for _, sql := range []string{addBuild, addWorker, addAudit, addDeployment, addRate} {
		must(conn.Exec(t.Context(), `DO $$ BEGIN FOR i IN 1..900 LOOP `+strings.ReplaceAll(sql, "$1", "i")+`; END LOOP; END $$`))(t)
	}
	must(conn.Exec(t.Context(), `ANALYZE`))(t)
	must(conn.Exec(t.Context(), constants["sqlSession"]))(t)
	for name, index := range map[string]string{
		"sqlListBuilds": `builds_pkey .*\n\s+Index Cond: \(\(seq < \S+ AND \(seq >= .* AND \(seq > CASE `, "sqlListEnded": `builds_unsuccessful .*\n\s+Index Cond: \(\(seq < .* AND \(seq > CASE `,
		"sqlListUnretried": `builds_unsuccessful .*\n\s+Index Cond: \(\(seq < .* AND \(seq > CASE `,
		"sqlListPending":   `(?s)builds_in_order .*build_labels_pkey on build_labels l  [^\n]*\n\s+Index Cond: \(build = b_1\.seq\)`,
		"sqlListHeld":      `(?s)build_labels_pkey on build_labels l  [^\n]*\n\s+Index Cond: \(build = b_1\.seq\)`,
		"sqlListLabelled":  `build_labels_pkey .*\n\s+Index Cond: \(build < `, "sqlListWorkers": `workers_number .*\n\s+Index Cond: \(\(number > `,
		"sqlWorkersByName": `worker_details_name .*\n\s+Index Cond: \(ROW\(`, "sqlListAudit": `audit_pkey .*\n\s+Index Cond: \(\(id < `,
		"sqlListDeployments": `deployments_created .*\n\s+Index Cond: \(\(created_at <= `, "sqlConfigs": `throttle_configs_pkey .*\n\s+Index Cond: \(\(portal_id = .* AND \(action_id > `,
	} {
		statement := must(conn.Prepare(t.Context(), name, constants[name]))(t)
		rows := must(conn.Query(t.Context(), `EXPLAIN EXECUTE "`+name+`"(`+strings.TrimSuffix(strings.Repeat("NULL, ", len(statement.ParamOIDs)), ", ")+`)`, pgx.QueryExecModeSimpleProtocol))(t)
		lines := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		require.Regexp(t, index, strings.Join(lines, "\n"), name)
	}
}
