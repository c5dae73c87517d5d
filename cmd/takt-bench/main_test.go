package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBenchTakesItsFigures runs the benchmarks briefly: what they measure is not
// judged here, but their own checks are (nothing lost, nothing twice).
func TestBenchTakesItsFigures(t *testing.T) {
	t.Parallel()
	needs.Postgres(t)
	figures := []string{"A2", "D1"}
	if os.Getenv("TAKT_TEST_LONG") != "" {
		figures = append(figures, "A3", "A7", "C2", "E2")
	}
	var out bytes.Buffer
	code := cli.Execute(t.Context(), newRoot(), []string{
		"--takt", takttest.Build(t), "--rounds", "1", "--duration", "1s", "--scripts", "../../store/postgres/testdata/bench", "--only", strings.Join(figures, ","),
	}, &out, t.Output())
	require.Zero(t, code, out.String())
	for _, figure := range figures {
		require.Contains(t, out.String(), "\n"+figure+" ")
	}
}

// What is taken for docs/scale.md can be taken again.
func TestScaleIsMeasured(t *testing.T) {
	t.Parallel()
	if os.Getenv("TAKT_TEST_LONG") == "" {
		t.Skip("takes minutes: make test-long")
	}
	needs.Postgres(t)
	var out bytes.Buffer
	code := cli.Execute(t.Context(), newRoot(), []string{
		"scale", "costs", "connections", "streams", "history", "backups", "--takt", takttest.Build(t), "--duration", "1s", "--watch", "1s",
		"--workers", "100", "--connections", "500", "--streams", "640", "--builds", "20000", "--files", "200",
	}, &out, t.Output())
	require.Zero(t, code, out.String())
	for _, row := range []string{"| webhook | 64 |", "| connections | 500 | 500 parked |", "| streams | 640 | 640 parked |", "| history of | 20000 |", "| restore | 20000 | 200 of 64 KiB |", " builds | takt |"} {
		require.Contains(t, out.String(), row)
	}
}

func TestWrongUseOfTheBench(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"e2e"}, {"--rounds", "0"}, {"--duration", "0s"}, {"--frobnicate"}, {"scale"}, {"scale", "nothing"}} {
		var out bytes.Buffer
		require.Equal(t, cli.ExitUsage, cli.Execute(t.Context(), newRoot(), args, &out, &out), out.String())
	}
}
