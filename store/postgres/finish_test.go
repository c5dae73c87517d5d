package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

func TestFinishRecordsSuccess(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	placed := 0
	done := must(b.builds.Finish(t.Context(), success(build.ID, w.id), staged(func() error { placed++; return nil })))(t)
	require.False(t, done.Repeat)
	require.Equal(t, 1, placed)
	got := b.find(build.ID)
	require.Equal(t, store.Completed, got.State)
	require.Equal(t, success(build.ID, w.id).File, got.Result)
	require.False(t, got.CompletedAt.IsZero())
	require.Equal(t, "Build completed successfully", b.logs(build.ID)[2])
	require.Equal(t, store.Idle, w.find().Status)
	require.Equal(t, []int{1, 0}, []int{w.find().Completed, w.find().Failed})

	done = must(b.builds.Finish(t.Context(), success(build.ID, w.id), staged(func() error { placed++; return nil })))(t)
	require.True(t, done.Repeat)
	require.Equal(t, 1, placed, "a repeat places nothing")
	require.Equal(t, 1, w.find().Completed)
}

func TestFinishRecordsFailure(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	r := store.Result{BuildID: build.ID, WorkerID: w.id}
	must(b.builds.Finish(t.Context(), r, staged(func() error { return errors.New("not called") })))(t)
	got := b.find(build.ID)
	require.Equal(t, store.Failed, got.State)
	require.Equal(t, store.MessageFailed, got.ErrorMessage)
	require.Nil(t, got.Result)
	require.Equal(t, store.ErrorLevel, storetest.Logs(t, b.DB, build.ID, 0)[2].Level)
	require.Equal(t, []int{0, 1}, []int{w.find().Completed, w.find().Failed})
}

func TestFinishRules(t *testing.T) {
	t.Parallel()
	type scenario struct {
		*fixture
		build         store.Build
		worker, other *client
	}
	assigned := func(w scenario) { w.worker.gets(w.build.ID) }
	lost := func(w scenario) { assigned(w); must(w.workers.UnregisterID(t.Context(), w.worker.id, ""))(t) }
	reassigned := func(w scenario) { lost(w); w.other.gets(w.build.ID) }
	ended := func(r func(build, worker string) store.Result) func(scenario) {
		return func(w scenario) { assigned(w); must(w.builds.Finish(t.Context(), r(w.build.ID, w.worker.id)))(t) }
	}
	by := func(edit func(w scenario, r *store.Result)) func(scenario) store.Result {
		return func(w scenario) store.Result {
			r := success(w.build.ID, w.worker.id)
			edit(w, &r)
			return r
		}
	}
	holder := by(func(scenario, *store.Result) {})
	other := by(func(w scenario, r *store.Result) { r.WorkerID = w.other.id })
	attempt := func(n int) func(scenario) store.Result {
		return by(func(_ scenario, r *store.Result) { r.Attempt = n })
	}
	failed := by(func(_ scenario, r *store.Result) { r.Success, r.File = false, nil })
	for name, c := range map[string]struct {
		before func(scenario)
		result func(scenario) store.Result
		code   store.Code // "" means accepted
		repeat bool
	}{
		"a build that was never assigned, by anybody": {result: other},
		"the holder":                                    {before: assigned, result: holder},
		"the holder, with its attempt":                  {before: assigned, result: attempt(1)},
		"another worker":                                {before: assigned, result: other, code: store.NotAssigned},
		"an unknown build":                              {result: by(func(_ scenario, r *store.Result) { r.BuildID = "none" }), code: store.NotFound},
		"an unknown worker":                             {result: by(func(_ scenario, r *store.Result) { r.WorkerID = "none" }), code: store.NotFound},
		"a success without a file":                      {before: assigned, result: by(func(_ scenario, r *store.Result) { r.File = nil }), code: store.InvalidArgument},
		"pending again, by the last holder":             {before: lost, result: attempt(1)},
		"pending again, by somebody else":               {before: lost, result: other, code: store.NotAssigned},
		"reassigned, by the old holder":                 {before: reassigned, result: holder, code: store.NotAssigned},
		"reassigned, by the old holder with attempt":    {before: reassigned, result: attempt(1), code: store.StaleAttempt},
		"the same success again":                        {before: ended(success), result: holder, repeat: true},
		"the same failure again":                        {before: ended(failure), result: failed, repeat: true},
		"a failure after success":                       {before: ended(success), result: failed, code: store.Conflict},
		"a success after failure":                       {before: ended(failure), result: holder, code: store.Conflict},
		"the same success by another worker":            {before: ended(success), result: other, code: store.Conflict},
		"a success after the build was cancelled":       {before: func(w scenario) { assigned(w); require.NoError(t, w.builds.Cancel(t.Context(), w.build.ID, "", "")) }, result: holder, code: store.Conflict},
		"a failure after the build was cancelled":       {before: func(w scenario) { assigned(w); require.NoError(t, w.builds.Cancel(t.Context(), w.build.ID, "", "")) }, result: failed, code: store.Conflict},
		"a success after a pending build was cancelled": {before: func(w scenario) { require.NoError(t, w.builds.Cancel(t.Context(), w.build.ID, "", "")) }, result: holder, code: store.Conflict},
	} {
		inDatabase(t, name, func(b *fixture) {
			w := scenario{fixture: b, build: b.build(), worker: b.worker(), other: b.worker()}
			if c.before != nil {
				c.before(w)
			}
			before := b.find(w.build.ID)
			placed := false
			r := c.result(w)
			done, err := b.builds.Finish(b.t.Context(), r, staged(func() error { placed = true; return nil }))
			require.Equal(b.t, c.code, store.CodeOf(err), "%v", err)
			require.Equal(b.t, c.repeat, done.Repeat)
			require.Equal(b.t, c.code == "" && !c.repeat, placed)
			after := b.find(w.build.ID)
			if c.code != "" || c.repeat {
				require.Equal(b.t, before, after, "a refused result changes nothing")
				return
			}
			require.Equal(b.t, store.Completed, after.State)
			require.Equal(b.t, r.WorkerID, after.WorkerID)
			require.Equal(b.t, store.Build{
				ID: before.ID, Platform: before.Platform, State: before.State, WorkerID: before.WorkerID, Attempt: before.Attempt,
				SubmittedAt: before.SubmittedAt, StartedAt: before.StartedAt, Labels: before.Labels,
			}, done.Was)
			b.worker().gets("")
		})
	}
}

// P2: of results and cancellations at once exactly one counts.
func TestOneEndCounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	for range 50 {
		build := b.build()
		w.gets(build.ID)
		var wg sync.WaitGroup
		errs := make([]error, 3)
		placed := make([]bool, 2)
		for i, r := range []store.Result{success(build.ID, w.id), failure(build.ID, w.id)} {
			wg.Go(func() {
				_, errs[i] = b.builds.Finish(t.Context(), r, staged(func() error { placed[i] = true; return nil }))
			})
		}
		wg.Go(func() { errs[2] = b.builds.Cancel(t.Context(), build.ID, "", "") })
		wg.Wait()
		won := 0
		for i, state := range []store.BuildState{store.Completed, store.Failed, store.Cancelled} {
			if errs[i] == nil {
				won++
				require.Equal(t, state, b.find(build.ID).State)
			} else {
				require.Contains(t, []store.Code{store.Conflict, store.InvalidState}, store.CodeOf(errs[i]), "%v", errs[i])
			}
		}
		require.Equal(t, 1, won)
		require.Equal(t, errs[0] == nil, placed[0])
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	inDatabase(t, "a pending build leaves the queue", func(b *fixture) {
		build := b.build()
		require.NoError(b.t, b.builds.Cancel(b.t.Context(), build.ID, "", ""))
		got := b.find(build.ID)
		require.Equal(b.t, store.Cancelled, got.State)
		require.Equal(b.t, store.MessageCancelled, got.ErrorMessage)
		require.Equal(b.t, []string{"Build submitted", "Build cancelled"}, b.logs(build.ID))
		b.worker().gets("")
	})
	inDatabase(t, "a held build frees its worker", func(b *fixture) {
		build, next := b.build(), b.build()
		w := b.worker()
		w.gets(build.ID)
		require.NoError(b.t, b.builds.Cancel(b.t.Context(), build.ID, "", ""))
		require.Equal(b.t, store.Idle, w.find().Status)
		w.gets(next.ID)
	})
	inDatabase(t, "an ended build stays as it is", func(b *fixture) {
		build := b.build()
		require.NoError(b.t, b.builds.Cancel(b.t.Context(), build.ID, "", ""))
		require.Equal(b.t, store.InvalidState, store.CodeOf(b.builds.Cancel(b.t.Context(), build.ID, "", "")))
		require.Equal(b.t, store.NotFound, store.CodeOf(b.builds.Cancel(b.t.Context(), store.NewID(), "", "")))
	})
	inDatabase(t, "against claims it ends every build exactly once", func(b *fixture) {
		for range 50 {
			build := b.build()
			w := b.worker()
			var wg sync.WaitGroup
			poll := w.request()
			wg.Go(func() {
				if _, err := b.queue.Assign(b.t.Context(), []store.Poll{poll}); err != nil {
					b.t.Error(err)
				}
			})
			wg.Go(func() {
				if err := b.builds.Cancel(b.t.Context(), build.ID, "", ""); err != nil {
					b.t.Error(err)
				}
			})
			wg.Wait()
			require.Equal(b.t, store.Cancelled, b.find(build.ID).State)
			require.Equal(b.t, store.Idle, w.find().Status)
		}
	})
}

func TestLongErrorOfABuildIsCut(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	must(b.builds.Finish(t.Context(), store.Result{BuildID: build.ID, WorkerID: w.id, ErrorMessage: strings.Repeat("no\n", 1<<18)}))(t)
	failed := must(b.builds.Find(t.Context(), build.ID))(t)
	require.LessOrEqual(t, len(failed.ErrorMessage), 8<<10)
	lines := storetest.Logs(t, b.DB, build.ID, 0)
	require.Less(t, len(lines[len(lines)-1].Message), 9<<10)
}
