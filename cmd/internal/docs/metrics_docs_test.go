package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/store/metrics"
)

func TestDocsOfMetricsAreCurrent(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString("# Metrics\n\nWritten by `make docs` from the table in store/metrics; a test keeps it current. `/metrics` has them\n" +
		"in the format of Prometheus, beside those of the Go runtime and of the process. A metric of a\nservice that is left out is absent. " +
		"[Operating takt](operate.md) explains the boards and the alerts.\n")
	seen := map[string]bool{}
	for _, g := range metrics.Table() {
		fmt.Fprintf(&out, "\n## %s\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n", g.Title)
		for _, m := range g.Metrics {
			require.False(t, seen[m.Name], m.Name)
			seen[m.Name] = true
			require.Equal(t, m.Kind == metrics.Counter, strings.HasSuffix(m.Name, "_total"), m.Name)
			require.Equal(t, m.Kind == metrics.Histogram, m.Buckets != nil, m.Name)
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(m.Labels, ", "), m.Help)
		}
	}
	generated(t, "metrics.md", out.String())
}

// Boards ask for metrics of the table, each in the way of its kind and by labels that it
// has; alerts and their page name metrics of the table.
func TestBoardsAndAlertsAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, b := range boards() {
		for _, row := range b.panels {
			for n := 2; n < len(row); n += 2 {
				checkExpression(t, row[n], row[n+1])
			}
		}
	}
	for _, file := range []string{takttest.Alerts(), takttest.Operate(), takttest.File("docs", "heijunka.md"), takttest.File("docs", "throttle.md")} {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range takttest.MetricNames(string(raw)) {
			_, ok := metrics.Find(name)
			require.True(t, ok || strings.HasSuffix(name, "_"), "%s names %s", file, name) // takt_throttle_* are several
		}
	}
}

func checkExpression(t *testing.T, legend, expr string) {
	t.Helper()
	labels := []string{"le", "instance"}
	for _, name := range takttest.MetricNames(expr) {
		m, ok := metrics.Find(name)
		require.True(t, ok, "%s in %s", name, expr)
		rated := strings.Contains(expr, "rate("+name)
		require.Equal(t, m.Kind != metrics.Gauge && !strings.Contains(expr, "sum("+name), rated, "%s is a %s: %s", name, m.Kind, expr)
		labels = append(labels, m.Labels...)
	}
	by := []string{}
	for _, list := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
		by = append(by, strings.Split(list[1], ", ")...)
	}
	require.Subset(t, labels, by, expr)
	for _, shown := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(legend, -1) {
		require.True(t, slices.Contains(by, shown[1]) || len(by) == 0 && slices.Contains(labels, shown[1]), "%s of %s", legend, expr)
	}
}
