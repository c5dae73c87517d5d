package runner

import (
	"errors"
	"testing"

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
	for _, name := range []string{"cpu", "memory"} { // as busy as this machine is
		require.Contains(t, status, name)
		delete(status, name)
	}
	require.Equal(t, map[string]string{"runner": "pass", "slots": "pass", "key": "pass", "limits": "pass", "disk": "warn"}, status)
	require.Contains(t, r.Checks[6].Message, "builds may need 1.0 EiB of disk")

	require.Equal(t, 1, reports())
	b.worker.Report()
	b.Await(t, "a report on request", func() bool { return reports() == 2 })
}

func TestReportSaysWhichLimitsAreNotHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t, "true")
	b.worker.unlimited = errors.New("no cgroup v2 here")
	_, err := b.worker.checkLimits(t.Context())
	require.EqualError(t, err, "some limits of builds can't be enforced here: no cgroup v2 here")
}

func TestReportOfTheMachine(t *testing.T) {
	t.Parallel()
	said := must(judgeCPU(16, 4))(t)
	require.Equal(t, "load average 16.0 on 4 cores", said)
	_, err := judgeCPU(16.1, 4)
	require.EqualError(t, err, "load average 16.1 on 4 cores: builds will be slow")

	limited := Config{Concurrency: 2, Resources: Resources{Memory: 2 << 30}}
	for _, tt := range []struct {
		cfg              Config
		building         int
		total, available uint64
		said, err        string
	}{
		{Config{Concurrency: 2}, 0, 4 << 30, 1 << 30, "1.0 GiB of 4.0 GiB available", ""},
		{Config{Concurrency: 2}, 2, 4 << 30, 100 << 20, "", "further builds may need 512 MiB of memory, 100 MiB are available"},
		{limited, 0, 3 << 30, 3 << 30, "", "builds may use 4.0 GiB of memory, the machine has 3.0 GiB"},
		{limited, 0, 8 << 30, 3 << 30, "", "further builds may need 4.0 GiB of memory, 3.0 GiB are available"},
		{limited, 1, 8 << 30, 3 << 30, "3.0 GiB of 8.0 GiB available", ""},
		{limited, 2, 8 << 30, 1 << 30, "1.0 GiB of 8.0 GiB available", ""},
		{limited, 3, 8 << 30, 1 << 30, "1.0 GiB of 8.0 GiB available", ""}, // one of them is being replaced
	} {
		said, err := tt.cfg.judgeMemory(tt.building, tt.total, tt.available)
		require.Equal(t, tt.said, said)
		if tt.err == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, tt.err)
		}
	}
}
