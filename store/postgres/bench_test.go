package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// fill adds n pending builds the short way.
const fill = `
WITH b AS (INSERT INTO builds (id, platform, token_hash)
SELECT 'build-' || lpad(to_hex(hashint8extended(i, 0)), 15, '0'), 'ios', '\x00' FROM generate_series(1, $1::bigint) i RETURNING id, seq)
INSERT INTO build_ids SELECT id, seq FROM b`

// BenchmarkAssign measures polls per second with two batches under way, on a
// server that syncs every commit.
func BenchmarkAssign(b *testing.B) {
	for _, pending := range []int{0, 100_000} {
		for _, batch := range []int{1, 32, 64, 256} {
			kind := "idle"
			if pending > 0 {
				kind = "assigned"
			}
			b.Run(fmt.Sprintf("%s/batch=%d", kind, batch), func(b *testing.B) {
				benchmarkAssign(b, pending, batch)
			})
		}
	}
}

func benchmarkAssign(b *testing.B, pending, batch int) {
	b.Helper()
	db := storetest.Durable(b)
	queue := postgres.NewQueue(db.DB, postgres.QueueConfig{})
	if pending > 0 {
		_, err := db.Pool.Exec(b.Context(), fill, max(pending, b.N+2*batch))
		require.NoError(b, err)
	}
	const inFlight = 2
	pollers := make([][]store.Poll, inFlight)
	for i := range pollers {
		for range batch {
			w := storetest.Worker(b, db.DB, func(r *store.Registration) { r.Slots = 1 << 30 })
			pollers[i] = append(pollers[i], store.Poll{Worker: w.Token.Worker, WorkerID: w.ID, Shown: w.Token.Counter, Used: w.Token.Counter})
		}
	}
	_, err := db.Pool.Exec(b.Context(), "VACUUM ANALYZE")
	require.NoError(b, err)
	b.ResetTimer()
	var wg sync.WaitGroup
	var jobs [inFlight]int
	for i := range inFlight {
		wg.Go(func() {
			for n := i * batch; n < b.N; n += inFlight * batch {
				jobs[i] += assignBatch(b, queue, pollers[i])
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "polls/s")
	checkHandedOut(b, db, jobs[0]+jobs[1])
	if pending > 0 {
		require.GreaterOrEqual(b, jobs[0]+jobs[1], b.N, "every poll got a build")
	}
}

// assignBatch serves the polls and makes them the workers' next ones.
func assignBatch(b *testing.B, queue *postgres.Queue, polls []store.Poll) (jobs int) {
	b.Helper()
	results, err := queue.Assign(b.Context(), polls)
	if err != nil {
		b.Error(err)
		return 0
	}
	for i, r := range results {
		if r.Outcome != store.PollServed {
			b.Errorf("outcome %d", r.Outcome)
		}
		polls[i].Shown, polls[i].Session, polls[i].Known = next(r), r.Session, true
		polls[i].Used = polls[i].Shown
		if r.Job != nil {
			jobs++
		}
	}
	return jobs
}

// checkHandedOut compares what pollers got with what the tables say.
func checkHandedOut(tb testing.TB, db *storetest.Database, jobs int) {
	tb.Helper()
	var assigned, attempts, logged, held int
	err := db.Pool.QueryRow(tb.Context(), `SELECT
		(SELECT count(*) FROM builds WHERE state = 'assigned'),
		(SELECT coalesce(sum(attempt), 0) FROM builds),
		(SELECT count(*) FROM build_logs WHERE message LIKE 'Assigned to worker %'),
		(SELECT coalesce(sum(held), 0) FROM workers)`).Scan(&assigned, &attempts, &logged, &held)
	require.NoError(tb, err)
	require.Equal(tb, []int{jobs, jobs, jobs, jobs}, []int{assigned, attempts, logged, held},
		"builds assigned, attempts, log lines, builds held")
}
