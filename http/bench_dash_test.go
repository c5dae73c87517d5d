package http_test

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/store/postgres"
	"takt/store/storetest"
)

// crowd are the statements that make what BenchmarkPages shows: 100 000 builds, of which
// 20 000 wait and 100 run, one with a log of 10 MB; 10 000 workers; and some of the rest.
var crowd = []string{
	`WITH w AS (INSERT INTO workers (id, held, status, platforms) SELECT 'worker-' || i, 0, CASE WHEN i % 10 = 0 THEN 'offline' ELSE 'idle' END,
		CASE WHEN i % 3 = 0 THEN '{ios}'::text[] ELSE '{}' END FROM generate_series(1, 10000) i RETURNING id)
	INSERT INTO worker_details SELECT id, 'machine ' || id, '{"version":"1.2.3"}' FROM w`,
	`INSERT INTO worker_telemetry (worker_id, build_id, at, type, cpu_percent, memory_mb, disk_percent)
	SELECT id, 'build-1', now(), 'cpu_snapshot', 50, 4000, 40 FROM workers`,
	`WITH b AS (INSERT INTO builds (id, platform, token_hash, submitted_at, state, worker_id, attempt, started_at, completed_at, error_message)
		SELECT 'build-' || i, CASE WHEN i % 1000 = 0 THEN 'ios' ELSE 'android' END, '\x00', now() - (100000 - i) * interval '1 s',
			s, CASE WHEN s <> 'pending' THEN 'worker-' || i % 10000 + 1 END, 2, CASE WHEN s <> 'pending' THEN now() - (99990 - i) * interval '1 s' END,
			CASE WHEN s IN ('completed', 'failed') THEN now() - (99000 - i) * interval '1 s' END, CASE WHEN s = 'failed' THEN 'it failed' END
		FROM generate_series(1, 100000) i, LATERAL (SELECT CASE WHEN i > 80000 THEN 'pending' WHEN i > 79900 THEN 'building'
			WHEN i % 100 = 0 THEN 'failed' ELSE 'completed' END AS s) x
		RETURNING id, seq)
	INSERT INTO build_ids SELECT id, seq FROM b`,
	`INSERT INTO build_labels SELECT seq, '{"branch":"main"}' FROM builds`,
	`INSERT INTO build_logs (build, message, kind, worker, attempt, facts) SELECT seq, kind, l.* FROM builds, (VALUES
		('submitted', NULL, NULL::int, NULL::jsonb), ('assigned', 'worker-7', 1, NULL), ('progress', NULL, NULL, '{"percent": 50}')) l (kind, worker, attempt, facts)`,
	`INSERT INTO build_logs (build, message, by_worker) SELECT (SELECT seq FROM build_ids WHERE id = 'build-79950'), repeat('x', 100), true FROM generate_series(1, 100000)`,
	`INSERT INTO audit (actor, action, target, reason, outcome) SELECT 'tester', 'drain', 'worker/' || i, 'a reason', 'done' FROM generate_series(1, 20000) i`,
	`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (1, 7, 100, 10, 'second')`,
	`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) SELECT 'queue:1:' || i || ':7:0', 1, i, 7, '0' FROM generate_series(1, 2000) i`,
	`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at) SELECT seq, 1, seq || '-' || i, now() + interval '1 day'
	FROM throttle_queues, generate_series(1, 20) i WHERE seq % 2 = 0`,
	`INSERT INTO deployments (id, request, state, credential_id, planned_at, created_at)
	SELECT 'd' || i, '{"source_org":"from","target_org":"to"}', 'paused', 'x', now(), now() - i * interval '1 hour' FROM generate_series(1, 200) i`,
	`INSERT INTO deployment_repos (deployment_id, name, target, source, step, finished_at) SELECT 'd' || d, 'r' || r, 'r' || r, '{}', 'done', now()
	FROM generate_series(1, 200) d, generate_series(1, CASE WHEN d = 1 THEN 10000 ELSE 100 END) r`,
	`VACUUM ANALYZE`,
}

// pageTarget is what a page may take with as much to show as crowd makes.
const pageTarget = 50 * time.Millisecond

// BenchmarkPages is whole pages over a connection. Its metric of-target is the part of
// pageTarget that a page takes.
func BenchmarkPages(b *testing.B) {
	db := storetest.New(b)
	for _, sql := range crowd {
		_, err := db.Pool.Exec(b.Context(), sql)
		require.NoError(b, err)
	}
	tree, deploying := newTreeWithOrders(), newDeploying(db.DB)
	throttle, err := postgres.NewThrottle(db.DB)
	require.NoError(b, err)
	s, _ := newServerWith(b, takthttp.Deps{
		Builds: postgres.NewBuilds(db.DB, postgres.BuildsConfig{}), Workers: postgres.NewWorkers(db.DB),
		ThrottleStore: throttle, DeploymentStore: deploying, Heijunka: &lever{}, Tree: tree.tree, Operator: tree,
	}, postgres.NewDashboard(db.DB))
	at, _ := serve(b, s, listen(b))
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	resp, err := client.PostForm(at+"/login", url.Values{"key": {adminKey}, "name": {"bench"}})
	require.NoError(b, err)
	resp.Body.Close()
	require.Equal(b, http.StatusSeeOther, resp.StatusCode)
	cookie, _, _ := strings.Cut(resp.Header.Get("Set-Cookie"), ";")
	position := int64(0)
	require.NoError(b, db.Pool.QueryRow(b.Context(), `SELECT position FROM builds WHERE id = 'build-99000'`).Scan(&position))
	for name, path := range map[string]string{
		"fleet": "/fleet", "fleet by state": "/fleet?sort=state", "fleet by part of a name": "/fleet?q=0099", "worker": "/fleet/worker-7",
		"queue": "/queue", "queue at its end": "/queue?" + url.Values{"after": {strconv.FormatInt(position, 10)}}.Encode(),
		"builds": "/builds", "failed builds": "/builds?state=failed", "cancelled builds (none)": "/builds?state=cancelled",
		"builds of the last minutes (none)": "/builds?state=completed&platform=ios&age=1s", "builds by label (none)": "/builds?label=a%3Db",
		"build": "/builds/build-79950", "waiting build": "/builds/build-99000", "log": "/builds/build-79950/log?before=200000",
		"tree": "/tree", "heijunka": "/heijunka", "throttle": "/throttle", "deployments": "/deployments", "deployment": "/deployments/d1",
		"audit": "/audit", "audit (none)": "/audit?q=nobody", "search": "/search?q=machine",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, at+path, nil)
				require.NoError(b, err)
				req.Header.Set("Cookie", cookie)
				resp, err := client.Do(req)
				require.NoError(b, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(b, err)
				resp.Body.Close()
				require.Equal(b, http.StatusOK, resp.StatusCode, string(body))
				b.SetBytes(int64(len(body)))
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(pageTarget), "of-target")
		})
	}
}
