package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// What a worker told long ago, or for a build that it has no more, is not its load of now.
func TestOldFiguresAreNotTheLoad(t *testing.T) {
	t.Parallel()
	cpu := 161.0
	at := func(age time.Duration, builds ...string) string {
		w := api.Worker{Builds: builds, Telemetry: &api.WorkerTelemetry{At: time.Now().Add(-age).Format(time.RFC3339)}}
		w.Telemetry.CPUPercent = &cpu
		return workerLoad(w)
	}
	require.Equal(t, "161%", at(time.Minute, "b"))
	require.Equal(t, "-", at(3*time.Minute, "b"))
	require.Equal(t, "-", at(time.Minute))
	require.Equal(t, "-", workerLoad(api.Worker{Builds: []string{"b"}}))
}

// Workers that need attention come first, as on the page Fleet.
func TestWorkersWithProblemsComeFirst(t *testing.T) {
	t.Parallel()
	worker := func(name, status, state string) api.Worker {
		return api.Worker{ID: name, Name: name, Status: status, State: state, MaxConcurrentBuilds: 1}
	}
	critical := worker("e", "idle", "idle")
	critical.Diagnostics = &api.WorkerDiagnostic{Status: "critical"}
	s := newTop(nil, nil)
	s.looks = []look{{workers: api.WorkerList{Workers: []api.Worker{
		worker("a", "idle", "idle"), worker("b", "building", "building"), worker("c", "offline", "offline"), worker("d", "idle", "silent"), critical,
		worker("g", "idle", "idle"), worker("f", "idle", "idle"), worker("h", "idle", "a state of later"),
	}}}}
	rows, _ := s.shown()
	var names []string
	for _, r := range rows {
		names = append(names, r.id)
	}
	require.Equal(t, []string{"h", "e", "c", "d", "b", "a", "f", "g"}, names)
	require.Equal(t, "idle, critical", rows[1].cells[1].text)
	require.Equal(t, "idle, critical", workerState(critical))
}

func TestBuildsOfTopHaveNamesAndReasons(t *testing.T) {
	t.Parallel()
	id, mini := "5qwvlaOS4uof3ItM1oIVl", "mini-02"
	s := newTop(nil, nil)
	s.at = 1
	s.looks = []look{{builds: []api.BuildItem{
		{ID: id, State: "pending", Labels: map[string]string{"app": "shop", "branch": "fix/crash", "commit": "99aa77bcc", "os": "17"}},
		{ID: "b", State: "building", WorkerName: &mini, Labels: map[string]string{"os": "17"}},
		{ID: "c", State: "pending"},
	}, whys: map[string]reason{id: {text: "Every slot is busy."}}}}
	var got [][2]string
	for _, r := range s.buildRows() {
		got = append(got, [2]string{r.cells[0].text, r.cells[4].text})
	}
	require.Equal(t, [][2]string{{"shop fix/crash@99aa77b 5qwvlaOS", "Every slot is busy."}, {"b os=17", mini}, {"c", "-"}}, got)
}

// The figures say how many failed lately, and which of the workers online get builds.
func TestFiguresOfTop(t *testing.T) {
	t.Parallel()
	now := look{at: time.Now(), totals: api.Statistics{Recent: &api.RecentStatistics{Ended: 26, Failed: 16, WorkersOnline: 4, WorkersServed: 3}}}
	lines := newTop(nil, nil).figures(now, look{})
	require.Equal(t, []string{"queue  0 wait; 0 run; 4 workers online, 3 get builds", "rates  0.0 submitted, 0.0 completed a minute; 16 of 26 failed in the last hour"}, lines[:2])
	now.totals.Recent, now.workers.Workers = nil, []api.Worker{{Status: "offline"}, {Status: "idle"}}
	lines = newTop(nil, nil).figures(now, look{})
	require.Equal(t, []string{"queue  0 wait; 0 run; 1 worker online", "rates  0.0 submitted, 0.0 completed, 0.0 failed a minute"}, lines[:2], "of a controller of 0.1.0")
}
