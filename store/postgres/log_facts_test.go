package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// milestones returns a build's timeline without its times.
func (b *fixture) milestones(id string) []store.Milestone {
	b.t.Helper()
	all := must(postgres.NewDashboard(b.DB).Milestones(b.t.Context(), id))(b.t)
	for i := range all {
		require.False(b.t, all[i].At.IsZero())
		all[i].At = time.Time{}
	}
	return all
}

// The timeline is what takt did, in whatever words the log says it. A worker may write the
// same words.
func TestTimelineIsReadFromFacts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	must(b.builds.SetPriority(t.Context(), build.ID, 3))(t)
	named := func(name string) *client { return b.worker(func(r *store.Registration) { r.Name = name }) }
	w, deleted, last := named("studio"), named("mini"), named("last")

	w.gets(build.ID)
	require.NoError(t, b.touch(t.Context(), store.Heartbeat{BuildID: build.ID, WorkerID: w.id, Logs: []store.LogLine{
		{Level: store.Info, Message: "Assigned to worker " + w.id + " (attempt 2)"},
		{Level: store.Warn, Message: "No sign of life from worker " + w.id + ": attempt 1 is lost, build is pending again"},
		{Level: store.Info, Message: "Priority changed from 0 to 10"},
	}}))
	must(b.builds.Requeue(t.Context(), build.ID))(t)
	w.gets(build.ID)
	w.givesBack(build.ID)
	deleted.gets(build.ID)
	must(b.workers.Delete(t.Context(), deleted.id))(t)
	last.gets(build.ID)
	must(b.workers.UnregisterID(t.Context(), last.id, ""))(t)
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "", ""))
	again := b.build(func(s *store.Submission) { s.RetryOf = build.ID })

	assigned := func(c *client, name string, attempt int) store.Milestone {
		return store.Milestone{Kind: store.LineAssigned, WorkerID: c.id, WorkerName: name, Attempt: attempt}
	}
	lost := func(c *client, name string, attempt int, why, text string) store.Milestone {
		return store.Milestone{
			Kind: store.LineRequeued, WorkerID: c.id, WorkerName: name, Attempt: attempt, Facts: store.LineFacts{Reason: why, Error: text},
		}
	}
	want := []store.Milestone{
		{Kind: store.LinePriority, Facts: store.LineFacts{To: 3}},
		assigned(w, "studio", 1), lost(w, "studio", 1, store.LostRequeued, ""),
		assigned(w, "studio", 2), lost(w, "studio", 2, string(store.FaultDisk), fault("", "", store.FaultDisk).ErrorMessage),
		assigned(deleted, "", 3), lost(deleted, "", 3, store.LostDeleted, ""),
		assigned(last, "last", 4), lost(last, "last", 4, store.LostUnregistered, ""),
		{Kind: store.LineRetried, Facts: store.LineFacts{Build: again.ID}},
	}
	require.Equal(t, want, b.milestones(build.ID))
	b.exec(`UPDATE build_logs SET message = 'eine Zeile', level = 'info' WHERE NOT by_worker`)
	require.Equal(t, want, b.milestones(build.ID), "in another language")
}

// A worker and two controllers write at once: each line has a number of its own, in the
// order in which readers see the lines.
func TestLinesThatAreWrittenTogetherHaveTheirOwnNumbers(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	heartbeat := store.Heartbeat{BuildID: build.ID, WorkerID: w.id, Logs: slices.Repeat([]store.LogLine{{Level: store.Info, Message: "line"}}, 3)}
	require.NoError(t, b.touch(t.Context(), heartbeat))
	tx := must(b.Pool.Begin(t.Context()))(t)
	must(tx.Exec(t.Context(), `WITH b AS (UPDATE builds SET log_lines = log_lines + 1 RETURNING seq, log_lines)
		INSERT INTO build_logs (build, number, message, kind) SELECT seq, log_lines, 'a third', 'priority' FROM b`))(t)
	var wg sync.WaitGroup
	other := postgres.NewBuilds(storetest.Another(t, b.Database).DB, postgres.BuildsConfig{})
	wg.Go(func() { require.NoError(t, b.touch(t.Context(), heartbeat)) })
	b.waits(1)
	wg.Go(func() {
		must(other.Requeue(t.Context(), build.ID))(t)
	})
	b.waits(2)
	require.NoError(t, tx.Commit(t.Context()))
	wg.Wait()
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, b.numbers())
}

// A controller of release 0.1.0 that runs beside this one writes lines without kind and
// number: they are in the log, not in the timeline, and take no number away.
func TestLinesOfTheReleaseBeforeAreInTheLogOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines")
	build, w := b.build(), b.worker()
	must(b.builds.SetPriority(t.Context(), build.ID, 1))(t)
	b.exec(`INSERT INTO build_logs (build, message) SELECT seq, 'Assigned to worker w' FROM builds`)
	b.exec(`INSERT INTO build_logs (build, level, message) SELECT seq, 'warn', 'Worker w unregistered, build is pending again' FROM builds`)
	w.gets(build.ID)
	require.Equal(t, []string{
		"Build submitted", "Priority changed from 0 to 1", "Assigned to worker w", "Worker w unregistered, build is pending again", "Assigned to worker " + w.id,
	}, b.logs(build.ID))
	told := b.milestones(build.ID)
	require.Len(t, told, 2)
	require.Equal(t, []store.LineKind{store.LinePriority, store.LineAssigned}, []store.LineKind{told[0].Kind, told[1].Kind})
	require.Equal(t, []int{1, 2, 0, 0, 3}, b.numbers())
}

// numbers returns the numbers of all lines in the order of seq, 0 for none.
func (b *fixture) numbers() []int {
	b.t.Helper()
	rows := must(b.Pool.Query(b.t.Context(), `SELECT coalesce(number, 0) FROM build_logs ORDER BY seq`))(b.t)
	numbers := must(pgx.CollectRows(rows, pgx.RowTo[int]))(b.t)
	return numbers
}
