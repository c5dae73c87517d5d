package postgres_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func TestFleetIsFilteredAndCounted(t *testing.T) {
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
	count := func(f store.WorkerFilter) int {
		rows := listed(b.workers.List(t.Context(), f, store.Page{}))(t)
		return len(rows)
	}
	require.Equal(t, 1, count(store.WorkerFilter{State: store.WorkerDraining}))
	require.Equal(t, 1, count(store.WorkerFilter{State: store.WorkerCritical}))
	require.Equal(t, 9, count(store.WorkerFilter{State: "idle"}))
	require.Equal(t, 10, count(store.WorkerFilter{Platform: store.IOS}))
	require.Equal(t, 3, count(store.WorkerFilter{Name: "CHINE 2"}))
	require.Equal(t, 1, count(store.WorkerFilter{Name: all[0]}))
	require.Zero(t, count(store.WorkerFilter{Name: "%"}), "no pattern")
	require.Equal(t, []store.FleetSummary{
		{Known: 11, Online: 11, Able: 9, Draining: 1, Critical: 1, Slots: 9, Free: 9},
		{Class: iosClass, Known: 10, Online: 10, Able: 8, Draining: 1, Critical: 1, Slots: 8, Free: 8},
		{Class: androidClass, Known: 11, Online: 11, Able: 9, Draining: 1, Critical: 1, Slots: 9, Free: 9},
	}, summaries(t, b))
	_, _, states, err := d.Fleet(t.Context(), store.WorkerFilter{}, store.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"idle": 9, "draining": 1, "critical": 1}, states)
	one := must(b.workers.Show(t.Context(), all[5]))(t)
	require.Equal(t, []string{all[5], "Machine 1", "draining"}, []string{one.ID, one.Name, one.State})
	require.Equal(t, store.NotFound, codeOf(b.workers.Show(t.Context(), "nobody")))
	require.Len(t, must(d.NamedWorkers(t.Context(), "machine 1", 10))(t), 3)
}

// A sum of slots may be larger than a column can hold.
func TestFleetOfManySlotsIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 3 {
		b.worker()
	}
	b.exec(`UPDATE workers SET slots = $1`, math.MaxInt32)
	all := summaries(t, b)[0]
	require.Equal(t, []int{3 * math.MaxInt32, 3 * math.MaxInt32}, []int{all.Slots, all.Free})
}

func TestQueueIsShownInTheOrderOfHandOuts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	before := must(d.Pulse(t.Context(), time.Time{}))(t)
	var want []string
	for i := range 7 {
		want = append(want, b.build(func(s *store.Submission) {
			s.Priority = 0
			if i%2 == 1 { // one turn each, so that both platforms together are in the order of submission
				s.Platform = store.Android
			}
		}).ID)
	}
	first := b.build(func(s *store.Submission) { s.Priority = 5 })
	want = slices.Insert(want, 0, first.ID)
	var got []string
	numbers := map[store.Platform]int{}
	var after store.Cursor
	for first := true; first || after != ""; first = false {
		page, next, err := d.Waiting(t.Context(), store.Page{After: after, Limit: 3})
		require.NoError(t, err)
		for _, p := range page {
			numbers[p.Platform]++
			require.Equal(t, numbers[p.Platform], p.Number)
			one := must(d.WaitingBuild(t.Context(), p.ID))(t)
			require.Equal(t, []int{p.Number, p.Place}, []int{one.Number, one.Place})
			got = append(got, p.ID)
			require.Equal(t, len(got), p.Place)
		}
		after = next
	}
	require.Equal(t, want, got)

	w := b.worker(slots(2))
	w.gets(first.ID)
	w.gets(want[1])
	require.Nil(t, must(d.WaitingBuild(t.Context(), first.ID))(t))
	require.NoError(t, b.touch(t.Context(), store.Heartbeat{
		BuildID: first.ID, WorkerID: w.id,
		Logs: []store.LogLine{{Level: store.Info, Message: "so far"}}, Kind: store.LineProgress, Facts: store.LineFacts{Percent: 42.9},
	}))
	require.NoError(t, b.touch(t.Context(), store.Heartbeat{BuildID: first.ID, WorkerID: w.id, Logs: []store.LogLine{{Level: store.Info, Message: "Build progress: 99%"}}}))
	running := listed(d.Running(t.Context(), store.Page{}))(t)
	require.Len(t, running, 2)
	at := slices.IndexFunc(running, func(r store.RunningBuild) bool { return r.ID == first.ID })
	require.Equal(t, 42, *running[at].Progress)
	require.Equal(t, w.id, running[at].WorkerID)
	pulse := must(d.Pulse(t.Context(), before.At))(t)
	require.Equal(t, []int{2, 2}, []int{pulse.Running, pulse.Started})
	require.EqualValues(t, 8, pulse.Submitted-before.Submitted)
	require.Equal(t, []store.FleetSummary{
		{Known: 1, Online: 1, Able: 1, Slots: 2, Held: 2, Pending: 6},
		{Class: iosClass, Known: 1, Online: 1, Able: 1, Slots: 2, Held: 2, Pending: 3},
		{Class: androidClass, Known: 1, Online: 1, Able: 1, Slots: 2, Held: 2, Pending: 3},
	}, summaries(t, b))
	w.finishes(first.ID)
	require.Equal(t, 1, must(d.Durations(t.Context()))(t)[store.IOS].Count)
}

func TestBuildsAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
	require.NoError(t, b.builds.Cancel(t.Context(), all[6], "", ""))
	find := func(f store.BuildFilter) (ids []string) {
		found := listed(b.builds.List(t.Context(), f, store.Page{}))(t)
		require.Equal(t, len(found), must(postgres.NewDashboard(b.DB).CountBuilds(t.Context(), f))(t))
		for _, x := range found {
			ids = append(ids, x.ID)
		}
		return ids
	}
	slices.Reverse(all)
	require.Equal(t, all, find(store.BuildFilter{}))
	require.Equal(t, []string{all[4]}, find(store.BuildFilter{Labels: store.Labels{"branch": "main"}}))
	require.Equal(t, all[:1], find(store.BuildFilter{States: []store.BuildState{store.Cancelled}}))
	require.Equal(t, all[1:], find(store.BuildFilter{States: []store.BuildState{store.Pending}}))
	require.Equal(t, all[1:2], find(store.BuildFilter{States: []store.BuildState{store.Pending}, Platform: store.Android}))
	require.Equal(t, all[:6], find(store.BuildFilter{States: []store.BuildState{store.Pending, store.Cancelled}})[:6])
	require.Equal(t, []string{all[4]}, find(store.BuildFilter{Text: "MAIN"}), "a label")
	require.Equal(t, []string{all[4]}, find(store.BuildFilter{Text: "who", Labels: store.Labels{"branch": "main"}}))
	require.Equal(t, []string{all[3]}, find(store.BuildFilter{Text: all[3][2:]}), "an id")
	require.Equal(t, all[:1], find(store.BuildFilter{Text: "by user"}), "an error")
	require.Empty(t, find(store.BuildFilter{Text: "%"}), "no pattern")
	require.Empty(t, find(store.BuildFilter{Since: time.Now().Add(time.Hour)}))
	require.Equal(t, all, find(store.BuildFilter{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}))
}

// Builds that have all of some labels, whatever their state: each statement of a list knows labels and
// submitters.
func TestBuildsAreFoundByLabelsAndSubmitter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	var held, failed, retried, pending []string // newest first, by labels
	add := func(to *[]string, labels store.Labels, submitter string) string {
		*to = append([]string{b.build(func(s *store.Submission) { s.Labels, s.Submitter = labels, submitter }).ID}, *to...)
		return (*to)[0]
	}
	both, one := store.Labels{"app": "shop", "pr": "7"}, store.Labels{"app": "shop", "pr": "8"}
	for range 2 {
		add(&failed, both, "ci")
		w.gets(failed[0])
		w.fails(failed[0])
	}
	add(&held, both, "ci")
	w.gets(held[0])
	for _, labels := range []store.Labels{both, one, nil, both} {
		add(&pending, labels, "ci")
	}
	other := add(&pending, both, "other")
	retried = append(retried, b.build(func(s *store.Submission) { s.Labels, s.Submitter, s.RetryOf = both, "ci", failed[0] }).ID)
	find := func(f store.BuildFilter) (ids []string) {
		found := listed(b.builds.List(t.Context(), f, store.Page{}))(t)
		for _, x := range found {
			ids = append(ids, x.ID)
		}
		return ids
	}
	states := func(s ...store.BuildState) store.BuildFilter {
		return store.BuildFilter{States: s, Labels: both, Submitter: "ci"}
	}
	require.Equal(t, []string{retried[0], pending[1], pending[4]}, find(states(store.Pending)))
	require.Equal(t, held, find(states(store.Assigned, store.Building)))
	require.Equal(t, failed, find(states(store.Failed)))
	require.Equal(t, []string{retried[0], pending[1], pending[4], held[0], failed[0], failed[1]}, find(states()))
	require.Equal(t, 6, must(postgres.NewDashboard(b.DB).CountBuilds(t.Context(), states()))(t))
	require.Equal(t, []string{other}, find(store.BuildFilter{Labels: both, Submitter: "other"}))
	require.Equal(t, []string{other}, find(store.BuildFilter{Submitter: "other"}))
	require.Equal(t, []string{pending[3]}, find(store.BuildFilter{Labels: store.Labels{"pr": "8"}}))
	require.Empty(t, find(store.BuildFilter{Labels: store.Labels{"app": "shop", "pr": "9"}}), "one of two is not enough")
	require.Equal(t, failed[1:], find(store.BuildFilter{States: []store.BuildState{store.Failed}, Labels: both, Unretried: true}), "the other one was retried")
	require.NoError(t, b.builds.Cancel(t.Context(), retried[0], "", ""))
	require.Equal(t, retried, find(store.BuildFilter{States: []store.BuildState{store.Cancelled}, Labels: both, Unretried: true}), "the last of its retries counts")
}

func TestFiguresOfTheOverview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	none := must(d.Figures(t.Context()))(t)
	require.WithinDuration(t, time.Now(), none.Now, time.Minute)
	none.Now = time.Time{}
	require.Equal(t, store.Figures{Running: []store.HeldBuild{}}, none)

	w := b.worker(slots(9), func(r *store.Registration) { r.Platforms = []store.Platform{store.IOS} })
	held, done, failed, old := b.build(), b.build(), b.build(), b.build()
	for _, x := range []store.Build{held, done, failed, old} {
		w.gets(x.ID)
	}
	for range 3 {
		b.build()
	}
	w.finishes(done.ID)
	w.finishes(old.ID)
	b.exec(`UPDATE builds SET completed_at = now() - interval '61 min' WHERE id = $1`, old.ID)
	require.NoError(t, b.builds.Cancel(t.Context(), b.build().ID, "", ""))
	must(b.builds.Finish(t.Context(), store.Result{BuildID: failed.ID, WorkerID: w.id}))(t)
	b.exec(`UPDATE builds SET started_at = now() - interval '90 s' WHERE id = $1`, held.ID)
	b.exec(`UPDATE builds SET submitted_at = now() - interval '6 min' WHERE state = 'pending' AND position = (SELECT max(position) FROM builds WHERE state = 'pending')`)
	full := 91.5
	must(b.builds.Telemetry(t.Context(), w.heartbeat(held.ID), store.Telemetry{Type: "heartbeat", DiskPercent: &full}))(t)
	f := must(d.Figures(t.Context()))(t)
	require.InDelta(t, 360, f.Now.Sub(f.Oldest).Seconds(), 20)
	require.Equal(t, []int{2, 1}, []int{f.Ended, f.Failed}, "cancelled builds did not end by themselves")
	require.Equal(t, []any{91.5, w.id}, []any{f.Disk, f.DiskID})
	require.Len(t, f.Running, 1)
	require.InDelta(t, 90, f.Running[0].Seconds, 20)
	require.Equal(t, store.HeldBuild{Platform: held.Platform, Seconds: f.Running[0].Seconds, Able: true, Platforms: []store.Platform{store.IOS}}, f.Running[0])
	b.exec(`UPDATE worker_telemetry SET at = now() - interval '3 min'`)
	require.Zero(t, must(d.Figures(t.Context()))(t).Disk, "it is old")
	fleet := func() store.FleetSummary { return summaries(t, b)[0] }
	require.Equal(t, []int{9, 1, 8}, []int{fleet().Slots, fleet().Held, fleet().Free})
	b.exec(`UPDATE workers SET polled_at = now() - interval '50 s'`)
	require.Equal(t, []int{9, 1, 0}, []int{fleet().Slots, fleet().Held, fleet().Free}, "nobody polls")
	b.exec(`UPDATE workers SET poll_every = 30`)
	require.Equal(t, 8, fleet().Free, "it polls rarely")
	b.exec(`UPDATE workers SET poll_wait = 30`)
	require.Zero(t, fleet().Free, "a poll that waits is written more often")
	b.exec(`UPDATE workers SET polled_at = now() - interval '40 s'`)
	require.Equal(t, 8, fleet().Free, "a poll may be parked")
	b.exec(`UPDATE workers SET poll_closed_at = now()`)
	require.Zero(t, fleet().Free, "its connection has closed")
}

// The overview is read every two seconds, whatever the history holds.
func TestTheOverviewReadsNoHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(fill, 5000)
	b.exec(`UPDATE builds SET state = 'failed', completed_at = now() - seq * interval '10 s'`)
	b.exec(`VACUUM ANALYZE builds`)
	rows := must(b.Pool.Query(t.Context(), "EXPLAIN "+stringConstants(t)["sqlFigures"], store.MaxEnded, store.MaxRunning))(t)
	plan := strings.Join(must(pgx.CollectRows(rows, pgx.RowTo[string]))(t), "\n")
	require.NotContains(t, plan, "Seq Scan on builds", plan)
	require.Contains(t, plan, "builds_ended", plan)
}

// A page of a log begins anywhere, and a number leads to its line although numbers have gaps
// and no index.
func TestLogIsReadFromAnywhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	build, other, w := b.build(), b.build(), b.worker(slots(2))
	w.gets(build.ID)
	w.gets(other.ID)
	for i := range 200 {
		for _, id := range []string{build.ID, other.ID} {
			require.NoError(t, b.touch(t.Context(), store.Heartbeat{BuildID: id, WorkerID: w.id, Logs: []store.LogLine{{Level: store.Info, Message: fmt.Sprintf("line %d", i+3)}}}))
		}
	}
	b.except = append(b.except, "lines")
	b.exec(`DELETE FROM build_logs WHERE number BETWEEN 101 AND 120`)
	b.exec(`UPDATE build_logs SET number = NULL WHERE number < 10`) // as those of release 0.1.0
	said := func(page []store.LogLine) string {
		var s []string
		for _, l := range page {
			s = append(s, l.Message)
		}
		return strings.Join(s, ", ")
	}
	end := int64(math.MaxInt64)
	page := must(d.LogPage(t.Context(), build.ID, end, 3, 0))(t)
	require.Equal(t, "line 200, line 201, line 202", said(page))
	require.Equal(t, 200, page[0].Number)
	require.Equal(t, "line 198, line 199, line 200", said(must(d.LogPage(t.Context(), build.ID, page[0].Seq, 2, 1))(t)))
	require.Equal(t, "Build submitted", said(must(d.LogPage(t.Context(), build.ID, 0, 5, 1))(t)))
	for number, want := range map[int]string{0: "Build submitted", 10: "line 10", 50: "line 50", 100: "line 100", 101: "line 121", 110: "line 121", 202: "line 202", 203: ""} {
		at, last, err := d.FindLine(t.Context(), build.ID, number)
		require.NoError(t, err)
		require.Equal(t, want, said(must(d.LogPage(t.Context(), build.ID, at, 0, 1))(t)), "%d", number)
		require.Equal(t, 202, last.Number)
	}
	_, _, err := d.FindLine(t.Context(), "none", 1)
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

// A search reads so much of a log at once, says how far it is, and can go on there.
func TestLogIsSearchedPartByPart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := postgres.NewDashboard(b.DB)
	build, w := b.build(), b.worker()
	w.gets(build.ID)
	b.exec(`WITH b AS (UPDATE builds SET log_lines = 2 + $1 RETURNING seq) INSERT INTO build_logs (build, number, message, by_worker)
		SELECT b.seq, n + 2, CASE WHEN n % 1000 = 0 THEN '100% of äAPPLES_' ELSE 'nothing' END, true FROM b, generate_series(1, $1) n ORDER BY n`, store.LogSearchLines+2000)
	search := func(text string, from int64, limit int) (numbers []int, last store.LogLine) {
		t.Helper()
		found, last, err := d.SearchLog(t.Context(), build.ID, text, from, limit)
		require.NoError(t, err)
		for _, l := range found {
			numbers = append(numbers, l.Number)
		}
		return numbers, last
	}
	found, last := search("äapples_", 0, 3)
	require.Equal(t, []int{1002, 2002, 3002}, found)
	require.Equal(t, 3002, last.Number)
	found, last = search("0% OF", last.Seq+1, 100)
	require.Len(t, found, 24)
	require.Equal(t, store.LogSearchLines+2002, last.Number, "it ends at a log's end")
	found, last = search("0% OF", last.Seq+1, 100)
	require.Empty(t, found)
	require.Zero(t, last)
	found, _ = search("0_of", 0, 100)
	require.Empty(t, found, "no pattern")
	b.exec(`UPDATE builds SET log_bytes = log_lines::bigint * $1 / 10`, store.LogSearchBytes)
	_, last = search("y", 0, 100)
	require.Equal(t, 11, last.Number, "lines are long")
}

func TestThrottleQueuesAreOrdered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	throttle := must(postgres.NewThrottle(b.DB))(t)
	b.exec(`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (1, 7, 10, 1, 'second'), (2, 7, 10, 1, 'second')`)
	b.exec(`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index, received_at)
		SELECT 'queue:' || p || ':' || i || ':7:0', p, i, 7, '0', now() - p * i * interval '1 s' FROM generate_series(1, 2) p, generate_series(1, 3) i`)
	b.exec(`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at, received_at)
		SELECT seq, portal_id, id, now() + interval '1 day', received_at FROM throttle_queues WHERE workflow_id = '2'`)
	for _, c := range []struct {
		portal int64
		oldest bool
		want   string
	}{
		{0, true, "2:2 1:2 1:1 2:1 1:3 2:3"},
		{0, false, "1:2 2:2 1:1 1:3 2:1 2:3"},
		{2, true, "2:2 2:1 2:3"},
	} {
		list := listed(throttle.Queues(t.Context(), c.portal, c.oldest, store.Page{}))(t)
		var got []string
		for _, q := range list {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(q.ID, "queue:"), ":7:0"))
		}
		require.Equal(t, c.want, strings.Join(got, " "), "those in which actions wait come first")
		require.Equal(t, 1, list[0].Depth)
	}
}

func summaries(t *testing.T, b *fixture) []store.FleetSummary {
	t.Helper()
	all, _, err := postgres.NewDashboard(b.DB).FleetSummary(t.Context())
	require.NoError(t, err)
	return all
}
