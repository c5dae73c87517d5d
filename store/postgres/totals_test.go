package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// history adds ended builds of an age, a minute long each, behind the store's back.
const history = `WITH b AS (INSERT INTO builds (id, platform, state, worker_id, token_hash, started_at, completed_at)
SELECT 'old-' || $2::text || '-' || $3::text || i, 'ios', $2, 'w', '', now() - $1::interval - interval '1 min', now() - $1::interval
FROM generate_series(1, $4::int) i RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`

func (b *fixture) totals() store.Totals {
	b.t.Helper()
	return must(b.builds.Totals(b.t.Context()))(b.t)
}

func TestTotalsAreTheSameWhereverBuildsAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(history, 72*time.Hour, "completed", "a", 7)
	b.exec(history, 72*time.Hour, "failed", "a", 5)
	b.exec(history, 72*time.Hour, "cancelled", "a", 3)
	b.exec(history, 10*time.Second, "failed", "b", 2) // too young to be moved
	want := store.Totals{Completed: 7, Failed: 7, Cancelled: 3, BuildTime: 14 * time.Minute}
	for range 3 {
		require.Equal(t, want, b.totals())
	}
	require.Equal(t, 15, b.count(`SELECT sum(completed + failed + cancelled) FROM build_days`), "history is moved once")

	// What is moved is not read again: without its rows the totals are the same.
	b.exec(`DELETE FROM builds WHERE completed_at < now() - interval '1 h'`)
	require.Equal(t, want, b.totals())
	// Nor is it counted twice when the young ones have grown old.
	b.exec(`UPDATE builds SET completed_at = completed_at - interval '3 min', started_at = started_at - interval '3 min'`)
	b.exec(`UPDATE rollup SET up_to = now() - interval '5 min'`)
	require.Equal(t, want, b.totals())
	require.Equal(t, want, b.totals())
}

func TestTotalsMoveALongHistoryInSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(history, 48*time.Hour, "completed", "a", 50_001) // one more than a step takes
	b.exec(history, 24*time.Hour, "completed", "b", 1000)
	want := store.Totals{Completed: 51_001, BuildTime: 51_001 * time.Minute}
	require.Equal(t, want, b.totals())
	require.EqualValues(t, want.Completed, b.count(`SELECT sum(completed) FROM build_days`), "all steps of one call")
	require.Equal(t, want, b.totals())
}

// Controllers count at the same time, and one that has just started knows what
// all others have counted.
func TestTotalsOfManyControllersAgree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(history, 48*time.Hour, "completed", "a", 1000)
	var counts sync.WaitGroup
	for range 8 {
		counts.Go(func() {
			builds := postgres.NewBuilds(b.DB, postgres.BuildsConfig{})
			for range 5 {
				got, err := builds.Totals(t.Context())
				if err != nil || got.Completed != 1000 {
					t.Errorf("%d completed, %v", got.Completed, err)
				}
			}
		})
	}
	counts.Wait()
	require.EqualValues(t, 1000, b.totals().Completed)
}

func TestTodayBeginsAtMidnightUTC(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = []string{"day_totals", "build_result"} // these builds ended in the past, and nobody built them
	midnight := func(offset string) {
		b.exec(`WITH b AS (INSERT INTO builds (id, platform, state, worker_id, token_hash, started_at, completed_at)
			SELECT 'b' || $1, 'ios', 'completed', 'w', '', m, m FROM (
				SELECT date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' + $1::interval AS m) x RETURNING id, seq)
			INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`, offset)
	}
	midnight("-1 ms")
	midnight("0 ms")
	require.EqualValues(t, 1, b.totals().CompletedToday, "wherever the server is")
	b.exec(`UPDATE rollup SET up_to = 'infinity'`)
	b.exec(`DELETE FROM build_days`)
	b.exec(`INSERT INTO build_days (day, completed) VALUES ((now() AT TIME ZONE 'UTC')::date, 5), ((now() AT TIME ZONE 'UTC')::date - 1, 9)`)
	got := b.totals()
	require.EqualValues(t, 5, got.CompletedToday)
	require.EqualValues(t, 14, got.Completed)
}

func TestTotalsOfTheFleet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, away := b.worker(), b.worker()
	b.exec(`UPDATE workers SET last_seen_at = now() - interval '3 min' WHERE id = $1`, away.id)
	require.Equal(t, 1, b.totals().WorkersOnline)
	build := b.build()
	w.gets(build.ID)
	require.Equal(t, 1, b.totals().Assigned)
	cpu := func(percent float64) {
		must(b.builds.Telemetry(t.Context(), w.heartbeat(build.ID), store.Telemetry{Type: "cpu_snapshot", CPUPercent: &percent}))(t)
	}
	cpu(50)
	cpu(250)
	must(b.builds.Telemetry(t.Context(), w.heartbeat(build.ID), store.Telemetry{Type: "monitor_started"}))(t)
	got := b.totals()
	require.InDelta(t, 150, got.CPUPercent, 1e-9)
	require.Equal(t, 1, got.Building)
	must(b.workers.Delete(t.Context(), w.id))(t)
	require.InDelta(t, 150, b.totals().CPUPercent, 1e-9, "a deleted worker's share stays")
}

// What the totals cost must not grow with the number of builds that ended.
func TestTotalsReadNoHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(history, 48*time.Hour, "completed", "a", 30_000)
	b.totals() // prepares a session of the pool, too
	b.exec(`ANALYZE`)
	rows := must(b.Pool.Query(t.Context(), `EXPLAIN (ANALYZE, TIMING OFF) `+stringConstants(t)["sqlTotals"]))(t)
	text := strings.Join(must(pgx.CollectRows(rows, pgx.RowTo[string]))(t), "\n")
	require.Contains(t, text, "builds_ended")
	require.NotRegexp(t, `builds\w* on builds.*rows=30000`, text)
}
