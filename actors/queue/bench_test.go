package queue_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

// fill adds n pending builds the short way.
const fill = `
WITH b AS (INSERT INTO builds (id, platform, token_hash)
SELECT 'build-' || lpad(to_hex(hashint8extended(i, 0)), 15, '0'), 'ios', '\x00' FROM generate_series(1, $1::bigint) i RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`

// naivePolls is how many polls the naive peer is timed over.
const naivePolls = 20_000

// BenchmarkQueue measures polls per second through the actor, in process, on a
// server that syncs every commit, and how many times as many that is as a
// transaction for each poll serves just before (x-naive, 64 clients of pgbench).
func BenchmarkQueue(b *testing.B) {
	for _, kind := range []string{"assigned", "idle"} {
		for _, pollers := range []int{64, 256, 1024} {
			var naive float64
			b.Run(fmt.Sprintf("%s/pollers=%d", kind, pollers), func(b *testing.B) {
				if naive == 0 {
					naive = storetest.Naive(b, kind, 64, naivePolls)
				}
				benchmarkQueue(b, pollers, kind == "assigned", naive)
			})
		}
	}
}

func benchmarkQueue(b *testing.B, pollers int, assigned bool, naive float64) {
	b.Helper()
	db := storetest.Durable(b)
	c := newController(b, db.DB)
	reqs := make([]store.PollRequest, pollers)
	for i := range reqs {
		reqs[i] = storetest.Worker(b, db.DB, func(r *store.Registration) { r.Slots = 1 << 30 }).Request()
	}
	if assigned {
		_, err := db.Pool.Exec(b.Context(), fill, max(100_000, b.N+2*pollers))
		require.NoError(b, err)
	}
	_, err := db.Pool.Exec(b.Context(), "VACUUM ANALYZE")
	require.NoError(b, err)

	var turn, jobs atomic.Int64
	latencies := make([][]time.Duration, pollers)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range pollers {
		wg.Go(func() {
			for turn.Add(1) <= int64(b.N) {
				start := time.Now()
				reply, err := c.queue.Poll(b.Context(), reqs[i], 0)
				if err != nil {
					b.Error(err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(start))
				reqs[i] = c.next(b, reqs[i], reply)
				if reply.Jobs.First() != nil {
					jobs.Add(1)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	rate := float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "polls/s")
	b.ReportMetric(rate/naive, "x-naive")
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
	s := c.queue.Stats()
	b.ReportMetric(float64(s.Polls)/float64(max(s.Batches, 1)), "polls/batch")
	var handed, attempts int64
	require.NoError(b, db.Pool.QueryRow(b.Context(),
		`SELECT count(*) FILTER (WHERE state = 'assigned'), coalesce(sum(attempt), 0) FROM builds`).Scan(&handed, &attempts))
	require.Equal(b, []int64{jobs.Load(), jobs.Load()}, []int64{handed, attempts}, "nothing lost, nothing twice")
	if assigned {
		require.EqualValues(b, b.N, jobs.Load(), "every poll got a build")
	}
}
