package http_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

func TestActiveBuildsAreWhatTheMenuReads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	requireBody(t, `{"builds":[]}`, b.send("GET", "/api/builds/active", key(), ""))
	s, w := b.assigned()
	b.submit()
	r := b.send("GET", "/api/builds/active", key(), "")
	require.Equal(t, 200, r.status)
	requireShape(t, "active_builds", r)
	active := decode[api.ActiveBuilds](t, r)
	require.Len(t, active.Builds, 1)
	require.Equal(t, s.ID, active.Builds[0].ID)
	require.Equal(t, w.ID, active.Builds[0].WorkerID)
	require.Regexp(t, `"started_at":\d{13}[,}]`, r.body)
}

func TestShowAndStatistics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	b.submit()
	cancelled := b.submit()
	require.Equal(t, 200, b.send("POST", "/api/builds/"+cancelled.ID+"/cancel", key(), "").status)
	r := b.send("GET", "/api/builds/"+s.ID, key(), "")
	require.Equal(t, 200, r.status)
	item := decode[api.BuildItem](t, r)
	require.Equal(t, "assigned", item.Status)
	require.Equal(t, "w", *item.WorkerName)
	require.Regexp(t, `"createdAt":"\d{4}-`, r.body)
	require.Regexp(t, `"submitted_at":"\d{4}-`, r.body)
	require.False(t, item.HasResult)
	require.Contains(t, b.send("GET", "/api/builds/"+cancelled.ID, key(), "").body, `"status":"failed","state":"cancelled"`)
	require.Contains(t, b.send("GET", "/api/builds/statistics", key(), "").body, `{"total":3,"pending":1,"assigned":1,"building":0,"completed":0,"failed":0,"cancelled":1`)
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	r = b.send("GET", "/api/builds/statistics", key(), "")
	requireShape(t, "statistics", r)
	require.Contains(t, r.body, `{"total":3,"pending":1,"assigned":0,"building":0,"completed":1,"failed":0,"cancelled":1`)
	require.True(t, decode[api.BuildItem](t, b.send("GET", "/api/builds/"+s.ID, key(), "")).HasResult)
}

// Who is online is one number, and that some of them get no builds another one.
func TestAllAgreeAboutWhoIsOnline(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	d.register("well")
	drained, quiet := d.register("drained").ID, d.register("quiet").ID
	require.Equal(t, 303, d.act("/fleet/"+drained+"/drain", "reason=a+test").status)
	_, err := d.pool.Exec(t.Context(), `UPDATE workers SET last_seen_at = now() - interval '3 min' WHERE id = $1`, quiet)
	require.NoError(t, err)
	require.Equal(t, 2, decode[api.Stats](t, d.send("GET", "/api/stats", nil, "")).NodesOnline)
	require.Contains(t, d.send("GET", "/", nil, "").body, "<dt>workers online</dt><dd>2</dd>")
	recent := decode[api.Statistics](t, d.send("GET", "/api/builds/statistics", key(), "")).Recent
	require.Equal(t, &api.RecentStatistics{WorkersOnline: 2, WorkersServed: 1}, recent)
	require.Contains(t, d.get("/overview").body, `<a href="/fleet">2 workers online, 1 gets builds</a>`)
}

func TestPublicStatsAreReal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	require.Equal(t, 200, b.telemetry(s.ID, w.ID, `{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":50,"memory_mb":1}}`).status)
	require.Equal(t, 200, b.telemetry(s.ID, w.ID, `{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":150,"memory_mb":1}}`).status)
	_, err := b.pool.Exec(t.Context(), `UPDATE builds SET started_at = now() - interval '100 s' WHERE id = $1`, s.ID)
	require.NoError(t, err)
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	b.submit()
	r := b.send("GET", "/public/stats", map[string]string{"Origin": "https://example.org"}, "")
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "stats", r)
	require.Equal(t, "https://example.org", r.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "public, max-age=10", r.header.Get("Cache-Control"))
	st := decode[api.Stats](t, r)
	require.Equal(t, 1, st.NodesOnline)
	require.Equal(t, 1, st.BuildsQueued)
	require.Zero(t, st.ActiveBuilds)
	require.EqualValues(t, 1, st.BuildsToday)
	require.EqualValues(t, 1, st.TotalBuilds)
	require.InDelta(t, 100_000, st.TotalBuildTimeMS, 50_000)
	require.InDelta(t, st.TotalBuildTimeMS/1000, st.TotalCPUCycles, 1, "100 %% on average")
	require.Equal(t, r.body, b.send("GET", "/api/stats", nil, "").body)
}

// counting counts how often the totals were asked for.
type counting struct {
	takthttp.Builds
	n    *atomic.Int64
	fail *atomic.Bool
}

func (c counting) Totals(ctx context.Context) (store.Totals, error) {
	c.n.Add(1)
	if c.fail.Load() {
		return store.Totals{}, store.Wrap(store.Unavailable, "Database unavailable, try again later", errors.New("away"))
	}
	return c.Builds.Totals(ctx)
}

func TestPublicStatsAreCountedOnce(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	var fail atomic.Bool
	fail.Store(true)
	b := setupWith(t, func(d *takthttp.Deps) { d.Builds = counting{d.Builds, &n, &fail} })
	require.Equal(t, 503, b.send("GET", "/api/stats", nil, "").status)
	fail.Store(false)
	var answers []<-chan reply
	for range 20 {
		answers = append(answers, begin(t, b.client, "GET", b.url+"/api/stats", nil, nil))
	}
	for _, a := range answers {
		require.Equal(t, 200, (<-a).status)
	}
	require.EqualValues(t, 2, n.Load(), "an error is not kept, an answer is")
	b.submit()
	require.Contains(t, b.send("GET", "/api/stats", nil, "").body, `"buildsQueued":0`, "for ten seconds")
}
