package takttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/needs"
)

// File returns a path below the directory of go.mod, for a test in one of its packages.
func File(parts ...string) string {
	root := ".."
	for range 10 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(append([]string{root}, parts...)...)
		}
		root = filepath.Join(root, "..")
	}
	panic("there is no go.mod above: File is for tests, not for the takt that they start")
}

// Alerts returns the rules that deploy/ ships.
func Alerts() string { return File("deploy", "prometheus", "alerts.yaml") }

// Operate returns the page that alerts and dashboards are explained on.
func Operate() string { return File("docs", "operate.md") }

// Promtool runs Prometheus' tool and returns what it says.
func Promtool(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), needs.Promtool(tb), args...)
	cmd.Dir, cmd.Stdin = filepath.Dir(Alerts()), strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(tb, err, "promtool %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// Watched are the metrics that dashboards, alerts and their page name, with where they do.
func Watched(tb testing.TB) map[string]string {
	tb.Helper()
	by := map[string]string{}
	files, err := filepath.Glob(File("deploy", "grafana", "*.json"))
	require.NoError(tb, err)
	for _, file := range append(files, Alerts(), Operate()) {
		raw, err := os.ReadFile(file)
		require.NoError(tb, err)
		for _, name := range MetricNames(string(raw)) {
			by[name] = filepath.Base(file)
		}
	}
	require.Greater(tb, len(by), 50)
	return by
}

// MetricNames returns the metrics that expressions name, histograms without the suffix of
// their series.
func MetricNames(text string) (names []string) {
	for _, name := range regexp.MustCompile(`\btakt_[a-z0-9_]+`).FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		names = append(names, name)
	}
	return names
}

// ShellBlock is a piece of shell in the documentation.
type ShellBlock struct{ Page, Text, NotRun string }

var (
	shellBlock = regexp.MustCompile("(?s)(?:<!-- not run here: ([^\n]*) -->\n)?```sh\n(.*?)```")
	codeFence  = regexp.MustCompile("(?m)^```(\\w*)")
)

// ShellBlocks returns the shell of README, CONTRIBUTING and docs/.
func ShellBlocks(t *testing.T) []ShellBlock {
	t.Helper()
	pages, err := filepath.Glob(File("docs", "*.md"))
	require.NoError(t, err)
	var all []ShellBlock
	for _, page := range append(pages, File("README.md"), File("CONTRIBUTING.md")) {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range shellBlock.FindAllStringSubmatch(string(raw), -1) {
			all = append(all, ShellBlock{filepath.Base(page), m[2], m[1]})
		}
		for _, m := range codeFence.FindAllStringSubmatch(string(raw), -1) {
			require.Contains(t, []string{"", "sh", "json", "text", "console", "go", "js", "mermaid"}, m[1], "%s: shell is marked as sh, or as console if TestTutorialShowsWhatCommandsPrint runs it", page)
		}
	}
	return all
}
