package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func TestServeHandsOutABuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.build(), b.build(on(store.Android))
	w := b.worker()

	r := w.gets(first.ID)
	require.Equal(t, w.id, r.WorkerID)
	require.Equal(t, 1, r.Job.Attempt)
	require.Equal(t, store.IOS, r.Job.Platform)
	require.Equal(t, first.SubmittedAt, r.Job.SubmittedAt)
	require.False(t, r.Job.HasCerts)
	require.False(t, r.Free)
	require.False(t, r.Redelivered)

	got := b.find(first.ID)
	require.Equal(t, store.Assigned, got.State)
	require.Equal(t, w.id, got.WorkerID)
	require.Equal(t, 1, got.Attempt)
	require.False(t, got.StartedAt.IsZero())
	require.True(t, got.LastSeenAt.IsZero())
	require.Equal(t, []string{"Build submitted", "Assigned to worker " + w.id}, b.logs(first.ID))
	require.Equal(t, store.Busy, w.find().Status)
	require.Equal(t, store.Pending, b.find(second.ID).State)
}

func TestServeAnswersAtTheIndexOfThePoll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build(on(store.Android))
	ios, android := b.worker(takes(store.IOS)), b.worker(takes(store.Android))
	stranger := &client{bundle: b, token: store.NewWorkerToken()}

	got := b.serve(
		stranger.request(), ios.request(), store.Poll{WorkerID: "nobody"}, android.request(),
		store.Poll{},
	)
	require.Equal(t, store.PollUnknownToken, got[0].Outcome)
	require.Equal(t, store.PollAnswered, got[1].Outcome)
	require.Equal(t, []store.Platform{store.IOS}, got[1].Platforms)
	require.True(t, got[1].Free)
	require.Nil(t, got[1].Job)
	require.Equal(t, store.PollUnknownWorker, got[2].Outcome)
	require.Equal(t, build.ID, jobID(got[3]))
	require.Equal(t, store.PollUnknownWorker, got[4].Outcome)
}

func TestServeMatchesPlatforms(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a1, i1, a2, i2 := b.build(on(store.Android)), b.build(), b.build(on(store.Android)), b.build()
	ios, android := b.worker(takes(store.IOS)), b.worker(takes(store.Android))
	both, every := b.worker(takes(store.Android, store.IOS)), b.worker()
	none := b.worker(takes("amiga"))

	got := b.serve(every.request(), none.request(), both.request(), ios.request(), android.request())
	jobs := []string{jobID(got[0]), jobID(got[1]), jobID(got[2]), jobID(got[3]), jobID(got[4])}
	require.Equal(t, []string{a2.ID, "", i2.ID, i1.ID, a1.ID}, jobs,
		"workers of one platform first, then those that take all, in the order of submission")
}

func TestServeRespectsSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	b.build()
	w := b.worker(slots(2))
	r := w.gets(one.ID)
	require.True(t, r.Free, "one of two slots is taken")
	r = w.gets(two.ID)
	require.False(t, r.Free)
	w.gets("")
	w.finishes(one.ID)
	require.Equal(t, store.Busy, w.find().Status, "it still holds a build")
	require.NotEmpty(t, jobID(w.poll()))
}

func TestServeTakesAnOfflineWorkerBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.exec(`UPDATE workers SET status = 'offline', last_seen_at = now() - interval '1 hour'`)
	w.gets("")
	require.Equal(t, store.Idle, w.find().Status)
	require.WithinDuration(t, time.Now(), w.find().LastSeenAt, time.Minute)
}

// Of several polls of one worker the last counts; the queue manager sends one.
func TestServeSurvivesAWorkerTwiceInABatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker()
	old := w.request()
	got := b.serve(old, w.request(), w.request(w.byID()))
	require.Equal(t, store.PollSuperseded, got[0].Outcome)
	require.Equal(t, store.PollSuperseded, got[1].Outcome)
	require.Equal(t, build.ID, jobID(got[2]))
}

func TestServeRefusesTooManyPolls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.queue.Serve(t.Context(), make([]store.Poll, postgres.MaxBatch+1))
	require.Error(t, err)
	got, err := b.queue.Serve(t.Context(), make([]store.Poll, postgres.MaxBatch))
	require.NoError(t, err)
	require.Len(t, got, postgres.MaxBatch)
}

func TestParkedPolls(t *testing.T) {
	t.Parallel()
	t.Run("one that parks is present and keeps its token", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		b.exec(`UPDATE workers SET last_seen_at = now() - interval '1 hour', status = 'offline'`)
		r := w.lost(mode(store.Park))
		require.Equal(t, store.PollParked, r.Outcome)
		require.Equal(t, store.Idle, w.find().Status)
		require.WithinDuration(t, time.Now(), w.find().LastSeenAt, time.Minute)
		require.Equal(t, store.PollParked, w.lost(mode(store.Park)).Outcome, "the token was not rotated")
	})
	t.Run("one that finds a build on arrival is answered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		build := b.build()
		b.worker().gets(build.ID, mode(store.Park))
	})
	t.Run("one that is woken gets the build, even if its token expired meanwhile", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		r := w.lost(mode(store.Park))
		b.exec(`UPDATE workers SET current_expires = now() - interval '1 s'`)
		build := b.build()
		w.gets(build.ID, parked(store.Resume, r))
		w.finishes(build.ID)
		w.gets("")
	})
	t.Run("one that is woken for nothing writes nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		r := w.lost(mode(store.Park))
		var before, after string
		version := `SELECT xmin::text || w::text FROM workers w`
		require.NoError(t, b.Pool.QueryRow(t.Context(), version).Scan(&before))
		again := w.lost(parked(store.Resume, r))
		require.Equal(t, store.PollParked, again.Outcome)
		require.Equal(t, r.Seq, again.Seq)
		require.NoError(t, b.Pool.QueryRow(t.Context(), version).Scan(&after))
		require.Equal(t, before, after)
	})
	t.Run("one whose time is up gets a new token", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		r := w.lost(mode(store.Park))
		w.gets("", parked(store.Expire, r))
		w.gets("")
	})
	t.Run("a newer poll supersedes it", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		r := w.lost(mode(store.Park))
		w.gets("")
		b.build()
		for _, m := range []store.PollMode{store.Resume, store.Expire} {
			got := w.lost(parked(m, r))
			require.Equal(t, store.PollSuperseded, got.Outcome)
			require.Nil(t, got.Job)
		}
		require.NotEmpty(t, jobID(w.poll()), "the newer poll's token is current")
	})
	t.Run("registering and unregistering supersede it", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker()
		r := w.lost(mode(store.Park))
		_, err := b.workers.UnregisterID(t.Context(), w.id)
		require.NoError(t, err)
		require.Equal(t, store.PollSuperseded, w.lost(parked(store.Resume, r)).Outcome)
		require.Equal(t, store.Offline, w.find().Status)
	})
	t.Run("it is answered once only", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.worker(slots(2))
		r := w.lost(mode(store.Park))
		one, _ := b.build(), b.build()
		w.gets(one.ID, parked(store.Resume, r))
		require.Equal(t, store.PollSuperseded, w.lost(parked(store.Resume, r)).Outcome)
	})
}
