package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// Two-phase rotation, as 001's timeline: a token dies when its successor is first
// used to poll. Each step shows a counter and gets the next one, which takes the
// step's number as its name; 0 is the registration's and -1 shows none. A build
// waits at each step and is finished after it, so every counter is written.
func TestTokenRotation(t *testing.T) {
	t.Parallel()
	type step struct {
		show   int
		refuse bool
	}
	for name, steps := range map[string][]step{
		"each reply arrives":                        {{show: 0}, {show: 1}, {show: 2}, {show: 3}},
		"a lost reply leaves the shown token valid": {{show: 0}, {show: 0}, {show: 0}, {show: 3}},
		"a used successor ends its predecessor":     {{show: 0}, {show: 1}, {show: 0, refuse: true}},
		"the predecessor is the last fallback":      {{show: 0}, {show: 1}, {show: 1}, {show: 1}, {show: 0, refuse: true}},
		"a lost successor is as good":               {{show: 0}, {show: 0}, {show: 1}, {show: 0, refuse: true}},
		"polls without token don't end a valid one": {{show: -1}, {show: -1}, {show: -1}, {show: 0}, {show: 4}},
		"the token of a poll without one counts":    {{show: -1}, {show: -1}, {show: 2}, {show: 0, refuse: true}},
	} {
		inDatabase(t, name, func(b *fixture) {
			w := b.worker()
			counters := []uint64{w.shown}
			for i, s := range steps {
				build := b.build()
				poll := w.request(w.byID())
				if s.show >= 0 {
					w.shown = counters[s.show]
					poll = w.request()
				}
				r := b.assign(poll)[0]
				counters = append(counters, next(r))
				if s.refuse {
					require.Equal(b.t, store.PollInvalidToken, r.Outcome, "step %d", i+1)
					require.NoError(b.t, b.builds.Cancel(b.t.Context(), build.ID, "", ""))
					continue
				}
				require.Equal(b.t, build.ID, jobID(r), "step %d", i+1)
				require.Greater(b.t, next(r), r.Session.Used, "step %d", i+1)
				w.finishes(build.ID)
			}
		})
	}
}

// Any controller sees from a token which hand-outs its holder has heard of.
func TestATokenTellsWhichHandOutsItsHolderHasHeardOf(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	w := b.worker(slots(2))
	start := w.shown
	first := w.gets(one.ID)
	require.Equal(t, start+1024, w.shown, "the token carries the hand-out")
	second := w.gets(two.ID)
	require.Equal(t, start+2*1024, w.shown)

	// It heard of neither: both are given again, the older one first, as they were.
	w.shown = start
	b.exec(`UPDATE workers SET used = $1`, start)
	r := w.gets(one.ID)
	require.True(t, r.Redelivered)
	require.Equal(t, first.Handed, r.Handed)
	require.Equal(t, first.Handed, w.shown)
	r = w.gets(two.ID)
	require.True(t, r.Redelivered)
	require.Equal(t, second.Handed, r.Handed)
	require.Equal(t, 1, r.Jobs.First().Attempt)
	w.gets("")
}

func TestAnIdleReplyIsOnePastWhatIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	r := w.lost()
	require.Equal(t, w.shown+1, next(r))
	r = b.assign(w.request(w.byID(), func(p *store.Poll) { p.Used = 77 }))[0]
	require.EqualValues(t, 78, next(r), "its controller has heard more than the row")
	build := b.build()
	w.shown = 80
	r = w.gets(build.ID)
	require.EqualValues(t, 80+1024, r.Session.Handed)
	require.EqualValues(t, 80, r.Session.Used)
}

// What a worker has not acknowledged is due again when it registers anew, each of
// several builds, and all tokens that it had are void.
func TestRegistrationMakesHandOutsDueAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two, working := b.build(), b.build(), b.build()
	w := b.worker(slots(4))
	w.gets(one.ID)
	w.gets(two.ID)
	w.gets(working.ID)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(working.ID)))
	w.shown += 900 // idle polls that were not written
	old := w.shown
	known := must(b.workers.Register(t.Context(), store.Registration{ID: w.id, Name: "other", Slots: 4}))(t)
	require.True(t, known.Again)
	require.Equal(t, w.number, known.Token.Worker)
	require.Equal(t, store.PollInvalidToken, w.lost().Outcome)
	w.shown = known.Token.Counter
	require.Greater(t, w.shown, old)
	w.gets(one.ID)
	w.gets(two.ID)
	w.gets("")
	require.Equal(t, "test worker", w.find().Name, "a known worker keeps its name")
}

func TestUnregisteringTakesATokenThatCounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	used := w.shown
	w.gets(b.build().ID)
	require.Equal(t, store.InvalidToken, codeOf(b.workers.Unregister(t.Context(), store.WorkerToken{Worker: w.number, Counter: used - 1})))
	require.Equal(t, store.InvalidToken, codeOf(b.workers.Unregister(t.Context(), store.WorkerToken{Worker: w.number + 1, Counter: used})))
	require.Len(t, must(b.workers.Unregister(t.Context(), store.WorkerToken{Worker: w.number, Counter: used}))(t).Requeued, 1)
	require.Equal(t, store.PollInvalidToken, w.lost().Outcome)
	require.Equal(t, store.Offline, w.find().Status)
}

func TestAHandOutIsAHeapOnlyUpdateOfItsWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	for range 50 {
		build := b.build()
		w.gets(build.ID)
		w.finishes(build.ID)
	}
	var updates, hot int
	b.exec(`SELECT pg_stat_force_next_flush()`)
	require.Eventually(t, func() bool {
		err := b.Pool.QueryRow(t.Context(),
			`SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'workers'`).Scan(&updates, &hot)
		return err == nil && updates >= 100
	}, 20e9, 50e6)
	require.Greater(t, hot, updates*9/10, "all but those that found their page full")
}
