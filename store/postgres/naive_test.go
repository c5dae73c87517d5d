package postgres_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/storetest"
)

// BenchmarkNaive measures, with pgbench, polls that are a transaction each: what
// BenchmarkServe is compared with.
func BenchmarkNaive(b *testing.B) {
	for _, kind := range []string{"idle", "assigned"} {
		for _, clients := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/clients=%d", kind, clients), func(b *testing.B) {
				benchmarkNaive(b, kind, clients)
			})
		}
	}
}

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

func benchmarkNaive(b *testing.B, kind string, clients int) {
	b.Helper()
	for _, program := range []string{"psql", "pgbench"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip(err)
		}
	}
	db := storetest.Durable(b)
	pending := 0
	if kind == "assigned" {
		pending = max(100_000, b.N+clients)
	}
	run(b, "psql", "-q", "-v", "workers="+strconv.Itoa(clients), "-v", "pending="+strconv.Itoa(pending),
		"-f", "testdata/bench/setup.sql", "-d", db.Config.ConnString())
	each := strconv.Itoa(max(1, b.N/clients))
	b.ResetTimer()
	out := run(b, "pgbench", "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2", "-t", each,
		"-f", "testdata/bench/"+kind+".sql", db.Config.ConnString())
	b.StopTimer()
	found := tps.FindStringSubmatch(out)
	require.Len(b, found, 2, out)
	rate, err := strconv.ParseFloat(found[1], 64)
	require.NoError(b, err)
	b.ReportMetric(rate, "polls/s")
}

func run(b *testing.B, program string, args ...string) string {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), program, args...).CombinedOutput()
	require.NoError(b, err, "%s: %s", program, out)
	return string(out)
}
