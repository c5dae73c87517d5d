package postgres_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// waitsFor returns for how many minutes a pending build waits, and requires that all who show it agree.
func (b *fixture) waitsFor(id string) int {
	b.t.Helper()
	d := postgres.NewDashboard(b.DB)
	minutes := func(since time.Time) int { return int(math.Round(time.Since(since).Minutes())) }
	got := minutes(b.find(id).WaitingSince)
	require.Equal(b.t, got, minutes(must(d.WaitingBuild(b.t.Context(), id))(b.t).Since))
	for _, row := range listed(d.Waiting(b.t.Context(), store.Page{}))(b.t) {
		if row.ID == id {
			require.Equal(b.t, got, minutes(row.Since))
		}
	}
	require.Equal(b.t, got, minutes(must(d.Figures(b.t.Context()))(b.t).Oldest), "it is the only one")
	return got
}

// passed lets minutes pass for all builds.
func (b *fixture) passed(minutes int) {
	b.exec(`UPDATE builds SET submitted_at = submitted_at - m, waiting_since = waiting_since - m, updated_at = updated_at - m FROM make_interval(mins => $1) m`, minutes)
}

// A build that was put back waits since then, whoever put it back, and what changes meanwhile does
// not begin its wait anew.
func TestABuildWaitsSinceItWasPutBack(t *testing.T) {
	t.Parallel()
	for name, putBack := range map[string]func(b *fixture, w *client, build string){
		"requeued":     func(b *fixture, _ *client, build string) { must(b.builds.Requeue(b.t.Context(), build))(b.t) },
		"given back":   func(_ *fixture, w *client, build string) { w.givesBack(build) },
		"unregistered": func(b *fixture, w *client, _ string) { must(b.workers.UnregisterID(b.t.Context(), w.id, ""))(b.t) },
		"lost": func(b *fixture, _ *client, build string) {
			b.exec(ageAssignment, build)
			require.Len(b.t, b.sweep().Requeued, 1)
		},
		"to be tried again": func(b *fixture, w *client, build string) {
			require.True(b.t, w.exits(build, 75).Again)
			b.passed(3)
			require.Equal(b.t, []string{build}, b.letIn())
			b.passed(-3)
		},
		"by 0.1.0": func(b *fixture, _ *client, _ string) {
			b.exec(`WITH w AS (UPDATE workers SET held = 0, status = 'idle')
				UPDATE builds SET state = 'pending', last_worker_id = worker_id, worker_id = NULL, started_at = NULL, last_seen_at = NULL, updated_at = now()`)
		},
	} {
		inDatabase(t, name, func(b *fixture) {
			build, w := b.build(retried()), b.worker(able())
			b.passed(20)
			require.Equal(b.t, 20, b.waitsFor(build.ID), "since its submission")
			must(b.builds.SetPriority(b.t.Context(), build.ID, 1))(b.t)
			require.Equal(b.t, 20, b.waitsFor(build.ID))
			w.gets(build.ID)
			require.Zero(b.t, b.find(build.ID).WaitingSince)
			putBack(b, w, build.ID)
			b.passed(5)
			require.Equal(b.t, 5, b.waitsFor(build.ID))
			if name != "by 0.1.0" { // which leaves only updated_at
				must(b.builds.SetPriority(b.t.Context(), build.ID, 2))(b.t)
				require.Equal(b.t, 5, b.waitsFor(build.ID))
			}
			job := b.worker(able(), slots(1)).poll().Jobs[0]
			require.Equal(b.t, build.ID, job.BuildID)
			if name != "by 0.1.0" {
				require.InDelta(b.t, 5, time.Since(job.PendingSince).Minutes(), 1)
				pulse := must(postgres.NewDashboard(b.DB).Pulse(b.t.Context(), time.Now().Add(-time.Minute)))(b.t)
				require.InDelta(b.t, 5, pulse.Waited.Minutes(), 1)
			}
		})
	}
}

func TestWhatEndedABuildIsKept(t *testing.T) {
	t.Parallel()
	for cause, end := range map[string]func(b *fixture, w *client, build string){
		"failed": func(_ *fixture, w *client, build string) { w.fails(build) },
		"cancelled": func(b *fixture, _ *client, build string) {
			require.NoError(b.t, b.builds.Cancel(b.t.Context(), build, "", ""))
		},
		"lost": func(b *fixture, _ *client, build string) {
			b.exec(ageAssignment, build)
			require.Len(b.t, b.sweep(func(s *store.Sweep) { s.Rule.MaxAttempts = 1 }).Failed, 1)
		},
		"given_back": func(b *fixture, w *client, build string) {
			for range store.MaxGiveBacks {
				w.givesBack(build)
				w = b.worker()
				w.gets(build)
			}
			require.Equal(b.t, store.Failed, w.givesBack(build).State)
		},
		"unmatched": func(b *fixture, w *client, build string) {
			must(b.workers.UnregisterID(b.t.Context(), w.id, ""))(b.t)
			must(b.queue.CheckClasses(b.t.Context(), time.Hour))(b.t)
			b.exec(`UPDATE build_classes SET unmatched_since = now() - interval '2 h' WHERE unmatched_since IS NOT NULL`)
			b.exec(`UPDATE builds SET updated_at = now() - interval '2 h' WHERE id = $1`, build)
			require.Len(b.t, must(b.queue.CheckClasses(b.t.Context(), time.Hour))(b.t), 1)
		},
	} {
		inDatabase(t, cause, func(b *fixture) {
			build, w := b.build(), b.worker()
			w.gets(build.ID)
			end(b, w, build.ID)
			got := b.find(build.ID)
			require.Equal(b.t, cause, got.Cause())
			require.Equal(b.t, []string{"", ""}, []string{got.EndedBy, got.EndedWhy})
			found := listed(b.builds.List(b.t.Context(), store.BuildFilter{}, store.Page{}))(b.t)
			require.Equal(b.t, cause, found[0].Cause(), "in a list, too")
		})
	}
}

// Who cancelled a build and why is in its row and in its log, from one transaction on; what its
// command writes later stands below.
func TestACancelledBuildSaysByWhomAndWhy(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	writes := func(message string) store.HeartbeatReply {
		heartbeat := w.heartbeat(build.ID)
		heartbeat.Logs = []store.LogLine{{Level: store.Info, Message: message}}
		return must(b.builds.RecordHeartbeat(t.Context(), heartbeat))(t)
	}
	require.False(t, writes("compiling").Over)
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "key ci", "superseded\x00 by 772"))
	require.True(t, writes("linking").Over, "so that its worker stops it")

	got := b.find(build.ID)
	require.Equal(t, []string{"cancelled", "key ci", "superseded\uFFFD by 772", store.MessageCancelled}, []string{got.Cause(), got.EndedBy, got.EndedWhy, got.ErrorMessage})
	require.Equal(t, 1, b.count(`SELECT count(*) FROM build_logs WHERE kind = 'cancelled' AND facts = '{"by": "key ci", "why": "superseded� by 772"}'`))
	tail := must(b.builds.Tail(t.Context(), build.ID, 0, 10))(t)
	d := postgres.NewDashboard(b.DB)
	page := must(d.LogPage(t.Context(), build.ID, 0, 0, 10))(t)
	require.Equal(t, tail.Lines, page)
	found, last, err := d.SearchLog(t.Context(), build.ID, "CANCEL", 0, 10)
	require.NoError(t, err)
	require.Equal(t, page[3:4], found)
	require.Equal(t, page[4], last)
	var texts, messages []string
	for _, l := range tail.Lines[2:] {
		texts, messages = append(texts, l.Text()), append(messages, l.Message)
	}
	require.Equal(t, []string{"compiling", "Build cancelled by key ci: superseded\uFFFD by 772", "linking"}, texts)
	require.Equal(t, []string{"compiling", "Build cancelled", "linking"}, messages, "old clients compare it")
}

// A build that waits for its retry by exit code and is cancelled was not ended by that code.
func TestACancelledBuildDidNotEndAsItsLastAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, _ := b.waiting()
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "api", ""))
	require.Equal(t, store.EndedCancelled, b.find(build.ID).Ended)
}

func TestRetriesKnowTheirFamily(t *testing.T) {
	t.Parallel()
	b := setup(t)
	again := func(of string) string {
		id := b.build(func(s *store.Submission) { s.RetryOf = of }).ID
		require.Equal(t, of, b.find(id).RetryOf)
		require.NoError(t, b.builds.Cancel(t.Context(), id, "", "")) // one of a family waits at a time
		return id
	}
	first := b.build().ID
	second := again(first)
	third := again(second)
	fourth := again(first)
	family := func() (all [][]string) {
		for _, id := range []string{first, second, third, fourth} {
			found := b.find(id)
			all = append(all, append([]string{found.RetryOf}, found.Retries...))
		}
		return all
	}
	require.Equal(t, [][]string{{"", second, fourth}, {first, third}, {second}, {first}}, family())
	for _, x := range listed(b.builds.List(t.Context(), store.BuildFilter{}, store.Page{}))(t) {
		require.Equal(t, b.find(x.ID).RetryOf, x.RetryOf)
	}
	b.exec(`UPDATE builds SET retry_of = NULL`)
	require.Equal(t, [][]string{{"", second, third, fourth}, {first}, {first}, {first}}, family(), "the release before kept only the first of all")
}

// Builds are looked up with each upload and each status.
func TestRetriesAreFoundWithoutReadingAllBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(fill, 3000)
	b.exec(`UPDATE builds SET state = 'failed', completed_at = now()`)
	b.exec(`UPDATE builds SET retry_root = seq - 1, retry_of = seq - 1 WHERE seq % 10 = 0`)
	b.exec(`VACUUM ANALYZE builds`)
	rows := must(b.Pool.Query(t.Context(), "EXPLAIN "+stringConstants(t)["sqlFindBuilds"], []string{"a", "b"}))(t)
	plan := strings.Join(must(pgx.CollectRows(rows, pgx.RowTo[string]))(t), "\n")
	require.NotContains(t, plan, "Seq Scan on builds", plan)
	require.Regexp(t, `using builds_retried on builds r.*\n.*Index Cond: \(COALESCE\(.*= b\.seq\)`, plan)
}
