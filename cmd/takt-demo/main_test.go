package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/buildtest"
	"takt/cmd/internal/cli"
	"takt/store/tracing/tracingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// demo runs takt-demo with these arguments and returns its exit code and what it
// wrote.
func demo(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	var out bytes.Buffer
	code = cli.Execute(t.Context(), newRoot(), args, &out, &out)
	return code, out.String()
}

// TestDemos is `make demo` and `make demo-throttle`, with traces.
func TestDemos(t *testing.T) {
	takt, collector := buildtest.Build(t), tracingtest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.Endpoint)
	t.Run("run", func(t *testing.T) {
		t.Run("ten builds and a killed worker", func(t *testing.T) {
			t.Parallel()
			code, out := demo(t, "--takt", takt, "--sample", "../../testdata/sample")
			require.Zero(t, code, out)
			require.Regexp(t, `\npacked       5 files, 1\.\d KiB each; ignored and left out: 1 file, 1\.0 MiB\n`, out)
			require.Contains(t, out, "order 10: 78498 primes below 1000000")
			require.Contains(t, out, "notices      10 of 10 arrived, each signature verified")
			require.Contains(t, out, "when the last of release's builds started")
			require.Regexp(t, `(?s)\$ takt why \S+\n[^$]* `+string(platform)+` with gpu [^$]*\$ takt explain \S+\n.*attempt 2`, out)
			require.Contains(t, out, "as attempt 2")
			require.Regexp(t, `It waits until \d\d:\d\d:\d\d UTC for its retry after exit code 75\.`, out)
			require.Contains(t, out, "completed    as attempt 2; it prints: order 12: 78498 primes below 1000000. Its log has\n    testing flavour beta, token ***\n")
			require.Contains(t, out, "12 builds submitted, 12 completed, 0 lost")
		})
		t.Run("paced webhooks", func(t *testing.T) {
			t.Parallel()
			code, out := demo(t, "throttle", "--takt", takt)
			require.Zero(t, code, out)
			require.Contains(t, out, "200 acknowledged, 200 completed")
		})
	})
	spans, raw := collector.Spans()
	requireTraces(t, spans)
	requireBatches(t, spans)
	requireCompletions(t, spans)
	require.NotContains(t, string(raw), "primes below") // what builds say
}

// Neither is there a takt beside the test binary, nor at a path that is wrong.
func TestDemoSaysThatTaktIsMissing(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"throttle"}, {"throttle", "--takt", t.TempDir() + "/none"}} {
		code, out := demo(t, args...)
		require.Equal(t, cli.ExitFailure, code, out)
		require.Contains(t, out, "takt itself is needed (make build puts it beside this program; --takt or TAKT_BINARY name another)")
	}
}

func TestUnknownDemoIsAUsageError(t *testing.T) {
	t.Parallel()
	code, out := demo(t, "thortle")
	require.Equal(t, cli.ExitUsage, code, out)
	require.Contains(t, out, "takt-demo: unknown command")
}
