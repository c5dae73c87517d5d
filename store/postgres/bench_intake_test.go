package postgres_test

import (
	"crypto/sha256"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// together calls do b.N times from n goroutines.
func together(b *testing.B, n int, do func() error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := do(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

// BenchmarkSubmit measures submits per second on a server that syncs every commit: far
// from the queue limit, with an idempotency key each, and near the limit.
func BenchmarkSubmit(b *testing.B) {
	for _, c := range []struct {
		name       string
		submitters int
		keys       bool
		near       bool
	}{{"plain", 1, false, false}, {"plain", 64, false, false}, {"keys", 64, true, false}, {"near", 16, false, true}} {
		b.Run(fmt.Sprintf("%s/submitters=%d", c.name, c.submitters), func(b *testing.B) {
			db := storetest.Durable(b)
			limit := 1 << 30
			if c.near {
				limit = b.N + 1
			}
			builds := postgres.NewBuilds(db.DB, postgres.BuildsConfig{QueueLimit: limit})
			together(b, c.submitters, func() error {
				id := store.NewID()
				s := store.Submission{ID: id, Platform: store.IOS, TokenHash: store.HashToken(id), Source: storetest.File("builds/"+id+"/source.zip", id)}
				if c.keys {
					s.Once = &store.Once{Key: sha256.Sum256([]byte(id)), Seal: func(store.Build) ([]byte, error) { return []byte(id), nil }}
				}
				_, err := builds.Submit(b.Context(), s)
				return err
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "submits/s")
		})
	}
}

// BenchmarkAccept measures webhooks per second, two batches at a time, on a server that
// syncs every commit.
func BenchmarkAccept(b *testing.B) {
	for _, c := range []struct{ batch, queues, repeats int }{{16, 8, 0}, {128, 8, 0}, {500, 8, 0}, {500, 400, 0}, {128, 8, 2}} {
		b.Run(fmt.Sprintf("batch=%d/queues=%d/repeats=1of%d", c.batch, c.queues, c.repeats), func(b *testing.B) {
			db := storetest.Durable(b)
			th, err := postgres.NewThrottle(db.DB)
			require.NoError(b, err)
			_, err = th.PutConfig(b.Context(), store.ThrottleConfig{PortalID: portal, ActionID: 1, MaxThroughput: 1, TimePeriod: 1, TimeUnit: store.Day})
			require.NoError(b, err)
			var n atomic.Int64
			together(b, 2, func() error {
				actions := make([]store.Action, c.batch)
				for i := range actions {
					nr := n.Add(1)
					if c.repeats > 0 && i%c.repeats == 0 {
						nr = max(nr/2, 1)
					}
					actions[i] = store.Action{Queue: queueOf(int(nr) % c.queues), CallbackID: fmt.Sprint("c-", nr), Expires: time.Hour}
				}
				_, err := th.Accept(b.Context(), actions)
				return err
			})
			b.ReportMetric(float64(b.N*c.batch)/b.Elapsed().Seconds(), "actions/s")
		})
	}
}

// BenchmarkLog reads pages of a log of 500 000 lines.
func BenchmarkLog(b *testing.B) {
	db := storetest.New(b)
	id := store.NewID()
	_, err := postgres.NewBuilds(db.DB, postgres.BuildsConfig{}).Submit(b.Context(), store.Submission{
		ID: id, Platform: store.IOS, TokenHash: store.HashToken(id), Source: storetest.File("builds/"+id+"/source.zip", id),
	})
	require.NoError(b, err)
	_, err = db.Pool.Exec(b.Context(), `WITH b AS (UPDATE builds SET log_lines = 500000, log_bytes = 50000000 RETURNING seq) INSERT INTO build_logs (build, number, message, by_worker)
		SELECT b.seq, n, 'line ' || n || ': CompileSwift normal arm64 /Users/ci/App/Sources/View.swift (in target App)', true FROM b, generate_series(2, 500000) n ORDER BY n`)
	require.NoError(b, err)
	d := postgres.NewDashboard(db.DB)
	page := func(at int64, err error) error {
		if err == nil {
			_, err = d.LogPage(b.Context(), id, at, 500, 500)
		}
		return err
	}
	for name, read := range map[string]func() error{
		"last": func() error { return page(math.MaxInt64, nil) },
		"middle": func() error {
			at, _, err := d.FindLine(b.Context(), id, 250_000)
			return page(at, err)
		},
		"search": func() error {
			_, _, err := d.SearchLog(b.Context(), id, "nothing like it", 0, 100)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, read())
			}
		})
	}
}
