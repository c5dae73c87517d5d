package limiter

import (
	"context"
	"fmt"
	"testing"

	"takt/store"
)

// What a unit costs without a key, with one, and with 10 000 others that hold one.
func BenchmarkTake(b *testing.B) {
	for name, bench := range map[string]struct {
		who    store.Share
		others int
	}{
		"without a key": {}, "with a key": {store.Share{Credential: "key", Part: "worker"}, 0},
		"among 10000": {store.Share{Credential: "key", Part: "worker"}, 10_000},
	} {
		b.Run(name, func(b *testing.B) {
			l := New(Limit{Most: 1 << 20, Fair: true})
			for i := range bench.others {
				if _, err := l.Take(context.Background(), store.Share{Credential: fmt.Sprint(i), Part: "w"}, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				u, err := l.Take(context.Background(), bench.who, nil)
				if err != nil {
					b.Fatal(err)
				}
				u.Release()
			}
		})
	}
}
