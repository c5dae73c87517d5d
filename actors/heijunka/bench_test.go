package heijunka

import (
	"context"
	"testing"

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
