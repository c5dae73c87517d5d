package throttle_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/actors/throttle"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/storetest"
)

// authorized does what an installer's browser does on HubSpot's page.
func authorized(tb testing.TB, at string) (state, code string) {
	tb.Helper()
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, at, http.NoBody)
	require.NoError(tb, err)
	resp, err := browser.Do(req)
	require.NoError(tb, err)
	require.NoError(tb, resp.Body.Close())
	back, err := url.Parse(resp.Header.Get("Location"))
	require.NoError(tb, err)
	return back.Query().Get("state"), back.Query().Get("code")
}

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

// BenchmarkDrain completes a backlog at a configured 1000 a second.
func BenchmarkDrain(b *testing.B) {
	const rate, count = 1000, 6000
	for b.Loop() {
		t := setup(b, storetest.Durable(b), throttle.Config{}, nil)
		t.install()
		t.rate(1, store.Day)
		t.send(portal, 1, count)
		t.rate(rate, store.Second)
		require.NoError(b, t.Portals.Wake(b.Context(), portal, map[string]int{actionOf(1, 0).Queue.ID(): 0}))
		require.Eventually(b, func() bool { return t.hs.Distinct() == count }, 2*time.Minute, time.Millisecond)
		list := t.hs.Completions()
		most := hubspottest.MostInAnyWindow(list, time.Second)
		require.LessOrEqual(b, most, rate)
		// The first period's worth goes at once.
		took := list[len(list)-1].At.Sub(list[rate-1].At)
		b.ReportMetric(float64(count-rate)/took.Seconds(), "completions/s")
		b.ReportMetric(float64(most), "most/window")
	}
}

// paced hands one action after the other over, at an even pace, and returns how
// long the half of them, and 99 of 100, took at most until HubSpot had them.
func (b *bundle) paced(workflow, count int, every time.Duration) (p50, p99 time.Duration) {
	b.tb.Helper()
	begun := make([]time.Time, count)
	var wg sync.WaitGroup
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range count {
		<-tick.C
		begun[i] = time.Now()
		wg.Go(func() {
			if _, err := b.Accept(b.tb.Context(), actionOf(workflow, i)); err != nil {
				b.tb.Error(err)
			}
		})
	}
	wg.Wait()
	name := func(i int) string { return actionOf(workflow, i).CallbackID }
	at := map[string]time.Time{}
	require.Eventually(b.tb, func() bool {
		for _, c := range b.hs.Completions() {
			at[c.CallbackID] = c.At
		}
		for i := range count {
			if at[name(i)].IsZero() {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond)
	took := make([]time.Duration, count)
	for i := range took {
		took[i] = at[name(i)].Sub(begun[i])
	}
	slices.Sort(took)
	return took[count/2], took[count*99/100]
}

// BenchmarkDeadPortal is what a portal that goes down costs another: rounds alone,
// beside a portal with a thousand actions due at once, and beside one that has
// gone down with as many. The figures are medians over the rounds.
func BenchmarkDeadPortal(b *testing.B) {
	for name, fault := range map[string]hubspottest.Fault{
		"silent": {Status: 503, Delay: time.Minute},
		"broken": {Status: 500},
		"busy":   {Status: 429, Header: map[string]string{"Retry-After": "1"}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				besides(b, fault)
			}
		})
	}
}

func besides(b *testing.B, fault hubspottest.Fault) {
	b.Helper()
	const (
		rounds = 5
		count  = 500
		every  = 5 * time.Millisecond
	)
	t := setup(b, storetest.Durable(b), throttle.Config{}, nil)
	t.install()
	t.rate(1000, store.Second)
	workflow, other := 1, portal
	var p50s, p99s [3][]time.Duration
	phase := func(kind int, faults ...hubspottest.Fault) {
		workflow++
		if kind > 0 {
			other++
			t.installAt(other)
			t.rateAt(other, 1, store.Day)
			t.hs.Fail(other, faults...)
			t.send(other, 1_000_000+workflow, 1000)
			t.rateAt(other, 1000, store.Second)
		}
		p50, p99 := t.paced(workflow, count, every)
		p50s[kind], p99s[kind] = append(p50s[kind], p50), append(p99s[kind], p99)
		if kind > 0 {
			require.NotZero(b, t.hs.Calls(other))
			t.rateAt(other, 1, store.Day)
			<-time.After(2100 * time.Millisecond) // until its calls have ended
		}
	}
	phase(0)
	p50s, p99s = [3][]time.Duration{}, [3][]time.Duration{} // that was to warm up
	for range rounds {
		phase(0)
		phase(1)
		phase(2, fault)
	}
	for kind, name := range []string{"alone", "beside", "dead"} {
		slices.Sort(p50s[kind])
		slices.Sort(p99s[kind])
		b.ReportMetric(p50s[kind][rounds/2].Seconds()*1000, "p50-ms-"+name)
		b.ReportMetric(p99s[kind][rounds/2].Seconds()*1000, "p99-ms-"+name)
	}
	b.ReportMetric(float64(p99s[2][rounds/2])/float64(p99s[0][rounds/2]), "dead/alone")
	b.ReportMetric(float64(p99s[2][rounds/2])/float64(p99s[1][rounds/2]), "dead/beside")
}
