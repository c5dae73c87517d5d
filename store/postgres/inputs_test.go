package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func with(i store.Inputs) func(*store.Submission) {
	return func(s *store.Submission) { s.Inputs = &i }
}

// able are the reserved labels of a worker that can do all that inputs need, for 4 hours.
func able(more ...string) func(*store.Registration) {
	return labelled(append([]string{"takt:env", "1", "takt:secrets", "1", "takt:exit", "1", "takt:timeout", "4"}, more...)...)
}

func everything() store.Inputs {
	dirty := true
	return store.Inputs{
		Params: store.Params{"BUILD_NUMBER": "42", "APP_TEXT": "two\nlines \"quoted\" ü"}, ParamsOptional: true,
		Secrets: map[string]string{"TOKEN": store.SecretEnv, "CERT": store.SecretFile}, Timeout: 90 * time.Minute, MaxAttempts: 2, RetryOn: []int{75, 143},
		Facts: store.Facts{Commit: "0123456789abcdef", Branch: "main", Dirty: &dirty, Remote: "https://example.com/a.git"},
	}
}

func TestInputsAreKeptAndDecideWhoGetsTheBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs := everything()
	build, plain := b.build(with(inputs), requires("xcode>=16")), b.build()
	labels, facts := b.build(func(s *store.Submission) { s.Labels = store.Labels{"cache": "pods"} }), b.build(with(store.Inputs{Facts: inputs.Facts}))
	for _, got := range []store.Build{build, b.find(build.ID)} {
		require.Equal(t, &inputs, got.Inputs)
		require.Equal(t, "takt:env,takt:exit,takt:secrets,takt:timeout>=2,xcode>=16", got.Require.String())
		require.Equal(t, "xcode>=16", got.Require.Public().String())
		require.Equal(t, "parameters, retries by exit code, secrets, a time limit of 2 h", got.Require.Features())
	}
	all, _, err := b.builds.List(t.Context(), store.BuildFilter{}, store.Page{})
	require.NoError(t, err)
	require.Equal(t, &inputs, all[3].Inputs)
	require.Nil(t, all[2].Inputs)
	require.Equal(t, store.Inputs{Facts: inputs.Facts}, *b.find(facts.ID).Inputs)
	require.EqualValues(t, store.IOSClass, facts.ClassID, "facts need nothing of a worker")

	old, unable := b.worker(slots(9), labelled("xcode", "16")), b.worker(able())
	for _, want := range []store.Build{plain, labels, facts} {
		job := old.gets(want.ID).Jobs.First()
		require.Equal(t, want.ID != plain.ID, job.HasInputs)
	}
	old.gets("")
	unable.gets("")
	able := b.worker(able("xcode", "16.2"))
	require.True(t, able.gets(build.ID).Jobs.First().HasInputs)
	require.Equal(t, store.Labels{"xcode": "16.2"}, able.find().Labels, "reserved ones are not shown")

	long := strings.Repeat("a", 50)
	for i := range 7 {
		long += fmt.Sprintf(",a%d=%s", i, strings.Repeat("c", 60))
	}
	_, err = b.builds.Submit(t.Context(), store.Submission{ID: "toolong", Platform: store.IOS, Inputs: &inputs, Require: store.StoredRequire(long)})
	require.Equal(t, store.InvalidArgument, store.CodeOf(err), "more than older controllers read")
}

// assign010 polls as takt 0.1.0 does, and returns the build that its worker gets. It passes over the
// builds skip.
func (c *client) assign010(skip ...int64) (build string) {
	c.t.Helper()
	build, err := c.try010(append([]int64{}, skip...))
	require.NoError(c.t, err)
	return build
}

func (c *client) try010(skip []int64) (build string, err error) {
	c.t.Helper()
	sql, err := os.ReadFile("testdata/assign-0.1.0.sql")
	require.NoError(c.t, err)
	var at pgtype.TID
	require.NoError(c.t, c.Pool.QueryRow(c.t.Context(), `SELECT ctid FROM workers WHERE number = $1`, c.number).Scan(&at))
	rows, err := c.Pool.Query(c.t.Context(), string(sql), pgx.NamedArgs{
		"numbers": []int64{int64(c.number)}, "addresses": []pgtype.TID{at}, "shown": []*int64{nil}, "used": []int64{0}, "parked": []*int64{nil},
		"reconcile": []bool{false}, "listed": []string{}, "skip": skip, "spare": false, "from_all": 0, "from_ios": 0, "from_android": 0, "below": true,
	})
	require.NoError(c.t, err)
	served := 0
	for rows.Next() {
		values, err := rows.Values()
		require.NoError(c.t, err)
		require.EqualValues(c.t, 0, values[1], "the poll is served")
		build, _ = values[11].(string)
		served++
	}
	if rows.Err() == nil {
		require.Equal(c.t, 1, served)
	}
	return build, rows.Err()
}

// fail010 is how takt 0.1.0 fails a build that the database refuses to assign.
const fail010 = `UPDATE builds SET state = 'failed', error_message = 'Build cannot be assigned: the database refuses it', completed_at = now(), updated_at = now() WHERE id = $1`

// Its jobs would not say that the build has inputs, so it gives it to no worker at all. It can't fail
// the build either, so it passes over it.
func TestRelease010HandsOutNoBuildThatNeedsAFeature(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines") // 0.1.0 numbers none
	skip := []int64{}
	refused := func(w *client, build string) {
		t.Helper()
		_, err := w.try010(skip)
		_, failed := b.Pool.Exec(t.Context(), fail010, build)
		for _, err := range []error{err, failed} {
			is, _ := errors.AsType[*pgconn.PgError](err)
			require.NotNil(t, is, "%v", err)
			require.Equal(t, "P0001", is.Code, "an error of the build, not of the database")
			require.Contains(t, is.Message, build)
		}
		skip = append(skip, b.find(build).Seq)
	}
	i := everything()
	var need []store.Build
	for _, one := range []store.Inputs{i, {Params: i.Params}, {Secrets: i.Secrets}, {Timeout: i.Timeout}, {RetryOn: i.RetryOn}} {
		build := b.build(with(one), requires("gpu"))
		refused(b.worker(able("gpu", "1")), build.ID)
		need = append(need, build)
	}
	waits := b.build()
	b.exec(`UPDATE builds SET class = 0 WHERE id = $1`, waits.ID)
	refused(b.worker(able()), waits.ID) // until its retry
	behind := b.build()
	require.Equal(t, behind.ID, b.worker().assign010(skip...))
	b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE state = 'pending'`)
	for _, edit := range []func(*store.Submission){requires(""), requires("gpu"), requires("takt.env"), with(store.Inputs{MaxAttempts: 1}), with(store.Inputs{Facts: i.Facts})} {
		build := b.build(edit)
		require.Equal(t, build.ID, b.worker().assign010(), "as before")
	}
	b.exec(`UPDATE builds SET state = 'pending', completed_at = NULL WHERE id = $1`, need[0].ID)
	b.worker(able("gpu", "1")).gets(need[0].ID)
}

// repeatBefore is how 0e9fdba2 finds the builds that worker $1 may not have received. 0.1.0 does in
// assign010.
const repeatBefore = `SELECT id FROM builds WHERE worker_id = $1 AND state = 'assigned' FOR NO KEY UPDATE SKIP LOCKED`

func TestOlderControllersRepeatNoHandOutOfABuildThatNeedsAFeature(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repeats := func(w *client, want string) {
		t.Helper()
		require.Equal(t, want, w.assign010())
		rows, err := b.Pool.Query(t.Context(), repeatBefore, w.id)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, want != "", slices.Contains(found, want), found)
	}
	labels, w := b.build(func(s *store.Submission) { s.Labels = store.Labels{"a": "b"} }), b.worker()
	w.lost()
	repeats(w, labels.ID) // it needs nothing of a worker
	build, w := b.build(with(store.Inputs{Params: store.Params{"A": "1"}})), b.worker(able(), slots(2))
	w.lost()
	repeats(w, "")
	got := w.gets(build.ID)
	require.True(t, got.Redelivered)
	require.True(t, got.Jobs.First().HasInputs)
	repeats(w, "")
	require.NoError(t, w.registers("", able(), slots(2)))
	repeats(w, "")
	w.gets(build.ID) // it has a new number
	began := func() bool { return must(b.builds.RecordHeartbeat(t.Context(), w.heartbeat(build.ID)))(t).Began }
	require.True(t, began())
	require.False(t, began())
	w.gets("")
	require.NoError(t, w.registers("", able(), func(r *store.Registration) { r.Reports, r.Running = true, []string{build.ID} }))
	w.gets("")
	w.finishes(build.ID)

	next := b.build(with(store.Inputs{Params: store.Params{"A": "1"}, MaxAttempts: 1}))
	w.lost()
	require.NoError(t, w.registers("", able(), func(r *store.Registration) { r.Reports = true }))
	require.Equal(t, store.Pending, b.find(next.ID).State, "it had not begun, so no attempt is lost")
}

// loseBefore is how older controllers count a lost attempt, backBefore how 0e9fdba2 takes a build back
// from a worker that could not run it.
const (
	loseBefore = `UPDATE builds SET state = CASE WHEN lost + 1 < 3 THEN 'pending' ELSE 'failed' END, lost = lost + 1, last_worker_id = worker_id,
	worker_id = CASE WHEN lost + 1 < 3 THEN NULL ELSE worker_id END, started_at = CASE WHEN lost + 1 < 3 THEN NULL ELSE started_at END,
	last_seen_at = CASE WHEN lost + 1 < 3 THEN NULL ELSE last_seen_at END, completed_at = CASE WHEN lost + 1 < 3 THEN NULL ELSE now() END,
	error_message = CASE WHEN lost + 1 < 3 THEN NULL ELSE 'Build timeout' END, updated_at = now() WHERE id = $1 RETURNING state`
	backBefore = `UPDATE builds SET given_back = given_back + 1, state = 'pending', worker_id = NULL, last_worker_id = worker_id, started_at = NULL, last_seen_at = NULL,
	updated_at = now(), log_lines = log_lines + 1 WHERE id = $1 RETURNING state`
)

func TestOlderControllersCountTheAttemptsThatABuildWasSubmittedWith(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines", "worker_held", "worker_status")
	for name, c := range map[string]struct {
		inputs *store.Inputs
		how    string
		want   []store.BuildState
	}{
		"as many as usual": {nil, loseBefore, []store.BuildState{store.Pending, store.Pending, store.Failed}},
		"no number":        {&store.Inputs{Timeout: time.Hour}, loseBefore, []store.BuildState{store.Pending, store.Pending, store.Failed}},
		"fewer":            {&store.Inputs{MaxAttempts: 2}, loseBefore, []store.BuildState{store.Pending, store.Failed}},
		"one":              {&store.Inputs{MaxAttempts: 1}, loseBefore, []store.BuildState{store.Failed}},
		"more":             {&store.Inputs{MaxAttempts: 4}, loseBefore, []store.BuildState{store.Pending, store.Pending, store.Pending, store.Failed}},
		"given back":       {&store.Inputs{MaxAttempts: 2}, backBefore, []store.BuildState{store.Pending, store.Failed}},
		"given back often": {nil, backBefore, []store.BuildState{store.Pending, store.Pending, store.Pending, store.Pending}},
	} {
		build := b.build(func(s *store.Submission) { s.Inputs = c.inputs })
		for i, want := range c.want {
			w := b.worker(able())
			w.gets(build.ID)
			var is store.BuildState
			require.NoError(t, b.Pool.QueryRow(t.Context(), c.how, build.ID).Scan(&is))
			require.Equal(t, want, is, "%s, attempt %d", name, i+1)
			switch found := b.find(build.ID); is {
			case store.Failed:
				require.Equal(t, w.id, found.WorkerID, name)
				require.NotEmpty(t, found.ErrorMessage, name)
			default:
				require.Empty(t, found.ErrorMessage, name)
			}
		}
		if c.inputs == nil && c.how == backBefore {
			require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "", ""))
		}
	}
}

// The statement of a retry of takt 0.1.0, and of 0e9fdba2 as far as it matters.
const (
	retry010 = `INSERT INTO builds (id, platform, priority, token_hash, has_certs, retry_root)
	SELECT 'retry', 'ios', 0, '\x00', false, coalesce(o.retry_root, o.seq) FROM builds o WHERE o.id = $1`
	retryBefore = `INSERT INTO builds (id, platform, class, priority, position, token_hash, has_certs, log_lines, submitter, retry_root, last_worker_id)
	SELECT 'retry', 'ios', o.class, 0, o.position, '\x00', false, 1, NULL, coalesce(o.retry_root, o.seq), NULL FROM builds o WHERE o.id = $1`
)

func TestOlderControllersRefuseRetriesThatWouldLoseInputs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	retries := func(of store.Build, i *store.Inputs) store.Build {
		return b.build(func(s *store.Submission) { s.RetryOf, s.Inputs = of.ID, i })
	}
	refused := func(of store.Build) bool {
		t.Helper()
		was := false
		for _, sql := range []string{retry010, retryBefore} {
			err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), sql, of.ID); err != nil {
					return err
				}
				return pgx.ErrTxCommitRollback // it is allowed, and undone
			})
			is, _ := errors.AsType[*pgconn.PgError](err)
			if is == nil {
				require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
				require.False(t, was)
				continue
			}
			was = true
			require.Equal(t, "57014", is.Code, "both answer 503 with it")
			require.Contains(t, is.Message, "retry it at a newer controller")
		}
		return was
	}
	i := everything()
	plain, facts := b.build(), b.build(with(store.Inputs{Facts: i.Facts}))
	require.False(t, refused(plain))
	require.False(t, refused(facts), "facts alone may be left out")
	for name, one := range map[string]store.Inputs{
		"params": {Params: i.Params}, "secrets": {Secrets: i.Secrets}, "timeout": {Timeout: i.Timeout}, "attempts": {MaxAttempts: 1}, "exit": {RetryOn: i.RetryOn},
	} {
		require.True(t, refused(b.build(with(one))), name)
	}
	changed := retries(plain, &store.Inputs{Params: i.Params})
	require.True(t, refused(changed), "the parameters came with the retry")
	require.Equal(t, &store.Inputs{Params: i.Params}, b.find(changed.ID).Inputs)
}

// register010 is how takt 0.1.0 registers a worker again, registerBefore how 0e9fdba2 does.
const (
	register010    = `UPDATE workers SET used = used + $2, handed = used + $2 + 1024, last_seen_at = now(), status = 'idle', slots = 1, platforms = '{}' WHERE id = $1`
	registerBefore = `UPDATE workers SET used = used + $2, handed = used + $2 + 1024, last_seen_at = now(), status = 'idle', slots = 1, platforms = '{}', labels = '{"a": "1", "takt.env": "1"}' WHERE id = $1`
)

// A worker registered by an older controller may be one of an older release.
func TestOlderControllersRegisterWorkersWithoutFeatures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	labels := func(id string) (l store.Labels) {
		t.Helper()
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT labels FROM workers WHERE id = $1`, id).Scan(&l))
		return l
	}
	w := b.worker(able("a", "1"))
	require.Len(t, labels(w.id), 5)
	w.gets("") // its counter grows
	w.drains(true)
	w.drains(false)
	require.Len(t, labels(w.id), 5, "nothing but a registration changes them")
	b.exec(register010, w.id, 1<<20)
	require.Equal(t, store.Labels{"a": "1"}, labels(w.id))
	require.NoError(t, w.registers("", able("a", "2")))
	require.Len(t, labels(w.id), 5)
	b.exec(registerBefore, w.id, 1<<20)
	require.Equal(t, store.Labels{"a": "1", "takt.env": "1"}, labels(w.id))
	require.NoError(t, w.registers("", able()))
	b.exec(register010, w.id, 1<<20)
	require.Nil(t, labels(w.id))
}

// failBefore is how 0e9fdba2 fails builds of classes that it believes to have no workers.
const failBefore = `UPDATE builds SET state = 'failed', completed_at = now(), updated_at = now(), log_lines = log_lines + 1,
	error_message = 'No worker can take this build: it needs ' || builds.platform || CASE WHEN k.require <> '' THEN ' with ' || k.require ELSE '' END
FROM build_classes k WHERE k.id = class AND state = 'pending'`

func TestOlderControllersFailNoBuildWhoseClassTheyCantRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines")
	params, gpu, plain := b.build(with(everything())), b.build(requires("gpu,takt.env")), b.build()
	b.exec(failBefore)
	require.Equal(t, store.Pending, b.find(params.ID).State)
	require.Equal(t, []store.BuildState{store.Failed, store.Failed}, []store.BuildState{b.find(gpu.ID).State, b.find(plain.ID).State})
}

func TestABuildHasAsManyAttemptsAsItWasSubmittedWith(t *testing.T) {
	t.Parallel()
	lose := func(b *fixture, build store.Build, most int) bool {
		b.worker().gets(build.ID)
		b.exec(ageAssignment, build.ID)
		return len(b.sweep(func(s *store.Sweep) { s.Rule.MaxAttempts = most }).Failed) == 1
	}
	inDatabase(t, "fewer than usual", func(b *fixture) {
		build := b.build(with(store.Inputs{MaxAttempts: 1}))
		require.True(b.t, lose(b, build, 3))
		require.Equal(b.t, store.MessageTimeout, b.find(build.ID).ErrorMessage)
	})
	inDatabase(t, "more than usual", func(b *fixture) {
		build := b.build(with(store.Inputs{MaxAttempts: 4}))
		for range 3 {
			require.False(b.t, lose(b, build, 1))
		}
		require.True(b.t, lose(b, build, 1))
	})
	inDatabase(t, "only facts", func(b *fixture) {
		require.True(b.t, lose(b, b.build(with(store.Inputs{Facts: store.Facts{Branch: "main"}})), 1))
	})
	inDatabase(t, "a worker that comes back without it", func(b *fixture) {
		build, w := b.build(with(store.Inputs{MaxAttempts: 1})), b.worker()
		w.gets(build.ID)
		require.NoError(b.t, b.touch(b.t.Context(), w.heartbeat(build.ID)))
		require.NoError(b.t, w.registers("", func(r *store.Registration) { r.Reports = true }))
		require.Equal(b.t, store.Failed, b.find(build.ID).State)
	})
	inDatabase(t, "given back", func(b *fixture) {
		build := b.build(with(store.Inputs{MaxAttempts: 3}))
		require.False(b.t, lose(b, build, 9))
		for i, state := range []store.BuildState{store.Pending, store.Failed} {
			w := b.worker()
			w.gets(build.ID)
			back := must(b.builds.GiveBack(b.t.Context(), fault(build.ID, w.id, store.FaultEngine)))(b.t)
			require.Equal(b.t, state, back.State, i)
		}
	})
}

func TestHowACommandEndedIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	n := func(i int) *int { return &i }
	for want, e := range map[store.Ended]store.Ended{
		"exit:75": store.NewEnded(n(75), nil, false), "signal:9": store.NewEnded(n(137), n(9), false), "timeout": store.NewEnded(nil, n(9), true),
		"exit:0": store.NewEnded(n(0), nil, false), "": store.NewEnded(n(-1), n(0), false),
	} {
		require.Equal(t, want, e)
		build, w := b.build(), b.worker()
		w.gets(build.ID)
		r := failure(build.ID, w.id)
		r.Ended = e
		must(b.builds.Finish(t.Context(), r))(t)
		require.Equal(t, want, b.find(build.ID).Ended)
	}
}

func TestBuildsThatNeedInputsFailIfNoWorkerCanHaveThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build(with(store.Inputs{Params: store.Params{"A": "1"}, Timeout: time.Hour}), requires("xcode"))
	b.worker(labelled("xcode", "16"))
	check := func() []store.BuildRef { return must(b.queue.CheckClasses(t.Context(), time.Nanosecond))(t) }
	check()
	b.exec(`UPDATE build_classes SET unmatched_since = now() - interval '1 h' WHERE unmatched_since IS NOT NULL`)
	b.exec(`UPDATE builds SET updated_at = now() - interval '1 h'`)
	require.Len(t, check(), 1)
	require.Equal(t, "No worker can take this build: it needs ios with parameters,a time limit of 1 h,xcode", b.find(build.ID).ErrorMessage)
}

// statements notes the statements of a pool by their names. Only one goroutine runs some at a time.
type statements struct{ names []string }

func (s *statements) note(sql string) {
	if name, _, ok := strings.Cut(strings.TrimPrefix(sql, "/* "), " */"); ok && name != "session" {
		s.names = append(s.names, name)
	}
}

func (s *statements) take() (names []string) {
	names, s.names = s.names, nil
	return names
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.note(q.SQL)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	s.note(q.SQL)
}

func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func TestABuildWithoutInputsCostsNoStatement(t *testing.T) {
	t.Parallel()
	b, seen := setup(t), &statements{}
	cfg := b.Pool.Config().Copy()
	cfg.ConnConfig.Tracer = seen
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	db := postgres.New()
	db.Use(pool)
	builds, queue := postgres.NewBuilds(db, postgres.BuildsConfig{}), postgres.NewQueue(db, postgres.QueueConfig{})
	for _, inputs := range []*store.Inputs{nil, {Facts: store.Facts{Branch: "main"}}} {
		s := submission(t)
		s.Inputs = inputs
		build := must(builds.Submit(t.Context(), s))(t)
		submit := seen.take()
		w := b.worker(able())
		require.Equal(t, build.ID, jobID(must(queue.Assign(t.Context(), []store.Poll{w.request()}))(t)[0]))
		take := seen.take()
		must(builds.Finish(t.Context(), failure(build.ID, w.id)))(t)
		require.Equal(t, []string{"read_workers", "begin", "patience", "lock_workers", "claim_builds", "assign_builds", "assign_workers", "commit"}, take)
		require.Equal(t, []string{"begin", "try_enders", "try_ends", "end_builds", "end_workers", "commit"}, seen.take())
		want := []string{"insert_builds"}
		if inputs != nil {
			want = append(want, "insert_inputs")
		}
		counts := func(name string) bool { return name == "hold_limit" || name == "count_pending" } // while the hint is unknown
		require.Equal(t, want, slices.DeleteFunc(submit, counts))
	}
}
