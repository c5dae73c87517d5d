package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
)

func sweep(edit ...func(*store.Sweep)) store.Sweep {
	s := store.Sweep{
		Patience: time.Minute,
		Timeouts: store.Timeouts{BuildTimeout: 5 * time.Minute, WorkerTimeout: 5 * time.Minute},
		Rule:     store.LostRule{MaxAttempts: 3},
	}
	for _, e := range edit {
		e(&s)
	}
	return s
}

func (b *fixture) sweep(edit ...func(*store.Sweep)) store.SweepResult {
	b.t.Helper()
	r := must(b.queue.Sweep(b.t.Context(), sweep(edit...)))(b.t)
	return r
}

const (
	ageAssignment = `UPDATE builds SET started_at = now() - interval '301 s' WHERE id = $1`
	ageSign       = `UPDATE builds SET started_at = now() - interval '1 h', last_seen_at = now() - $2::interval WHERE id = $1`
)

func TestSweepRequeuesASilentBuildWhereItStood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, later := b.build(), b.build()
	w := b.worker()
	w.gets(build.ID)
	require.Equal(t, store.SweepResult{}, b.sweep(), "it is fresh")
	b.exec(ageAssignment, build.ID)
	require.Equal(t, []store.BuildRef{w.losing(build.ID)}, plain(t, b.sweep().Requeued))

	got := b.find(build.ID)
	require.Equal(t, store.Pending, got.State)
	require.Empty(t, got.WorkerID)
	require.Equal(t, w.id, got.LastWorkerID)
	require.True(t, got.StartedAt.IsZero())
	require.Equal(t, "No sign of life from worker "+w.id+": attempt 1 is lost, build is pending again", b.logs(build.ID)[2])
	require.Equal(t, store.Idle, w.find().Status, "the worker itself polls")

	require.Equal(t, 2, b.worker().gets(build.ID).Jobs.First().Attempt)
	b.worker().gets(later.ID)
}

func TestSweepCountsFromTheLastSignOfLife(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(build.ID)))
	b.exec(ageSign, build.ID, "299 s")
	require.Empty(t, b.sweep().Requeued)
	b.exec(ageSign, build.ID, "301 s")
	require.Len(t, b.sweep().Requeued, 1)
}

func TestSweepFailsABuildWithoutAttemptsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	for i := range 3 {
		w := b.worker()
		w.gets(build.ID)
		b.exec(ageAssignment, build.ID)
		r := b.sweep()
		if i < 2 {
			require.Len(t, r.Requeued, 1)
			continue
		}
		want := w.losing(build.ID)
		want.Attempt = 3
		require.Equal(t, []store.BuildRef{want}, plain(t, r.Failed))
		got := b.find(build.ID)
		require.Equal(t, store.Failed, got.State)
		require.Equal(t, store.MessageTimeout, got.ErrorMessage)
		require.Equal(t, w.id, got.WorkerID)
		lines := b.logs(build.ID)
		require.Equal(t, store.MessageTimeout, lines[len(lines)-1])
	}
}

func TestUnregistrationUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	for range 4 {
		w := b.worker()
		w.gets(build.ID)
		require.Len(t, must(b.workers.Unregister(t.Context(), store.WorkerToken{Worker: w.number, Counter: w.shown}))(t).Requeued, 1)
	}
	b.worker().gets(build.ID)
	b.exec(ageAssignment, build.ID)
	require.Len(t, b.sweep().Requeued, 1)
	require.Equal(t, 5, b.find(build.ID).Attempt)
}

func TestSweepTakesSilentWorkersOffline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	silent, busy, alive := b.worker(), b.worker(), b.worker()
	build := b.build()
	busy.gets(build.ID)
	b.exec(`UPDATE workers SET last_seen_at = now() - interval '301 s' WHERE id <> $1`, alive.id)
	r := b.sweep()
	require.ElementsMatch(t, []string{silent.id, busy.id}, r.Offline)
	require.Empty(t, r.Requeued, "the build's own time has not come")
	require.Equal(t, store.Offline, busy.find().Status)
	require.Equal(t, store.Idle, alive.find().Status)
	require.Equal(t, store.SweepResult{}, b.sweep(), "offline is told once")
	b.exec(ageAssignment, build.ID)
	r = b.sweep()
	require.Len(t, r.Requeued, 1)
	require.Empty(t, r.Offline)
	require.Equal(t, store.Offline, busy.find().Status)
}

func TestABadBuildDoesNotKeepOthersFromBeingSwept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad, good := b.build(), b.build()
	holder, other := b.worker(), b.worker()
	holder.gets(bad.ID)
	other.gets(good.ID)
	b.exec(ageAssignment, bad.ID)
	b.exec(ageAssignment, good.ID)
	b.raise("builds", `OLD.id = '`+bad.ID+`'`)
	r, err := b.queue.Sweep(t.Context(), sweep())
	require.ErrorContains(t, err, "bad row")
	require.ErrorContains(t, err, holder.id)
	require.Equal(t, []store.BuildRef{other.losing(good.ID)}, plain(t, r.Requeued))
	b.worker().gets(good.ID)
}

func TestOneControllerSweepsAtATime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const key = 0x74616b74_73776570 // Sweep's lock
	release := b.locks(`SELECT pg_advisory_xact_lock($1)`, int64(key))
	require.True(t, b.sweep().Skipped)
	release()
	require.False(t, b.sweep().Skipped)
}

func TestTimeoutsArePersisted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, ok, err := b.queue.Timeouts(t.Context())
	require.NoError(t, err)
	require.False(t, ok)
	want := store.Timeouts{CheckInterval: time.Second, BuildTimeout: 1500 * time.Millisecond, WorkerTimeout: time.Hour}
	for range 2 {
		require.NoError(t, b.queue.SaveTimeouts(t.Context(), want))
	}
	got, ok, err := b.queue.Timeouts(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, want, got)
}

// Who waits for a database that stands still is judged by what was before that.
func TestASweepThatBeginsLateTakesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	b.worker().gets(build.ID)
	b.exec(ageAssignment, build.ID)
	require.Equal(t, store.Unavailable, codeOf(b.queue.Sweep(t.Context(), sweep(func(s *store.Sweep) { s.Patience = time.Nanosecond }))))
	require.Equal(t, store.Assigned, b.find(build.ID).State)
	require.Len(t, b.sweep().Requeued, 1)
}

// The database's clock is set forward while its workers beat: all of them look silent.
func TestASweepAfterAStepOfTheClockTakesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	b.worker().gets(build.ID)
	b.exec(ageAssignment, build.ID)
	b.exec(`UPDATE workers SET last_seen_at = now() - interval '301 s'`)
	// A clock that is ahead of what is expected is, for the sweep, one that was set.
	ahead := func(d time.Duration) func(*store.Sweep) {
		now := must(b.queue.Clock(t.Context()))(t)
		return func(s *store.Sweep) { s.Clock = store.ClockReading{Database: now.Add(-d), At: time.Now()} }
	}
	require.Equal(t, store.SweepResult{ClockStep: true}, b.sweep(ahead(store.MaxClockStep+time.Second)))
	require.Equal(t, store.Assigned, b.find(build.ID).State)
	r := b.sweep(ahead(-time.Hour)) // a step back is none of its concern
	require.False(t, r.ClockStep)
	require.Len(t, r.Requeued, 1)
	require.Len(t, r.Offline, 1)
}

func TestRegisteringReportsWhatIsNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kept, lost, given := b.build(), b.build(), b.build()
	w := b.worker(slots(3))
	for _, id := range []string{kept.ID, lost.ID, given.ID} {
		w.gets(id)
	}
	require.NoError(t, b.touch(t.Context(), w.heartbeat(kept.ID)))
	require.NoError(t, b.touch(t.Context(), w.heartbeat(lost.ID)))
	again := func(reports bool, running ...string) store.Registered {
		reg := must(b.workers.Register(t.Context(), store.Registration{ID: w.id, Name: "w", Slots: 3, Reports: reports, Running: running}))(t)
		return reg
	}
	require.Empty(t, again(false).Requeued, "an old worker says nothing")
	require.Equal(t, store.Building, b.find(lost.ID).State)

	reg := again(true, kept.ID)
	require.Equal(t, []store.BuildRef{w.losing(lost.ID), w.losing(given.ID)}, plain(t, reg.Requeued))
	require.Empty(t, reg.Failed)
	require.Equal(t, store.Building, b.find(kept.ID).State)
	require.Contains(t, b.logs(lost.ID), "Worker "+w.id+" runs this build no more: attempt 1 is lost, build is pending again")
	require.Contains(t, b.logs(given.ID), "Worker "+w.id+" gave this build back, build is pending again")
	var attempts []int
	rows := must(b.Pool.Query(t.Context(), `SELECT lost FROM builds ORDER BY seq`))(t)
	attempts = must(pgx.CollectRows(rows, pgx.RowTo[int]))(t)
	require.Equal(t, []int{0, 1, 0}, attempts, "giving back uses no attempt")

	b.workers.Rule.MaxAttempts = 1
	require.Equal(t, []store.BuildRef{w.losing(kept.ID)}, plain(t, again(true).Failed))
	require.Equal(t, store.MessageLost, b.find(kept.ID).ErrorMessage)
	require.Equal(t, store.Idle, w.find().Status)
}
