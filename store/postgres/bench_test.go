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

// poller polls with the token that it got last, as a worker does.
type poller struct {
	token string
	next  string
}

func (p *poller) poll() store.Poll {
	p.next = store.NextWorkerToken(p.token)
	return store.Poll{Token: store.HashToken(p.token), Next: store.HashToken(p.next)}
}

// BenchmarkServe measures polls per second with two batches in flight, on a
// server that syncs every commit.
func BenchmarkServe(b *testing.B) {
	for _, pending := range []int{0, 100_000} {
		for _, batch := range []int{1, 32, 64, 256} {
			kind := "idle"
			if pending > 0 {
				kind = "assigned"
			}
			b.Run(fmt.Sprintf("%s/batch=%d", kind, batch), func(b *testing.B) {
				benchmarkServe(b, pending, batch)
			})
		}
	}
}

func benchmarkServe(b *testing.B, pending, batch int) {
	b.Helper()
	db := storetest.Durable(b)
	queue := postgres.NewQueue(db.DB, postgres.QueueConfig{})
	if pending > 0 {
		_, err := db.Pool.Exec(b.Context(), fill, max(pending, b.N+2*batch))
		require.NoError(b, err)
	}
	const inFlight = 2
	pollers := make([][]poller, inFlight)
	for i := range pollers {
		for range batch {
			w := storetest.Worker(b, db.DB, func(r *store.Registration) { r.Slots = 1 << 30 })
			pollers[i] = append(pollers[i], poller{token: w.Plain})
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
				jobs[i] += serveBatch(b, queue, pollers[i])
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

func serveBatch(b *testing.B, queue *postgres.Queue, pollers []poller) (jobs int) {
	b.Helper()
	polls := make([]store.Poll, len(pollers))
	for i := range pollers {
		polls[i] = pollers[i].poll()
	}
	results, err := queue.Serve(b.Context(), polls)
	if err != nil {
		b.Error(err)
		return 0
	}
	for i, r := range results {
		if r.Outcome != store.PollAnswered {
			b.Errorf("outcome %d", r.Outcome)
		}
		pollers[i].token = pollers[i].next
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
