package throttle_test

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/actors/throttle"
	"takt/store"
	"takt/store/storetest"
)

const intakeClients = 64

// intake lets clients call do for a while and returns calls per second and the
// latency that 99 of 100 did not exceed.
func intake(b *testing.B, duration time.Duration, do func(ctx context.Context, n int64) error) (rate float64, p99 time.Duration) {
	b.Helper()
	var n atomic.Int64
	took := make([][]time.Duration, intakeClients)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range intakeClients {
		wg.Go(func() {
			for time.Since(begin) < duration {
				start := time.Now()
				if err := do(b.Context(), n.Add(1)); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return float64(len(all)) / time.Since(begin).Seconds(), all[len(all)*99/100]
}

// naive makes actions durable by one INSERT each, over so many connections. It
// does less than takt: it keeps no queues, and has no jobs for them.
func naive(b *testing.B, db *storetest.Database, connections int32, duration time.Duration) (rate float64) {
	b.Helper()
	cfg, err := pgxpool.ParseConfig(db.Config.ConnString())
	require.NoError(b, err)
	cfg.ConnConfig, cfg.MaxConns = db.Config.Copy(), connections
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	require.NoError(b, err)
	defer pool.Close()
	begun := time.Now().UnixNano()
	rate, _ = intake(b, duration, func(ctx context.Context, n int64) error {
		_, err := pool.Exec(ctx, `INSERT INTO naive (queue, portal_id, callback_id, expires_at) VALUES ($1, $2, $3, now() + interval '1 hour')
			ON CONFLICT DO NOTHING`, n%8, portal, fmt.Sprintf("%d-%d", begun, n))
		return err
	})
	return rate
}

// BenchmarkIntake is D1: actions made durable per second, 64 clients, against one
// INSERT per action in the same program, on a server with fsync. The peer has as
// many connections as served it best. The two take turns, and the median of the
// ratios counts. It ends with the count that nothing was lost, and that each queue
// has its job. The garbage collector has the headroom that it has in takt.
func BenchmarkIntake(b *testing.B) {
	const turn, turns, queues = 1500 * time.Millisecond, 5, 8
	defer debug.SetGCPercent(debug.SetGCPercent(600))
	t := setup(b, storetest.Durable(b), throttle.Config{}, nil)
	t.rate(1, store.Day)
	_, err := t.db.Pool.Exec(b.Context(), `CREATE TABLE naive (LIKE action_executions INCLUDING ALL)`)
	require.NoError(b, err)
	var keys [queues]store.QueueKey
	for i := range keys {
		keys[i] = actionOf(i, 0).Queue
	}
	var done atomic.Int64
	for b.Loop() {
		connections, best := int32(0), 0.0
		for _, n := range []int32{16, 32, intakeClients} {
			if rate := naive(b, t.db, n, turn); rate > best {
				connections, best = n, rate
			}
		}
		var rates, peers, ratios, slow []float64
		for range turns {
			peer := naive(b, t.db, connections, turn)
			begun := time.Now().UnixNano()
			rate, p99 := intake(b, turn, func(ctx context.Context, n int64) error {
				_, err := t.Accept(ctx, store.Action{Queue: keys[n%queues], CallbackID: fmt.Sprintf("%d-%d", begun, n), Expires: time.Hour})
				if err == nil {
					done.Add(1)
				}
				return err
			})
			rates, peers, ratios = append(rates, rate), append(peers, peer), append(ratios, rate/peer)
			slow = append(slow, float64(p99.Microseconds())/1000)
		}
		var rows, jobs int64
		require.NoError(b, t.db.Pool.QueryRow(b.Context(), `SELECT count(*), (SELECT count(*) FROM throttle_queues q JOIN river_job j ON j.id = q.job_id
			WHERE j.state IN ('available', 'running', 'scheduled', 'retryable')) FROM action_executions`).Scan(&rows, &jobs))
		require.Equal(b, done.Load(), rows)
		require.EqualValues(b, queues, jobs)
		for name, list := range map[string][]float64{"actions/s": rates, "inserts/s": peers, "ratio": ratios, "p99-ms": slow} {
			slices.Sort(list)
			b.ReportMetric(list[len(list)/2], name)
		}
	}
}
