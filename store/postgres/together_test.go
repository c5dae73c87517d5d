package postgres_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/storage"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// twin is one of two equal sets of workers and builds. Their ids begin with its prefix.
type twin struct {
	*storetest.Database
	prefix string
	builds *postgres.Builds
	told   []string // of quarantines
}

type (
	drawnWorker struct {
		offline, resting     bool
		attempts, quarantine string
	}
	drawnBuild struct {
		state        store.BuildState
		holder, last int // indexes of workers, -1 for none
		attempt      int
		retry        bool // of build 0
		seen, logged int  // when the last heartbeat came; the size of the log
		retryOn      bool // exit code 75
		most, lost   int
		ended        bool // its last attempt, with exit code 75
	}
)

var anyWorker = rapid.Custom(func(r *rapid.T) drawnWorker {
	return drawnWorker{
		offline: rapid.Bool().Draw(r, "offline"), resting: rapid.Bool().Draw(r, "resting"),
		attempts: rapid.StringOfN(rapid.RuneFrom([]rune("fbe.")), 0, 5, -1).Draw(r, "attempts"), quarantine: rapid.SampledFrom([]string{"", "why"}).Draw(r, "quarantine"),
	}
})

func anyBuild(workers int) *rapid.Generator[drawnBuild] {
	return rapid.Custom(func(r *rapid.T) drawnBuild {
		b := drawnBuild{
			state:  rapid.SampledFrom([]store.BuildState{store.Building, store.Assigned, store.Building, store.Pending, store.Completed, store.Failed, store.Cancelled}).Draw(r, "state"),
			holder: rapid.IntRange(0, workers-1).Draw(r, "holder"), last: -1, attempt: rapid.IntRange(1, 3).Draw(r, "attempt"),
			retry: rapid.Bool().Draw(r, "retry"), seen: rapid.IntRange(0, 2).Draw(r, "seen"), logged: rapid.SampledFrom([]int{0, store.MaxLogHead - 60, store.MaxLogHead, store.MaxBuildLog}).Draw(r, "logged"),
			retryOn: rapid.Bool().Draw(r, "retry on"), most: rapid.IntRange(0, 4).Draw(r, "most"), lost: rapid.IntRange(0, 3).Draw(r, "lost"),
		}
		if b.state == store.Pending {
			if b.holder, b.last = -1, b.holder; rapid.Bool().Draw(r, "never assigned") {
				b.last, b.attempt = -1, 0
			}
			b.ended = b.retryOn && b.attempt > 0 && rapid.Bool().Draw(r, "ended")
		}
		return b
	})
}

func (w *twin) id(kind string, i int) any {
	if i < 0 {
		return nil
	}
	return fmt.Sprint(w.prefix, kind, i)
}

// fill inserts the rows of the set.
func (w *twin) fill(t *rapid.T, workers []drawnWorker, builds []drawnBuild) {
	batch := &pgx.Batch{}
	held := make([]int, len(workers))
	for _, b := range builds {
		if b.state.Held() {
			held[b.holder]++
		}
	}
	for i, d := range workers {
		status := store.Idle
		if held[i] > 0 {
			status = store.Busy
		}
		if d.offline {
			status = "offline"
		}
		batch.Queue(`INSERT INTO workers (id, slots, status, held, attempts, quarantine, quarantines, rests_until, last_seen_at, instance)
			VALUES ($1, 9, $2, $3, $4, nullif($5, ''), length($5), CASE WHEN $6 THEN 'infinity' ELSE '-infinity' END::timestamptz, now() - interval '1 h', 'one')`,
			w.id("w", i), status, held[i], d.attempts, d.quarantine, d.resting)
	}
	for i, d := range builds {
		batch.Queue(`WITH b AS (
			INSERT INTO builds (id, platform, state, worker_id, last_worker_id, attempt, retry_root, token_hash, log_lines, log_bytes, last_seen_at, has_inputs, lost, ended)
			VALUES ($1, 'ios', $2, $3, $4, $5, CASE WHEN $6 THEN 1 END, '\x00', 1, $7, now() - CASE $8::int WHEN 1 THEN interval '0' WHEN 2 THEN interval '1 h' END,
				$10 OR $11 > 0, $12, CASE WHEN $13 THEN 'exit:75' END) RETURNING id, seq
		), o AS (INSERT INTO build_inputs (build, max_attempts, retry_on) SELECT seq, nullif($11::smallint, 0), CASE WHEN $10::bool THEN '{75,137}'::smallint[] END FROM b WHERE $10 OR $11 > 0
		), i AS (INSERT INTO build_ids SELECT id, seq FROM b)
		INSERT INTO build_logs (build, number, message, kind, facts) SELECT seq, 1, 'Build submitted', 'submitted', CASE WHEN $6 THEN jsonb_build_object('build', $9::text) END FROM b`,
			w.id("b", i), d.state, w.id("w", d.holder), w.id("w", d.last), d.attempt, d.retry && i > 0, d.logged, d.seen, w.id("b", 0), d.retryOn, d.most, d.lost, d.ended)
	}
	require.NoError(t, w.Pool.SendBatch(t.Context(), batch).Close())
}

// rows returns all that the set's rows say, without its prefix, and with times as whether
// they are of now.
func (w *twin) rows(t *rapid.T) string {
	var all string
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT concat_ws(E'\n',
		(SELECT jsonb_pretty(jsonb_agg(to_jsonb(w) - '{number,registered_at,last_seen_at,rests_until}'::text[]
			|| jsonb_build_object('seen', last_seen_at > now() - interval '30 min', 'rests', CASE WHEN isfinite(rests_until) THEN round(extract(epoch FROM rests_until - now()) / 10)::text ELSE rests_until::text END) ORDER BY id))
		FROM workers w WHERE starts_with(id, $1)),
		(SELECT jsonb_pretty(jsonb_agg(to_jsonb(b) - '{seq,position,submitted_at,last_seen_at,sign_gap,completed_at,updated_at,waiting_since}'::text[] || jsonb_build_object('seen', last_seen_at > now() - interval '30 min',
			'over', completed_at > now() - interval '30 min', 'waits', waiting_since > now() - interval '30 min',
			'logs', (SELECT jsonb_agg(to_jsonb(l) - '{seq,build,at}'::text[] ORDER BY seq) FROM build_logs l WHERE build = b.seq),
			'tails', (SELECT jsonb_agg(to_jsonb(l) - '{seq,build,at}'::text[] ORDER BY begins) FROM build_log_tails l WHERE build = b.seq),
			'inputs', (SELECT to_jsonb(i) - '{build,due_at}'::text[] || jsonb_build_object('due', round(extract(epoch FROM due_at - now()) / 10)) FROM build_inputs i WHERE build = b.seq),
			'files', (SELECT jsonb_agg(to_jsonb(f) - '{build,sha256,size}'::text[]) FROM build_files f WHERE build = b.seq)) ORDER BY id))
		FROM builds b WHERE starts_with(id, $1)))`, w.prefix).Scan(&all))
	return regexp.MustCompile(`\d\d:\d\d:\d\d UTC`).ReplaceAllString(w.plain(all), "then")
}

func (w *twin) plain(text string) string { return strings.ReplaceAll(text, w.prefix, "") }

// outcome is an error as its client gets it.
func (w *twin) outcome(err error) string {
	if err == nil {
		return ""
	}
	text := w.plain(err.Error())
	return string(store.CodeOf(err)) + text[strings.LastIndex(text, ": ")+1:]
}

// twins calls each for pairs of equal sets.
func twins(t *testing.T, each func(r *rapid.T, workers []drawnWorker, builds []drawnBuild, one, other *twin)) {
	t.Helper()
	db, n := storetest.New(t), 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		workers := rapid.SliceOfN(anyWorker, 1, 3).Draw(r, "workers")
		builds := rapid.SliceOfN(anyBuild(len(workers)), 1, 8).Draw(r, "builds")
		var pair [2]*twin
		for i := range pair {
			w := &twin{Database: db, prefix: fmt.Sprintf("%c%d-", 'x'+i, n)}
			w.builds = postgres.NewBuilds(db.DB, postgres.BuildsConfig{
				Quarantine: store.QuarantineRule{Faults: 2, Attempts: 5},
				Quarantined: func(worker, why string, status store.WorkerStatus) {
					w.told = append(w.told, w.plain(worker+why+string(status)))
				},
			})
			w.fill(r, workers, builds)
			pair[i] = w
		}
		each(r, workers, builds, pair[0], pair[1])
		require.Equal(r, pair[0].rows(r), pair[1].rows(r))
		require.Equal(r, pair[0].told, pair[1].told)
	})
}

// anyReport is who reports on which build: by indexes, of which the last are unknown ids.
type anyReport struct{ build, worker, attempt, kind int }

// reports draws batches of reports, in each of which a build is only once. Most come from the
// worker that holds the build.
func reports(r *rapid.T, workers int, builds []drawnBuild) [][]anyReport {
	report := rapid.Custom(func(r *rapid.T) anyReport {
		p := anyReport{
			build: rapid.IntRange(0, len(builds)).Draw(r, "build"), worker: rapid.IntRange(0, workers).Draw(r, "worker"),
			attempt: rapid.SampledFrom([]int{0, 3, 1}).Draw(r, "attempt"), kind: rapid.IntRange(0, 5).Draw(r, "kind"),
		}
		if p.build < len(builds) && rapid.IntRange(0, 3).Draw(r, "holder") > 0 {
			p.worker, p.attempt = max(builds[p.build].holder, builds[p.build].last, 0), 0
		}
		return p
	})
	batch := rapid.SliceOfNDistinct(report, 1, 8, func(one anyReport) int { return one.build })
	return rapid.SliceOfN(batch, 1, 3).Draw(r, "batches")
}

// Results that share a transaction end as if each had been recorded alone, in their order.
// Those that are left alone come after it.
func TestResultsThatShareATransactionEndAsIfAlone(t *testing.T) {
	t.Parallel()
	twins(t, func(r *rapid.T, workers []drawnWorker, builds []drawnBuild, one, other *twin) {
		for _, batch := range reports(r, len(workers), builds) {
			result := func(w *twin, p anyReport) store.Result {
				s := success(w.id("b", p.build).(string), w.id("w", p.worker).(string))
				if p.kind > 1 {
					s = failure(s.BuildID, s.WorkerID)
				}
				switch s.Attempt = p.attempt; p.kind {
				case 3:
					s.Fault = store.FaultEngine
				case 4:
					s.Ended = "exit:75"
				case 5:
					s.Ended = "signal:9"
				}
				return s
			}
			together := make([]postgres.Ending, len(batch))
			for i, p := range batch {
				together[i].Result = result(one, p)
			}
			one.builds.FinishTogether(r.Context(), together)
			for _, alone := range []bool{false, true} {
				for i, p := range batch {
					if together[i].Alone != alone {
						continue
					}
					done, err := other.builds.Finish(r.Context(), result(other, p))
					require.Equal(r, other.outcome(err), one.outcome(together[i].Err))
					if err == nil {
						require.Equal(r, [2]bool{done.Repeat, done.Again}, [2]bool{together[i].Repeat, together[i].Again})
					}
				}
			}
		}
	})
}

// Heartbeats that share a statement are recorded as if each were alone.
func TestHeartbeatsThatShareAStatementAreRecordedAsIfAlone(t *testing.T) {
	t.Parallel()
	twins(t, func(r *rapid.T, workers []drawnWorker, builds []drawnBuild, one, other *twin) {
		for _, batch := range reports(r, len(workers), builds) {
			heartbeat := func(w *twin, p anyReport) store.Heartbeat {
				s := store.Heartbeat{BuildID: w.id("b", p.build).(string), WorkerID: w.id("w", p.worker).(string), Attempt: p.attempt}
				s.Instance = []string{"", "one", "other", "", "", "one"}[p.kind]
				for i := range p.kind {
					s.Logs = append(s.Logs, store.LogLine{Level: store.Warn, Message: fmt.Sprint("line ", i)})
				}
				if p.kind == 2 {
					s.Kind, s.Facts = "uploaded", store.LineFacts{Reason: "why"}
				}
				return s
			}
			var together []store.Heartbeat
			for _, p := range batch {
				together = append(together, heartbeat(one, p))
			}
			replies, errs := one.builds.BeatTogether(r.Context(), together)
			for i, p := range batch {
				do := other.builds.RecordHeartbeat
				if i%2 == 0 {
					do = other.builds.Heartbeat
				}
				reply, err := do(r.Context(), heartbeat(other, p))
				reply.Used = store.WorkerToken{}
				require.Equal(r, other.outcome(err), one.outcome(errs[i]))
				require.Equal(r, reply, replies[i])
			}
		}
	})
}

// hold makes two batches of each kind wait, so that what comes before release shares the next.
func (b *fixture) hold() (release func()) {
	b.t.Helper()
	release = b.locks(`LOCK TABLE build_ids`)
	for i := range 2 {
		none := fmt.Sprint("none", i)
		go func() { _, _ = b.builds.Finish(b.t.Context(), failure(none, none)) }()
		go func() { _ = b.touch(b.t.Context(), store.Heartbeat{BuildID: none, WorkerID: none}) }()
	}
	b.waits(min(4, int(b.conns)))
	return release
}

// queued returns when n results and heartbeats are in no batch yet.
func (b *fixture) queued(n int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		results, heartbeats := b.builds.Waiting()
		return results+heartbeats == n
	}, 4*time.Second, time.Millisecond)
}

// member is a result that shares a transaction with others.
type member struct {
	build  store.Build
	worker *client
	file   placed
	done   chan error // of Finish
	repeat bool
}

// placed is a staged file that counts what is done with it.
type placed struct {
	rename, commit func() error
	aborts         int
}

func (f *placed) Rename() error                { return f.rename() }
func (f *placed) Commit(context.Context) error { return f.commit() }
func (f *placed) Abort(context.Context)        { f.aborts++ }

func fine() error { return nil }

// members returns n builds with the workers that hold them.
func (b *fixture) members(n int) []*member {
	b.t.Helper()
	all := make([]*member, n)
	for i := range all {
		all[i] = &member{build: b.build(), worker: b.worker(), file: placed{rename: fine, commit: fine}, done: make(chan error, 1)}
		all[i].worker.gets(all[i].build.ID)
	}
	return all
}

func (m *member) finish() {
	done, err := m.worker.builds.Finish(m.worker.t.Context(), success(m.build.ID, m.worker.id), &m.file)
	m.repeat = done.Repeat
	m.done <- err
}

// together sends the successes of all so that they share a transaction.
func (b *fixture) together(all []*member) {
	b.t.Helper()
	release := b.hold()
	for i, m := range all {
		go m.finish()
		b.queued(i + 1)
	}
	release()
}

func TestAFileThatGetsNoNameFailsItsResultOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := b.members(4)
	full := store.NewError(store.DiskFull, "Disk full")
	all[1].file.rename = func() error { return full }
	all[2].file.commit = func() error { return full }
	all[3].file.commit = func() error { panic("disk on fire") }
	b.together(all)
	for i, m := range all {
		err := <-m.done
		if i == 0 {
			require.NoError(t, err)
			require.Equal(t, store.Completed, b.find(m.build.ID).State)
			require.Equal(t, 1, m.worker.find().Completed)
			continue
		}
		require.ErrorContains(t, err, map[bool]string{true: "Disk full", false: "disk on fire"}[i < 3])
		m.worker.gets(m.build.ID, m.worker.byID()) // again: nothing of it was recorded
	}
	require.Equal(t, []int{0, 1, 1, 1}, []int{all[0].file.aborts, all[1].file.aborts, all[2].file.aborts, all[3].file.aborts})
	require.Equal(t, 1, b.count(`SELECT count(*) FROM build_files WHERE kind = 'result'`))
}

func TestALostAnswerToABatchOfResultsIsUnknownToAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := b.members(3)
	cut := b.through()
	one := b.worker()
	one.finishes(b.build().ID) // prepares the statements
	release := b.hold()
	for i, m := range all {
		go m.finish()
		b.queued(i + 1)
	}
	cut("Build completed successfully")
	release()
	for _, m := range all {
		require.ErrorIs(t, <-m.done, store.ErrOutcomeUnknown)
		require.Zero(t, m.file.aborts, "its row may name it")
		go m.finish()
		require.NoError(t, <-m.done)
		require.True(t, m.repeat)
		require.Equal(t, 1, m.file.aborts, "the repeat's own")
		require.Equal(t, 1, m.worker.find().Completed)
	}
}

// Of results that share a transaction the database refuses one. The files of the others were
// named in the transaction that was refused: they keep their names.
func TestAResultThatTheDatabaseRefusesFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := b.members(5)
	dir := filepath.Join(t.TempDir(), "files")
	local := must(storage.OpenLocal(dir, seal.NewRing(seal.Key{7})))(t)
	defer func() { require.NoError(t, local.Close()) }()
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON builds FOR EACH ROW WHEN (NEW.state = 'completed' AND NEW.id = '` + all[1].build.ID + `') EXECUTE FUNCTION refuse()`)
	errs := make([]chan error, len(all))
	release := b.hold()
	for i, m := range all {
		r := success(m.build.ID, m.worker.id)
		u := must(local.Create(t.Context(), 100, "", strings.NewReader("result of "+m.build.ID)))(t)
		*r.File = must(u.Stage(t.Context(), r.File.Name))(t)
		errs[i] = make(chan error, 1)
		go func() { _, err := b.builds.Finish(t.Context(), r, u); errs[i] <- err }()
		b.queued(i + 1)
	}
	release()
	for i, m := range all {
		err := <-errs[i]
		if i == 1 {
			require.ErrorContains(t, err, "refused")
			require.Equal(t, store.Assigned, b.find(m.build.ID).State)
			continue
		}
		require.NoError(t, err)
		row := b.find(m.build.ID).Result
		content := must(os.ReadFile(filepath.Join(dir, row.Name)))(t)
		require.Equal(t, row.SHA256, sha256.Sum256(content))
	}
	require.Empty(t, must(os.ReadDir(filepath.Join(dir, "tmp")))(t))
}

func TestALockedRowHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	for what, lock := range map[string]func(b *fixture, some ...*member) (release func()){
		"workers": func(b *fixture, some ...*member) func() {
			return b.locks(lockWorkers, []string{some[0].worker.id, some[1].worker.id})
		},
		"builds": func(b *fixture, some ...*member) func() {
			return b.locks(`SELECT FROM builds WHERE id = ANY ($1) FOR UPDATE`, []string{some[0].build.ID, some[1].build.ID})
		},
	} {
		inDatabase(t, what, func(b *fixture) {
			all := b.members(6)
			release, begin := lock(b, all[0], all[1]), b.hold()
			for i, m := range all {
				if i%2 == 0 {
					go m.finish()
				} else {
					go func() { m.done <- b.touch(b.t.Context(), m.worker.heartbeat(m.build.ID)) }()
				}
				b.queued(i + 1)
			}
			begin()
			for _, m := range all[2:] {
				require.NoError(b.t, <-m.done)
			}
			b.waits(2)
			release()
			require.NoError(b.t, <-all[0].done)
			require.NoError(b.t, <-all[1].done)
			require.Equal(b.t, store.Building, b.find(all[1].build.ID).State)
		})
	}
}

// asked is a context that reports that somebody waits for its end.
type asked struct {
	context.Context
	waits chan struct{}
}

func (c asked) Done() <-chan struct{} {
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// Two workers deliver a build that was never assigned: of both results together each would be
// accepted, because each is decided from the row.
func TestABuildIsNotTwiceInABatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.members(1)[0]
	build := b.build()
	workers := []*client{b.worker(), b.worker()}
	release := b.hold()
	type end struct {
		err  error
		file settled
	}
	ends, posts := make(chan end, 2), make(chan error, 2)
	for _, w := range workers {
		ctx := asked{t.Context(), make(chan struct{}, 1)}
		go func() {
			var e end
			_, e.err = b.builds.Finish(ctx, success(build.ID, w.id), &e.file)
			ends <- e
		}()
		<-ctx.waits
	}
	for i := range cap(posts) {
		ctx := asked{t.Context(), make(chan struct{}, 1)}
		s := held.worker.heartbeat(held.build.ID)
		s.Logs = []store.LogLine{{Level: store.Info, Message: fmt.Sprint("post ", i)}}
		go func() { posts <- b.touch(ctx, s) }()
		<-ctx.waits
	}
	b.queued(2) // of four
	release()
	one, other := <-ends, <-ends
	require.NotEqual(t, one.err == nil, other.err == nil, "%v, %v", one.err, other.err)
	for _, e := range []end{one, other} {
		require.Equal(t, settled{committed: e.err == nil, aborted: e.err != nil}, e.file)
	}
	require.Equal(t, 1, b.count(`SELECT sum(completed)::int FROM workers`))
	require.NoError(t, <-posts)
	require.NoError(t, <-posts)
	require.Equal(t, []string{"post 0", "post 1"}, b.logs(held.build.ID)[2:])
}

// Renames under row locks that take long must not hold up the results of others.
func TestResultsShareNoTransactionWhileTheDiskIsSlow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := b.members(7)
	all[0].file.rename = func() error { <-time.After(110 * time.Millisecond); return nil }
	all[0].finish()
	require.NoError(t, <-all[0].done)
	release := b.locks(`LOCK TABLE build_ids`)
	for _, m := range all[1:4] {
		go m.finish()
	}
	b.waits(3) // a transaction each
	release()
	for _, m := range all[1:4] {
		require.NoError(t, <-m.done)
	}
	b.together(all[4:]) // the disk is fast again
	for _, m := range all[4:] {
		require.NoError(t, <-m.done)
	}
}

// The time of a transaction ends before the database ends a session that stands still: a name
// that is given later could replace the file of a newer attempt.
func TestNoFileIsNamedAfterTheTimeOfItsTransaction(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	w.fails(build.ID)
	again := b.build(func(s *store.Submission) { s.RetryOf = build.ID }) // whose result is recorded alone, in its caller's time
	w.gets(again.ID)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("too slow"))
	defer cancel()
	named := false
	late := placed{rename: func() error { named = true; return nil }, commit: fine}
	stands := placed{rename: func() error { <-ctx.Done(); return nil }, commit: fine}
	_, err := b.builds.Finish(ctx, success(again.ID, w.id), &stands, &late)
	require.Equal(t, store.Unavailable, store.CodeOf(err), "%v", err)
	require.False(t, named)
	require.Equal(t, []int{1, 1}, []int{stands.aborts, late.aborts})
	require.Equal(t, store.Assigned, b.find(again.ID).State)
}

// A caller whose time is up while it waits for a batch is not told of a defect.
func TestTheEndOfAWaitForABatchIsAnOutage(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	release := b.hold()
	defer release()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("too slow"))
	defer cancel()
	file := settled{}
	_, err := b.builds.Finish(ctx, success(build.ID, w.id), &file)
	require.Equal(t, store.Unavailable, store.CodeOf(err), "%v", err)
	require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
	require.Equal(t, settled{aborted: true}, file)
	require.Equal(t, store.Unavailable, store.CodeOf(b.touch(ctx, w.heartbeat(build.ID))))
}
