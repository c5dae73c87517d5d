package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDiagnosticReportAtTheStartAndOnRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t, "true", func(c *Config) { c.Resources.Disk = 1 << 60 }) // nobody has as much
	b.start(t)
	reports := func() int { return b.Requests("POST /api/diagnostics/report") }
	b.Await(t, "a report at the start", func() bool { return len(b.Workers()) == 1 && b.Workers()[0].Report.WorkerID != "" })
	r := b.Workers()[0].Report
	require.Equal(t, "warning", r.Status)
	status := map[string]string{}
	for _, c := range r.Checks {
		status[c.Name] = c.Status
		require.NotEmpty(t, c.Message)
	}
	require.Equal(t, map[string]string{"runner": "pass", "limits": "pass", "memory": "pass", "disk": "warn"}, status)
	require.Contains(t, r.Checks[3].Message, "builds may need 1.0 EiB of disk")

	require.Equal(t, 1, reports())
	b.worker.Report()
	b.Await(t, "a report on request", func() bool { return reports() == 2 })
}

func TestReportSaysWhichLimitsAreNotHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t, "true")
	b.worker.unlimited = errors.New("no cgroup v2 here")
	_, err := b.worker.checkLimits(t.Context())
	require.EqualError(t, err, "CPU and memory of builds are not limited: no cgroup v2 here")
}

// TestReportOfAFaultIsFollowed has a report find the fault, without any build.
func TestReportOfAFaultIsFollowed(t *testing.T) {
	t.Parallel()
	tool := filepath.Join(t.TempDir(), "tool")
	require.NoError(t, os.Symlink("/bin/true", tool))
	b := newBench(t, tool, func(c *Config) { c.Telemetry = 10 * time.Millisecond }).start(t)
	b.Await(t, "it is well", b.reports("healthy"))
	require.NoError(t, os.Remove(tool))
	b.worker.Report()
	b.Await(t, "it is not", b.reports("critical"))
	require.NoError(t, os.Symlink("/bin/true", tool))
	b.Await(t, "it is well again", b.reports("healthy"))
}
