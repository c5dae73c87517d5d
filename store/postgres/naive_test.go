package postgres_test

import (
	"fmt"
	"testing"

	"takt/store/storetest"
)

// BenchmarkNaive measures, with pgbench, polls that are a transaction each: what
// BenchmarkAssign is compared with.
func BenchmarkNaive(b *testing.B) {
	for _, kind := range []string{"idle", "assigned"} {
		for _, clients := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/clients=%d", kind, clients), func(b *testing.B) {
				b.ReportMetric(storetest.Naive(b, kind, clients, b.N), "polls/s")
			})
		}
	}
}
