package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func TestFleetIsReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	var all []string
	for i := range 11 {
		w := b.worker(func(r *store.Registration) {
			r.Name = fmt.Sprintf("Machine %d", i%4) // names are not unique
			if i == 3 {
				r.Platforms = []store.Platform{store.Android}
			}
		})
		all = append(all, w.id)
		if i == 5 {
			w.drains(true)
		}
		if i == 6 {
			w.reports(store.Critical)
		}
	}
	for _, sort := range []string{"", "name", "state", "used", "success", "seen"} {
		var seen []string
		f := store.FleetFilter{Sort: sort, Limit: 3}
		for {
			rows, _, err := d.Fleet(t.Context(), f)
			require.NoError(t, err)
			if len(rows) == 0 {
				break
			}
			for _, r := range rows {
				seen = append(seen, r.ID)
			}
			last := rows[len(rows)-1]
			f.AfterKey, f.AfterID = last.Key, last.ID
		}
		require.ElementsMatch(t, all, seen, "each once, by %q", sort)
	}
	count := func(f store.FleetFilter) int {
		f.Limit = 100
		rows, _, err := d.Fleet(t.Context(), f)
		require.NoError(t, err)
		return len(rows)
	}
	require.Equal(t, 1, count(store.FleetFilter{State: store.WorkerDraining}))
	require.Equal(t, 1, count(store.FleetFilter{State: store.WorkerCritical}))
	require.Equal(t, 9, count(store.FleetFilter{State: "idle"}))
	require.Equal(t, 10, count(store.FleetFilter{Platform: store.IOS}))
	require.Equal(t, 3, count(store.FleetFilter{Name: "CHINE 2"}))
	require.Equal(t, 1, count(store.FleetFilter{Name: all[0]}))
	require.Zero(t, count(store.FleetFilter{Name: "%"}), "no pattern")
	summary, err := d.FleetSummary(t.Context())
	require.NoError(t, err)
	require.Equal(t, []store.FleetSummary{
		{Platform: store.Android, Known: 11, Able: 9, Draining: 1, Critical: 1, Slots: 9},
		{Platform: store.IOS, Known: 10, Able: 8, Draining: 1, Critical: 1, Slots: 8},
	}, summary)
	_, states, err := d.Fleet(t.Context(), store.FleetFilter{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"idle": 9, "draining": 1, "critical": 1}, states)
	one, err := d.Worker(t.Context(), all[5])
	require.NoError(t, err)
	require.Equal(t, []string{all[5], "Machine 1", "draining"}, []string{one.ID, one.Name, one.State})
	_, err = d.Worker(t.Context(), "nobody")
	require.Equal(t, store.NotFound, store.CodeOf(err))
	named, err := d.NamedWorkers(t.Context(), "machine 1", 10)
	require.NoError(t, err)
	require.Len(t, named, 3)
}

func TestQueueIsShownInTheOrderOfHandOuts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	before, err := d.Pulse(t.Context(), time.Time{})
	require.NoError(t, err)
	var want []string
	for i := range 7 {
		want = append(want, b.build(func(s *store.Submission) {
			s.Priority = 0
			if i%3 == 1 {
				s.Platform = store.Android
			}
		}).ID)
	}
	first := b.build(func(s *store.Submission) { s.Priority = 5 })
	want = slices.Insert(want, 0, first.ID)
	var got []string
	numbers := map[store.Platform]int{}
	after := int64(0)
	for {
		page, err := d.Waiting(t.Context(), after, 3)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, p := range page {
			numbers[p.Platform]++
			require.Equal(t, numbers[p.Platform], p.Number)
			one, err := d.WaitingBuild(t.Context(), p.ID)
			require.NoError(t, err)
			require.Equal(t, p.Number, one.Number)
			got, after = append(got, p.ID), p.Position
		}
	}
	require.Equal(t, want, got)

	w := b.worker(slots(2))
	w.gets(first.ID)
	w.gets(want[1])
	gone, err := d.WaitingBuild(t.Context(), first.ID)
	require.NoError(t, err)
	require.Nil(t, gone)
	require.NoError(t, b.touch(t.Context(), store.Beat{
		BuildID: first.ID, WorkerID: w.id,
		Logs: []store.LogLine{{Level: store.Info, Message: "so far"}}, Kind: store.LineProgress, Facts: store.LineFacts{Percent: 42.9},
	}))
	require.NoError(t, b.touch(t.Context(), store.Beat{BuildID: first.ID, WorkerID: w.id, Logs: []store.LogLine{{Level: store.Info, Message: "Build progress: 99%"}}}))
	running, err := d.Running(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, running, 2)
	at := slices.IndexFunc(running, func(r store.RunningBuild) bool { return r.ID == first.ID })
	require.Equal(t, 42, *running[at].Progress)
	require.Equal(t, w.id, running[at].WorkerID)
	pulse, err := d.Pulse(t.Context(), before.At)
	require.NoError(t, err)
	require.Equal(t, []int{4, 2, 2, 2}, []int{pulse.PendingIOS, pulse.PendingAndroid, pulse.Running, pulse.Started})
	require.EqualValues(t, 8, pulse.Submitted-before.Submitted)
	w.finishes(first.ID)
	usual, err := d.Durations(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, usual[store.IOS].Count)
}

func TestBuildsAreFoundAndReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	var all []string
	for i := range 7 {
		all = append(all, b.build(func(s *store.Submission) {
			if i == 2 {
				s.Labels = store.Labels{"branch": "main", "who": "x"}
			}
			if i > 4 {
				s.Platform = store.Android
			}
		}).ID)
	}
	require.NoError(t, b.builds.Cancel(t.Context(), all[6]))
	find := func(f store.BuildSearch) (ids []string) {
		if f.Limit == 0 {
			f.Limit = 100
		}
		found, err := d.Builds(t.Context(), f)
		require.NoError(t, err)
		for _, x := range found {
			ids = append(ids, x.ID)
		}
		return ids
	}
	slices.Reverse(all)
	require.Equal(t, all, find(store.BuildSearch{}))
	require.Equal(t, all[:3], find(store.BuildSearch{Limit: 3}))
	require.Equal(t, all[3:6], find(store.BuildSearch{Limit: 3, Before: all[2]}))
	require.Equal(t, []string{all[4]}, find(store.BuildSearch{Label: "branch", Value: "main"}))
	require.Equal(t, all[:1], find(store.BuildSearch{States: []store.BuildState{store.Cancelled}}))
	require.Equal(t, all[1:], find(store.BuildSearch{States: []store.BuildState{store.Pending}}))
	require.Equal(t, all[1:2], find(store.BuildSearch{States: []store.BuildState{store.Pending}, Platform: store.Android}))
	require.Empty(t, find(store.BuildSearch{Since: time.Now().Add(time.Hour)}))
	require.Equal(t, all, find(store.BuildSearch{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}))
}

func TestLogIsReadFromItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	build, w := b.build(), b.worker()
	w.gets(build.ID)
	var lines []store.LogLine
	for i := range 10 {
		lines = append(lines, store.LogLine{Level: store.Info, Message: fmt.Sprintf("line %d", i)})
	}
	require.NoError(t, b.touch(t.Context(), store.Beat{BuildID: build.ID, WorkerID: w.id, Logs: lines}))
	said := func(page []store.LogLine) string {
		var s []string
		for _, l := range page {
			s = append(s, l.Message)
		}
		return strings.Join(s, ", ")
	}
	page, err := d.LogPage(t.Context(), build.ID, 0, 3)
	require.NoError(t, err)
	require.Equal(t, "line 7, line 8, line 9", said(page))
	page, err = d.LogPage(t.Context(), build.ID, page[0].Seq, 2)
	require.NoError(t, err)
	require.Equal(t, "line 5, line 6", said(page))
}

func TestThrottleQueuesAreReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	b.exec(`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (1, 7, 10, 1, 'second'), (2, 7, 10, 1, 'second')`)
	b.exec(`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index)
		SELECT 'queue:' || p || ':' || i || ':7:0', p, i, 7, '0' FROM generate_series(1, 2) p, generate_series(1, 5) i`)
	b.exec(`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at)
		SELECT seq, portal_id, id, now() + interval '1 day' FROM throttle_queues WHERE workflow_id IN ('4', '2')`)
	var got []string
	after := store.QueueStatus{}
	for {
		page, err := d.Queues(t.Context(), 0, after, 3)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, q := range page {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(q.ID, "queue:"), ":7:0"))
			after = q
		}
	}
	require.Equal(t, []string{"1:2", "1:4", "2:2", "2:4", "1:1", "1:3", "1:5", "2:1", "2:3", "2:5"}, got, "those in which actions wait come first")
	ofOne, err := d.Queues(t.Context(), 2, store.QueueStatus{}, 100)
	require.NoError(t, err)
	require.Len(t, ofOne, 5)
	require.Equal(t, 1, ofOne[0].Depth)
}

func TestDeploymentsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	b.exec(`INSERT INTO deployments (id, request, credential_id, created_at)
		SELECT 'd' || i, '{}', 'x', timestamptz '2026-01-01' + i / 3 * interval '1 hour' FROM generate_series(0, 7) i`)
	var got []string
	before := ""
	for {
		page, err := d.Deployments(t.Context(), before, 3)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, x := range page {
			got, before = append(got, x.ID), x.ID
		}
	}
	require.Equal(t, []string{"d6", "d7", "d3", "d4", "d5", "d0", "d1", "d2"}, got)

	b.exec(`INSERT INTO deployment_repos (deployment_id, name, target, source, step, finished_at)
		SELECT 'd0', 'r' || i, 'x', '{}', s, CASE WHEN s IN ('done', 'failed', 'skipped') THEN now() END
		FROM generate_series(0, 9) i, LATERAL (SELECT (ARRAY['skipped', 'done', 'failed', 'planned', 'pushing'])[i % 5 + 1] AS s) x`)
	got = nil
	after := store.DeploymentRepo{}
	for {
		page, err := d.Repos(t.Context(), "d0", after, 3)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			got, after = append(got, r.Name), r
		}
	}
	require.Equal(t, []string{"r2", "r7", "r4", "r9", "r3", "r8", "r1", "r6", "r0", "r5"}, got, "what failed comes first, then what is under way")
}

func TestAuditIsReadPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d, audit := postgres.NewDashboard(b.DB), postgres.NewAudit(b.DB)
	for i := range 5 {
		_, err := audit.Append(t.Context(), store.AuditEntry{Actor: "tester", Action: "restart", Target: fmt.Sprintf("takt/part-%d", i)})
		require.NoError(t, err)
	}
	page, err := d.Audit(t.Context(), store.AuditFilter{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, "takt/part-4", page[0].Target)
	page, err = d.Audit(t.Context(), store.AuditFilter{Limit: 2, Before: page[1].ID})
	require.NoError(t, err)
	require.Equal(t, "takt/part-2", page[0].Target)
	page, err = d.Audit(t.Context(), store.AuditFilter{Limit: 2, Text: "PART-1"})
	require.NoError(t, err)
	require.Len(t, page, 1)
}
