package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func TestAssignHandsOutABuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.build(), b.build(on(store.Android))
	w := b.worker()

	r := w.gets(first.ID)
	require.Equal(t, w.id, r.Session.ID)
	require.Equal(t, w.number, r.Session.Number)
	require.Equal(t, 1, r.Jobs.First().Attempt)
	require.Equal(t, store.IOS, r.Jobs.First().Platform)
	require.Equal(t, first.SubmittedAt, r.Jobs.First().SubmittedAt)
	require.False(t, r.Jobs.First().HasCerts)
	require.False(t, r.Session.Free())
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

func TestAssignAnswersAtTheIndexOfThePoll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build(on(store.Android))
	ios, android := b.worker(takes(store.IOS)), b.worker(takes(store.Android))
	stranger := &client{fixture: b, number: 4711, shown: 1}

	got := b.assign(
		stranger.request(), ios.request(), store.Poll{WorkerID: "nobody"}, android.request(),
		store.Poll{},
	)
	require.Equal(t, store.PollInvalidToken, got[0].Outcome)
	require.Equal(t, store.PollServed, got[1].Outcome)
	require.Equal(t, []store.Platform{store.IOS}, got[1].Session.Platforms)
	require.True(t, got[1].Session.Free())
	require.Nil(t, got[1].Jobs.First())
	require.Zero(t, got[1].Handed, "the hand-out is another worker's")
	require.Equal(t, store.PollUnknownWorker, got[2].Outcome)
	require.Equal(t, build.ID, jobID(got[3]))
	require.Equal(t, store.PollUnknownWorker, got[4].Outcome)
}

func TestAssignRespectsSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	b.build()
	w := b.worker(slots(2))
	r := w.gets(one.ID)
	require.True(t, r.Session.Free(), "one of two slots is taken")
	r = w.gets(two.ID)
	require.False(t, r.Session.Free())
	w.gets("")
	w.finishes(one.ID)
	require.Equal(t, store.Busy, w.find().Status, "it still holds a build")
	require.NotEmpty(t, jobID(w.poll()))
}

func TestAssignRefusesTooManyPolls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.queue.Assign(t.Context(), make([]store.Poll, postgres.MaxBatch+1))
	require.Error(t, err)
	require.Len(t, must(b.queue.Assign(t.Context(), make([]store.Poll, postgres.MaxBatch)))(t), postgres.MaxBatch)
}

func TestAPollThatFindsNothingWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	w.gets("")
	version := `SELECT xmin::text || w::text FROM workers w`
	var before, after string
	require.NoError(t, b.Pool.QueryRow(t.Context(), version).Scan(&before))
	w.gets("")
	w.gets("", parked(w.poll()))
	require.NoError(t, b.Pool.QueryRow(t.Context(), version).Scan(&after))
	require.Equal(t, before, after)
}

func TestRecordPresence(t *testing.T) {
	t.Parallel()
	b := setup(t)
	present, gone, behind, far := b.worker(), b.worker(), b.worker(), b.worker()
	b.exec(`UPDATE workers SET last_seen_at = now() - interval '1 hour', status = 'offline'`)
	must(b.workers.UnregisterID(t.Context(), gone.id, ""))(t)
	behind.shown = 5
	b.exec(`UPDATE workers SET used = 9 WHERE id = $1`, behind.id)
	var heartbeats []store.Presence
	for _, w := range []*client{present, gone, behind} {
		heartbeats = append(heartbeats, store.Presence{Number: w.number, Used: w.shown, Age: time.Minute})
	}
	heartbeats = append(heartbeats, store.Presence{Number: 999, Used: 1})
	written := must(b.queue.RecordPresence(t.Context(), heartbeats))(t)
	require.Equal(t, []uint32{present.number}, written)
	require.Equal(t, store.Idle, present.find().Status)
	require.WithinDuration(t, time.Now().Add(-time.Minute), present.find().LastSeenAt, 30*time.Second)
	for _, w := range []*client{gone, behind, far} {
		require.Equal(t, store.Offline, w.find().Status, "a late heartbeat brings nobody back")
	}

	inDatabase(t, "a row that the database refuses to change holds up no other", func(b *fixture) {
		var heartbeats []store.Presence
		var bad *client
		for i := range 20 {
			w := b.worker()
			if i == 7 {
				bad = w
			}
			heartbeats = append(heartbeats, store.Presence{Number: w.number, Used: w.shown})
		}
		b.raise("workers", `OLD.id = '`+bad.id+`'`)
		written := must(b.queue.RecordPresence(b.t.Context(), heartbeats))(b.t)
		require.Len(b.t, written, 20)
		require.Contains(b.t, written, bad.number, "it is not tried again with the next heartbeats")
	})
}

func TestRecountTellsWhatChanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = []string{"worker_held", "worker_status"}
	changes := map[string]string{
		"nothing": "last_seen_at = now()", "used": "used = used + 9", "handed": "handed = handed + 1", "held": "held = held + 1", "slots": "slots = 2",
		"platforms": "platforms = '{ios}'", "labels": `labels = '{"gpu": ""}'`, "draining": "draining = true", "quarantine": "rests_until = now() + interval '1 hour'", "less used": "used = used - 1",
	}
	want, got, names, known := map[string]bool{}, map[string]bool{}, map[uint32]string{}, []store.WorkerSession(nil)
	for name, change := range changes {
		w := b.worker(takes(store.IOS, store.Android))
		session := w.poll().Session
		session.Used++
		known, names[w.number], want[name] = append(known, session), name, name != "nothing" && name != "less used"
		b.exec(`UPDATE workers SET `+change+` WHERE id = $1`, w.id)
	}
	deleted := b.worker()
	known = append(known, deleted.poll().Session)
	must(b.workers.Delete(t.Context(), deleted.id))(t)
	b.build(on(store.Android))
	r := must(b.queue.Recount(t.Context(), 10, known, nil))(t)
	require.Equal(t, []store.ClassCount{{Class: androidClass, N: 1}}, r.Pending)
	require.Equal(t, []uint32{deleted.number}, r.Gone)
	for name := range changes {
		got[name] = false
	}
	for _, row := range r.Changed {
		got[names[row.Number]] = true
		require.Equal(t, names[row.Number] == "draining" || names[row.Number] == "quarantine", row.Drained)
	}
	require.Equal(t, want, got)
	require.Empty(t, must(b.queue.Recount(t.Context(), 10, r.Changed, nil))(t).Changed)
	require.Len(t, r.Installation, 36)
	require.WithinDuration(t, time.Now(), r.Now, time.Minute)
}

// A worker is served as its row is now, not as its controller remembers it.
func TestAKnownWorkerIsServedAsItIsNow(t *testing.T) {
	t.Parallel()
	taken := `UPDATE workers SET held = 1 WHERE id = $1`
	for name, c := range map[string]struct {
		before, change string
		gets           bool
	}{
		"nothing changed":            {change: `SELECT FROM workers WHERE id = $1`, gets: true},
		"drained":                    {change: `UPDATE workers SET draining = true WHERE id = $1`},
		"no longer drained":          {before: `UPDATE workers SET draining = true WHERE id = $1`, change: `UPDATE workers SET draining = false WHERE id = $1`, gets: true},
		"critical":                   {change: `UPDATE workers SET critical = true WHERE id = $1`},
		"other platforms":            {change: `UPDATE workers SET platforms = '{android}' WHERE id = $1`},
		"more platforms":             {before: `UPDATE workers SET platforms = '{android}' WHERE id = $1`, change: `UPDATE workers SET platforms = '{}' WHERE id = $1`, gets: true},
		"its slot is taken":          {change: taken},
		"its slot is free":           {before: taken, change: `UPDATE workers SET held = 0 WHERE id = $1`, gets: true},
		"its row is anywhere":        {change: `UPDATE workers SET last_seen_at = now() WHERE id = $1`, gets: true},
		"it polled elsewhere before": {change: `UPDATE workers SET used = used + 1, handed = handed + 1 WHERE id = $1`, gets: true},
	} {
		inDatabase(t, name, func(b *fixture) {
			b.except = []string{"worker_held", "worker_status"}
			b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{SpareCritical: true})
			w, other := b.worker(), b.worker(takes(store.Android))
			if c.before != "" {
				b.exec(c.before, w.id)
			}
			w.gets("")
			other.gets("")
			b.exec(c.change, w.id)
			build := b.build()
			want := ""
			if c.gets {
				want = build.ID
			}
			w.shown += 2
			w.gets(want)
			other.gets("")
		})
	}
}
