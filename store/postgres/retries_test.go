package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// retried are the inputs of a build that is tried again after exit codes 75 and 143.
func retried(edit ...func(*store.Inputs)) func(*store.Submission) {
	i := store.Inputs{RetryOn: []int{75, 143}, MaxAttempts: 10}
	for _, e := range edit {
		e(&i)
	}
	return with(i)
}

// exits has the worker's command end with an exit code.
func (c *client) exits(build string, code int) (end store.Finished) {
	c.t.Helper()
	r := failure(build, c.id)
	r.Ended = store.NewEnded(&code, nil, false)
	end = must(c.builds.Finish(c.t.Context(), r))(c.t)
	end.Was = store.Build{}
	return end
}

// waiting returns a build that waits for its retry, and the worker on which it failed.
func (b *fixture) waiting(edit ...func(*store.Submission)) (store.Build, *client) {
	b.t.Helper()
	build, w := b.build(append([]func(*store.Submission){retried()}, edit...)...), b.worker(able("gpu", "1", "xcode", "16"), slots(9))
	w.gets(build.ID)
	require.True(b.t, w.exits(build.ID, 75).Again)
	return build, w
}

const (
	makeDue   = `UPDATE build_inputs SET due_at = now() - interval '1 s' WHERE due_at IS NOT NULL`
	ofNoClass = `SELECT count(*) FROM builds JOIN build_inputs ON build = seq WHERE id = $1 AND class = 0 AND due_at > now() AND home_class = $2`
)

// letIn makes all builds due that wait, and returns which of them are let in.
func (b *fixture) letIn() (ids []string) {
	b.t.Helper()
	b.exec(makeDue)
	for _, ref := range must(b.queue.LetIn(b.t.Context()))(b.t) {
		ids = append(ids, ref.ID)
	}
	return ids
}

func TestABuildIsTriedAgainAfterItsExitCodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.build(by("key", 0), retried())
	next := b.build(by("key", 0), retried())
	w := b.worker(able())
	w.gets(first.ID)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(first.ID)))
	require.Equal(t, store.Finished{Again: true}, w.exits(first.ID, 75))

	got := b.find(first.ID)
	require.Equal(t, store.Pending, got.State)
	require.Equal(t, store.Ended("exit:75"), got.Ended)
	require.Equal(t, first.ClassID, got.ClassID, "it has its class for all who read it")
	require.Equal(t, first.Require.String(), got.Require.String())
	require.Equal(t, 1, b.count(ofNoClass, first.ID, first.ClassID))
	require.Regexp(t, `^Attempt 1 failed: exit code 75, the build is tried again at \d\d:\d\d:\d\d UTC$`, b.logs(first.ID)[2])
	require.Equal(t, []int{0, 0}, []int{w.find().Completed, w.find().Failed}, "the worker is not blamed")
	require.Equal(t, store.Idle, w.find().Status)
	require.Equal(t, 0, b.count(`SELECT length(attempts) FROM workers`))

	require.Empty(t, must(b.queue.LetIn(t.Context()))(t), "it is not due")
	w.gets(next.ID)
	w.finishes(next.ID)
	w.gets("")
	third := b.build(by("key", 0), retried())
	require.Equal(t, []string{first.ID}, b.letIn())
	require.Empty(t, must(b.queue.LetIn(t.Context()))(t), "once")
	w.gets(first.ID)
	require.Empty(t, b.find(first.ID).Ended, "an attempt that runs has not ended")
	w.finishes(first.ID)
	w.gets(third.ID)
	require.True(t, w.exits(third.ID, 75).Again)
	require.False(t, w.exits(b.next(w), 1).Again, "another code")
}

// next submits a build that the worker gets.
func (b *fixture) next(w *client, edit ...func(*store.Submission)) string {
	b.t.Helper()
	build := b.build(append([]func(*store.Submission){retried()}, edit...)...)
	w.gets(build.ID)
	return build.ID
}

func TestEachRetryWaitsTwiceAsLong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, w := b.build(retried()), b.worker(able())
	for n := 1; ; n++ {
		w.gets(build.ID)
		if end := w.exits(build.ID, 75); n == 10 {
			require.Equal(t, store.Finished{}, end)
			break
		}
		wait := b.count(`SELECT round(extract(epoch FROM due_at - now()) / 10) * 10 FROM build_inputs`)
		require.Equal(t, min(30<<(n-1), 3600), wait, n)
		require.Equal(t, []string{build.ID}, b.letIn())
	}
	got := b.find(build.ID)
	require.Equal(t, store.Failed, got.State)
	require.Equal(t, "exit status 1", got.ErrorMessage, "the last error")
	require.Equal(t, store.Ended("exit:75"), got.Ended)
	require.Equal(t, []int{0, 1}, []int{w.find().Completed, w.find().Failed})
}

func TestRetriesByExitCodeUseUpAttempts(t *testing.T) {
	t.Parallel()
	inputs := func(most int) func(*store.Submission) {
		return with(store.Inputs{RetryOn: []int{75}, MaxAttempts: most})
	}
	inDatabase(t, "of its own number, with lost ones", func(b *fixture) {
		build, w := b.build(inputs(3)), b.worker(able())
		w.gets(build.ID)
		b.exec(ageAssignment, build.ID)
		require.Len(b.t, b.sweep().Requeued, 1)
		w.gets(build.ID)
		require.True(b.t, w.exits(build.ID, 75).Again)
		b.letIn()
		w.gets(build.ID)
		require.False(b.t, w.exits(build.ID, 75).Again)
	})
	inDatabase(t, "of its own number, with those that were given back", func(b *fixture) {
		build, w := b.build(inputs(2)), b.worker(able())
		w.gets(build.ID)
		must(b.builds.GiveBack(b.t.Context(), fault(build.ID, w.id, store.FaultEngine)))(b.t)
		other := b.worker(able())
		other.gets(build.ID)
		require.False(b.t, other.exits(build.ID, 75).Again)
	})
	inDatabase(t, "of the controller's number", func(b *fixture) {
		b.builds = postgres.NewBuilds(b.DB, postgres.BuildsConfig{MaxAttempts: 2})
		build, w := b.build(inputs(0)), b.worker(able())
		w.gets(build.ID)
		require.True(b.t, w.exits(build.ID, 75).Again)
		b.letIn()
		w.gets(build.ID)
		require.False(b.t, w.exits(build.ID, 75).Again)
	})
}

func TestWhatRetriesABuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(able())
	n := func(i int) *int { return &i }
	for ended, again := range map[store.Ended]bool{
		"exit:75": true, "exit:143": true, "exit:76": false, "exit:0": false, "": false, "timeout": false,
		store.NewEnded(n(143), n(15), false): true, store.NewEnded(nil, n(9), false): false,
	} {
		build := b.next(w)
		r := failure(build, w.id)
		r.Ended = ended
		require.Equal(t, again, must(b.builds.Finish(t.Context(), r))(t).Again, ended)
	}
	plain := b.build()
	w.gets(plain.ID)
	require.False(t, w.exits(plain.ID, 75).Again, "it did not ask for it")
}

// A worker whose first report was lost repeats it, and one that was believed dead reports late.
func TestReportsOnAnAttemptThatIsRetriedChangeNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, w := b.waiting()
	same := func(state string) {
		t.Helper()
		before := b.find(build.ID)
		require.Equal(t, store.Finished{Repeat: true, Again: true}, w.exits(build.ID, 75), state)
		require.Equal(t, store.Finished{Repeat: true, Again: true}, w.exits(build.ID, 1), state)
		require.Equal(t, store.StaleAttempt, codeOf(b.builds.Finish(t.Context(), success(build.ID, w.id), staged(func() error { return nil }))), state)
		require.Equal(t, store.NotAssigned, codeOf(b.builds.Finish(t.Context(), failure(build.ID, b.worker().id))), state)
		require.True(t, must(b.builds.GiveBack(t.Context(), fault(build.ID, w.id, store.FaultEngine)))(t).Repeat)
		require.Equal(t, before, b.find(build.ID), state)
	}
	same("it waits")
	b.letIn()
	same("it is let in")
	late := b.worker(able())
	late.gets(build.ID)
	require.Equal(t, store.NotAssigned, codeOf(b.builds.Finish(t.Context(), failure(build.ID, w.id))))
	b.exec(ageAssignment, build.ID)
	require.Len(t, b.sweep(func(s *store.Sweep) { s.Rule.MaxAttempts = 9 }).Requeued, 1)
	require.Equal(t, store.Finished{Repeat: true, Again: true}, late.exits(build.ID, 75), "it is pending again already")
	require.Equal(t, 2, b.count(`SELECT lost FROM builds`))
	require.Equal(t, store.Finished{}, late.exits(build.ID, 1), "as any late failure")
	require.Equal(t, store.Failed, b.find(build.ID).State)
}

func TestABuildThatWaitsForItsRetryDoesNotHoldVirtualTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`SELECT nextval('builds_seq_seq')`) // which the first position would not show
	b.waiting(by("flaky", 0), requires("gpu"))
	b.submits(1, by("flood", 0))
	at := b.count(`SELECT position FROM builds WHERE submitter = 'flood'`)
	require.Greater(t, at, b.count(`SELECT position FROM builds WHERE submitter = 'flaky'`))
	require.Greater(t, b.count(`SELECT queue_position('ios', 0, 'new', '{1}')`), at-1, "it starts where others are, not at the place of the build that waits")
	place := b.count(`SELECT position FROM builds WHERE submitter = 'flaky'`)
	b.letIn()
	require.Equal(t, place, b.count(`SELECT position FROM builds WHERE submitter = 'flaky'`), "its old one")
}

func TestLimitsCountBuildsThatWaitForTheirRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, postgres.NewKeys(b.DB, &store.KeyRing{}).Create(t.Context(), store.NamedKey{
		Name: "key", Digest: [32]byte{1}, Scopes: []store.Scope{store.ScopeSubmit}, MaxPending: 1,
	}))
	build, _ := b.waiting(by("key", 0), requires("gpu"))
	s := submission(t)
	s.Submitter = "key"
	require.Equal(t, store.KeyQueueFull, codeOf(b.builds.Submit(t.Context(), s)))
	require.Equal(t, store.KeyQueueFull, store.CodeOf(b.builds.KeyRoom(t.Context(), "key")))
	full := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: 1})
	must(full.Submit(t.Context(), submission(t)))(t)
	require.Equal(t, store.QueueFull, codeOf(full.Submit(t.Context(), submission(t))))
	require.Equal(t, 2, must(b.builds.Counts(t.Context()))(t).Pending)
	r := must(b.queue.Recount(t.Context(), 100, nil, []int32{build.ClassID}))(t)
	require.Equal(t, map[store.Platform]int{store.IOS: 1}, r.Delayed)
	require.Len(t, r.Pending, 1, "nobody can take it")

	fleet, _, err := postgres.NewDashboard(b.DB).FleetSummary(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, fleet[0].Pending)
	require.Equal(t, []int32{0, store.IOSClass, store.AndroidClass, build.ClassID}, []int32{fleet[0].Class.ID, fleet[1].Class.ID, fleet[2].Class.ID, fleet[3].Class.ID})
}

// What ends a build that waits gives it its class back, which its own retry needs.
func TestABuildThatWaitsForItsRetryCanBeCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, _ := b.waiting(requires("xcode"), func(s *store.Submission) { s.Labels = store.Labels{"pr": "7"} })
	found, _, err := b.builds.List(t.Context(), store.BuildFilter{States: []store.BuildState{store.Pending}, Labels: store.Labels{"pr": "7"}}, store.Page{})
	require.NoError(t, err)
	require.Len(t, found, 1, "it is found by its label")
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "", ""))
	require.Equal(t, store.Cancelled, b.find(build.ID).State)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM builds WHERE class = $1`, build.ClassID))
	require.Zero(t, b.count(`SELECT count(*) FROM build_inputs WHERE due_at IS NOT NULL OR home_class IS NOT NULL`))
	require.Empty(t, b.letIn())
	again := b.build(func(s *store.Submission) { s.RetryOf, s.Inputs = build.ID, build.Inputs })
	require.Equal(t, []int{75, 143}, b.find(again.ID).Inputs.RetryOn)
	require.Zero(t, b.count(`SELECT retries FROM build_inputs JOIN builds ON seq = build WHERE id = $1`, again.ID))
}

func TestAnOperatorEndsTheWaitForARetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, w := b.waiting()
	ref := must(b.builds.Requeue(t.Context(), build.ID))(t)
	require.Equal(t, store.BuildRef{ID: build.ID, Platform: store.IOS, WorkerID: w.id, ClassID: build.ClassID, SubmittedAt: ref.SubmittedAt, Position: ref.Position}, ref)
	require.Equal(t, store.Conflict, codeOf(b.builds.Requeue(t.Context(), build.ID)), "it waits for a worker only")
	w.gets(build.ID)
}

func TestWhyABuildWaitsForItsRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, _ := b.waiting(requires("gpu"))
	d := postgres.NewDashboard(b.DB)
	waits := must(d.WaitingBuild(t.Context(), build.ID))(t)
	require.Equal(t, store.Ended("exit:75"), waits.Ended)
	require.WithinDuration(t, time.Now().Add(30*time.Second), waits.Due, 20*time.Second)
	require.Equal(t, build.ClassID, waits.ClassID)
	require.Equal(t, "gpu,takt:exit", waits.Require.String())
	page := listed(d.Waiting(t.Context(), store.Page{}))(t)
	require.Equal(t, waits.Due, page[0].Due)
	b.letIn()
	waits = must(d.WaitingBuild(t.Context(), build.ID))(t)
	require.True(t, waits.Due.IsZero())
}

func TestOneOfSeveralControllersLetsABuildIn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for range 20 {
		build, _ := b.waiting()
		want = append(want, build.ID)
	}
	late, _ := b.waiting()
	other := postgres.NewQueue(storetest.Another(t, b.Database).DB, postgres.QueueConfig{})
	b.exec(makeDue + ` AND build < (SELECT max(seq) FROM builds)`)
	var got [2][]store.BuildRef
	for len(got[0])+len(got[1]) < len(want) {
		var wg sync.WaitGroup
		for i, q := range []*postgres.Queue{b.queue, other} {
			wg.Go(func() {
				refs, err := q.LetIn(t.Context())
				if err != nil {
					t.Error(err)
				}
				got[i] = append(got[i], refs...)
			})
		}
		wg.Wait()
		require.False(t, t.Failed())
	}
	var all []string
	for _, ref := range slices.Concat(got[0], got[1]) {
		all = append(all, ref.ID)
	}
	require.ElementsMatch(t, want, all, "each once, and none before it is due")
	require.Equal(t, []string{late.ID}, b.letIn())
}

// Releases before know no such builds; they neither fail, assign nor lose them.
func TestOlderReleasesLeaveABuildThatWaitsForItsRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines") // 0.1.0 numbers none
	build, _ := b.waiting()
	b.exec(failBefore)
	require.Equal(t, store.Pending, b.find(build.ID).State)
	b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE id = $1`, build.ID)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM builds WHERE class = $1`, build.ClassID), "0.1.0 cancels it")
}
