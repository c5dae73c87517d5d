package heijunka

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"takt/store"
)

// BenchmarkAdmission is a token's way out and back. Its budget is 1 µs.
func BenchmarkAdmission(b *testing.B) {
	g, d := newGate(store.HeijunkaLimits{Soft: 1000, Hard: 1200}), &Pool{cfg: PoolConfig{Priority: true}}
	pair := func() {
		t := &token{own: d}
		if _, err := g.admit(t); err != nil {
			b.Error(err)
		}
		g.release(t)
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pair()
		}
	})
	b.Run("two at once", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(1)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				pair()
			}
		})
	})
}

// BenchmarkRoute chooses between four pools. Its budget is 1 µs.
func BenchmarkRoute(b *testing.B) {
	cfg := steady(4, "a", "b", "c", "d")
	w := start(b, cfg)
	defer w.stop()
	w.h.pools[0].prefer(nil)
	b.ReportAllocs()
	for b.Loop() {
		if w.h.pools[0].route("/api/builds/V1StGXR8_Z5jdHi6B-myT/status") == nil {
			b.Fatal("no route")
		}
	}
}

// BenchmarkDo is the whole levelled path around a handler that does nothing, beside the
// same process without it. The budget of the whole path is 10 µs.
func BenchmarkDo(b *testing.B) {
	w := start(b, Config{})
	defer w.stop()
	ctx, work := b.Context(), store.Work{Domain: Query, Route: "/route", ID: "id", Key: "key"}
	nothing := func(context.Context) error { return nil }
	levelled := func() error { return w.h.Do(ctx, work, nothing) }
	bare := func() error { return w.h.deps.Run(ctx, Query, &work, nothing) }
	for _, way := range []struct {
		name string
		do   func() error
	}{{"levelled", levelled}, {"process only", bare}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := way.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOverload offers four times what can be done for 30 s and reports what
// is done as a share of the most, and the urgent requests' p99 as a multiple of
// what it is without load.
func BenchmarkOverload(b *testing.B) {
	const workers, service = 20, 20 * time.Millisecond
	cfg := separate(steady(workers, "urgent", "usual"))
	cfg.Limits = store.HeijunkaLimits{Soft: 1000, Hard: 1200, Reserved: 0.2}
	most := workers / service.Seconds()
	for b.Loop() {
		w := start(b, cfg)
		_, unloaded := offer(w, 0, service, 10*time.Second)
		best, _ := offer(w, most*1.2, service, 10*time.Second)
		goodput, loaded := offer(w, most*4, service, 30*time.Second)
		w.stop()
		b.ReportMetric(goodput/best, "goodput/most")
		b.ReportMetric(float64(loaded)/float64(unloaded), "p99/unloaded")
		b.ReportMetric(goodput, "goodput/s")
	}
}

// offer begins so many usual requests per second, and 100 urgent ones, and
// returns how many usual ones ended per second and the p99 of the urgent.
func offer(w *world, rate float64, service, d time.Duration) (goodput float64, p99 time.Duration) {
	var wg sync.WaitGroup
	var served atomic.Int64
	var mu sync.Mutex
	var latencies []time.Duration
	begin, sent, urgent := time.Now(), 0, 0
	for tick := time.NewTicker(time.Millisecond); time.Since(begin) < d; <-tick.C {
		passed := time.Since(begin).Seconds()
		for ; float64(sent) < rate*passed; sent++ {
			wg.Go(func() {
				if w.serve(context.Background(), "usual", service) == nil {
					served.Add(1)
				}
			})
		}
		for ; float64(urgent) < 100*passed; urgent++ {
			wg.Go(func() {
				begin := time.Now()
				if err := w.serve(context.Background(), "urgent", service); err != nil {
					w.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, time.Since(begin))
			})
		}
	}
	done := served.Load() // what waits still would count as done too late
	wg.Wait()
	slices.Sort(latencies)
	return float64(done) / d.Seconds(), latencies[len(latencies)*99/100]
}
