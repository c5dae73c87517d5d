package heijunka

import (
	"context"
	"testing"
)

// BenchmarkAdmission is RequestAdmission and Release.
func BenchmarkAdmission(b *testing.B) {
	w := start(b, Config{})
	defer w.stop()
	m := Metadata{ID: "id", Route: "/route"}
	pair := func() {
		t, err := w.h.RequestAdmission(Fleet, m)
		if err != nil || !w.h.Release(t) {
			b.Error("not admitted")
		}
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pair()
		}
	})
	b.Run("two at once", func(b *testing.B) {
		b.ReportAllocs()
		done := make(chan struct{})
		n := b.N
		b.ResetTimer()
		go func() {
			defer close(done)
			for range n {
				pair()
			}
		}()
		for range n {
			pair()
		}
		<-done
	})
}

// BenchmarkRoute chooses between four pools.
func BenchmarkRoute(b *testing.B) {
	cfg := steady(4, "a", "b", "c", "d")
	for i := range cfg.Domains {
		cfg.Domains[i].Affinity = nil
	}
	w := start(b, cfg)
	defer w.stop()
	b.ReportAllocs()
	for b.Loop() {
		if w.h.Route("a", "/api/builds/V1StGXR8_Z5jdHi6B-myT/status") == nil {
			b.Fatal("no route")
		}
	}
}

// BenchmarkDo is the whole levelled path around a handler that does nothing,
// beside the same request actor without it.
func BenchmarkDo(b *testing.B) {
	w := start(b, Config{})
	defer w.stop()
	ctx, work := b.Context(), Work{Domain: Query, Route: "/route", ID: "id", Key: "key"}
	nothing := func(context.Context) error { return nil }
	levelled := func() error { return w.h.Do(ctx, work, nothing) }
	bare := func() error { return w.h.run.Do(ctx, work.Route, nothing) }
	for _, way := range []struct {
		name string
		do   func() error
	}{{"levelled", levelled}, {"request actor only", bare}} {
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
