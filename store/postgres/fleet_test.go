package postgres_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

func (c *client) drains(draining bool) {
	c.t.Helper()
	must(c.workers.Drain(c.t.Context(), c.id, draining))(c.t)
}

// reports stores a diagnostic report with this verdict.
func (c *client) reports(status store.DiagnosticStatus) {
	c.t.Helper()
	id := store.NewID()
	require.NoError(c.t, c.workers.Report(c.t.Context(), store.DiagnosticReport{
		ID: id, WorkerID: c.id, Status: status, RunAt: time.UnixMilli(1764000000000), Duration: time.Second,
		Checks: []byte(`[{"name":"a\u0000"}]`), File: storetest.File("diagnostics/"+c.id+"/"+id+".json", id),
	}))
}

func TestDrainedWorkerGetsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slots int
		edit  func(*client) func(*store.Poll)
	}{
		"by token":              {1, func(*client) func(*store.Poll) { return func(*store.Poll) {} }},
		"by id":                 {1, func(c *client) func(*store.Poll) { return c.byID() }},
		"with slots left":       {3, func(*client) func(*store.Poll) { return func(*store.Poll) {} }},
		"when it reconciles":    {2, func(*client) func(*store.Poll) { return lists() }},
		"with many slots by id": {3, func(c *client) func(*store.Poll) { return c.byID() }},
	} {
		inDatabase(t, name, func(b *fixture) {
			build := b.build()
			w := b.worker(slots(c.slots))
			w.drains(true)
			r := w.lost(c.edit(w))
			require.Nil(b.t, r.Jobs.First())
			require.False(b.t, r.Session.Free(), "a parked poll is not to be woken for nothing")
			require.Equal(b.t, store.Pending, b.find(build.ID).State)
			w.drains(false)
			require.Equal(b.t, build.ID, jobID(w.lost(c.edit(w))))
		})
	}
}

func TestDrainedWorkerFinishesWhatItHas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, third := b.build(), b.build(), b.build()
	w := b.worker(slots(3))
	w.gets(first.ID)
	w.gets(second.ID)
	w.drains(true)
	w.gets("")
	w.gets(second.ID, lists(first.ID))
	w.finishes(first.ID)
	w.finishes(second.ID)
	w.gets("")
	require.Equal(t, store.Idle, w.find().Status)
	require.True(t, w.find().Draining)
	b.worker().gets(third.ID)

	single := b.worker()
	one := b.build()
	single.gets(one.ID)
	single.drains(true)
	single.gets(one.ID) // the only slot: it asks because it does not know
	require.Equal(t, store.NotFound, codeOf(b.workers.Drain(t.Context(), "none", true)))
}

func TestCriticalWorkersAreSparedIfWanted(t *testing.T) {
	t.Parallel()
	for _, spare := range []bool{true, false} {
		b := setup(t)
		b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{SpareCritical: spare})
		build := b.build()
		w := b.worker()
		w.reports(store.Critical)
		if spare {
			w.gets("")
			w.reports(store.Warning)
		}
		w.gets(build.ID)
	}
}

func TestReportsOfAWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, other := b.worker(), b.worker()
	w.reports(store.Healthy)
	w.reports(store.Critical)
	other.reports(store.Warning)
	got := must(b.workers.Reports(t.Context(), w.id, 10))(t)
	require.Len(t, got, 2)
	require.Equal(t, store.Critical, got[0].Status)
	require.Contains(t, string(got[0].Checks), `"a\u0000"`, "as it was sent")
	require.Equal(t, int64(1764000000000), got[0].RunAt.UnixMilli())
	require.Equal(t, time.Second, got[0].Duration)

	placed := false
	err := b.workers.Report(t.Context(), store.DiagnosticReport{ID: "x", WorkerID: "none", Status: store.Healthy, Checks: []byte(`[]`)},
		staged(func() error { placed = true; return nil }))
	require.Equal(t, store.NotFound, store.CodeOf(err))
	require.False(t, placed)
	require.Equal(t, store.NotFound, codeOf(b.workers.Reports(t.Context(), "none", 1)))
	require.Equal(t, store.Critical, must(b.workers.Show(t.Context(), w.id))(t).Diagnostic)
}

func TestSilentWorkersAndThoseThatLeft(t *testing.T) {
	t.Parallel()
	const seen = `UPDATE workers SET last_seen_at = now() - $2::interval, poll_wait = $3 WHERE id = $1`
	ago := func(d time.Duration, wait int) func(*fixture, *client) {
		return func(b *fixture, w *client) { b.exec(seen, w.id, d, wait) }
	}
	writes := func(age time.Duration, closed bool) func(*fixture, *client) {
		return func(b *fixture, w *client) {
			written := must(b.queue.RecordPresence(t.Context(), []store.Presence{{Number: w.number, Used: w.shown, Age: age, Wait: 30 * time.Second, Closed: closed}}))(t)
			require.Len(t, written, 1)
		}
	}
	closed := func(age time.Duration) func(*fixture, *client) { return writes(age, true) }
	holds := func(b *fixture, w *client) { w.gets(b.build().ID) }
	gap := func(seconds int) func(*fixture, *client) {
		return func(b *fixture, w *client) {
			b.exec(`UPDATE builds SET sign_gap = $2 WHERE worker_id = $1`, w.id, seconds)
		}
	}
	says := func(_ *fixture, w *client) {
		_, _, err := w.workers.Leaving(t.Context(), store.WorkerToken{Worker: w.number, Counter: w.shown})
		require.NoError(t, err)
	}
	leaves := func(_ *fixture, w *client) { must(w.workers.UnregisterID(t.Context(), w.id, ""))(t) }
	for name, c := range map[string]struct {
		do     []func(*fixture, *client)
		state  string
		hidden bool // from lists of present workers
	}{
		"polled lately":                    {[]func(*fixture, *client){ago(85*time.Second, 0)}, "idle", false},
		"silent for 90 s":                  {[]func(*fixture, *client){ago(95*time.Second, 30)}, "silent", false},
		"polls wait for a minute":          {[]func(*fixture, *client){ago(115*time.Second, 60)}, "idle", false},
		"a minute and a poll's wait":       {[]func(*fixture, *client){ago(125*time.Second, 60)}, "silent", false},
		"its connection just closed":       {[]func(*fixture, *client){ago(time.Minute, 30), closed(5 * time.Second)}, "idle", false},
		"its connection closed":            {[]func(*fixture, *client){ago(time.Minute, 30), closed(15 * time.Second)}, "silent", false},
		"it polled elsewhere since":        {[]func(*fixture, *client){ago(5*time.Second, 30), closed(15 * time.Second)}, "idle", false},
		"it polls again":                   {[]func(*fixture, *client){ago(time.Minute, 30), closed(15 * time.Second), writes(time.Second, false)}, "idle", false},
		"draining and silent":              {[]func(*fixture, *client){func(_ *fixture, w *client) { w.drains(true) }, ago(95*time.Second, 0)}, "silent", false},
		"has a build, and was heard of":    {[]func(*fixture, *client){holds, ago(115*time.Second, 0)}, "building", false},
		"not heard of since its hand-out":  {[]func(*fixture, *client){holds, ago(125*time.Second, 0)}, "silent", false},
		"silent, but says that it is ill":  {[]func(*fixture, *client){ago(95*time.Second, 30), closed(80 * time.Second), func(_ *fixture, w *client) { w.reports(store.Critical) }}, "critical", false},
		"said long ago that it is ill":     {[]func(*fixture, *client){func(_ *fixture, w *client) { w.reports(store.Critical) }, ago(95*time.Second, 30)}, "silent", false},
		"its signs came every ten seconds": {[]func(*fixture, *client){holds, gap(10), ago(55*time.Second, 0)}, "building", false},
		"and come no more":                 {[]func(*fixture, *client){holds, gap(10), ago(65*time.Second, 0)}, "silent", false},
		"its signs came every half minute": {[]func(*fixture, *client){holds, gap(30), ago(115*time.Second, 0)}, "building", false},
		"and come no more, either":         {[]func(*fixture, *client){holds, gap(30), ago(125*time.Second, 0)}, "silent", false},
		"said that it leaves":              {[]func(*fixture, *client){holds, says}, "leaving", false},
		"said that it leaves, and polled": {[]func(*fixture, *client){says, func(b *fixture, w *client) {
			b.exec(`UPDATE workers SET leaving_at = leaving_at - interval '6 s' WHERE id = $1`, w.id)
			w.gets(b.build().ID)
		}}, "building", false},
		"said that it leaves, and is again": {[]func(*fixture, *client){says, func(_ *fixture, w *client) { must(w.workers.Register(t.Context(), store.Registration{ID: w.id}))(t) }}, "idle", false},
		"unregistered":                      {[]func(*fixture, *client){leaves}, "left", false},
		"unregistered two days ago": {[]func(*fixture, *client){leaves, func(b *fixture, w *client) {
			b.exec(`UPDATE workers SET left_at = now() - interval '2 days', last_seen_at = now() - interval '3 days' WHERE id = $1`, w.id)
		}}, "left", true},
		"offline without unregistering": {[]func(*fixture, *client){func(b *fixture, w *client) { b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, w.id) }}, "offline", false},
		"unregistered, back, offline": {[]func(*fixture, *client){leaves, func(b *fixture, w *client) {
			b.exec(`UPDATE workers SET left_at = now() - interval '2 days', last_seen_at = now() - interval '1 day' WHERE id = $1`, w.id)
		}}, "offline", false},
	} {
		inDatabase(t, name, func(b *fixture) {
			w := b.worker()
			for _, do := range c.do {
				do(b, w)
			}
			one := must(b.workers.Show(b.t.Context(), w.id))(b.t)
			require.Equal(b.t, c.state, one.State)
			rows := listed(b.workers.List(b.t.Context(), store.WorkerFilter{State: c.state, Sort: "state"}, store.Page{Limit: 10}))(b.t)
			require.Len(b.t, rows, 1)
			rows = listed(b.workers.List(b.t.Context(), store.WorkerFilter{Present: true}, store.Page{Limit: 10}))(b.t)
			require.Equal(b.t, c.hidden, len(rows) == 0)
			require.Contains(b.t, store.WorkerStates(), one.State)
			fleet := summaries(b.t, b)
			require.Equal(b.t, c.state == "silent", fleet[0].Silent == 1)
			require.Equal(b.t, c.state == "idle" || c.state == "building", fleet[0].Able == 1)
			require.Equal(b.t, c.state != "left", fleet[0].Known == 1)
		})
	}
}

func TestDeleteGivesBuildsBackInTheirPlaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, third := b.build(), b.build(), b.build()
	w := b.worker(slots(2))
	w.gets(first.ID)
	w.gets(second.ID)
	gone := must(b.workers.Delete(t.Context(), w.id))(t)
	gone.Requeued = plain(t, gone.Requeued)
	require.Equal(t, store.Departure{WorkerID: w.id, Requeued: []store.BuildRef{
		w.losing(first.ID), w.losing(second.ID),
	}}, gone)
	require.Equal(t, store.PollInvalidToken, w.lost().Outcome)
	other := b.worker(slots(3))
	other.gets(first.ID)
	other.gets(second.ID)
	other.gets(third.ID)
	require.Equal(t, store.NotFound, codeOf(b.workers.Delete(t.Context(), w.id)))
	require.Equal(t, store.Forbidden, codeOf(b.builds.Telemetry(t.Context(), w.heartbeat(first.ID), store.Telemetry{Type: "heartbeat"})))
}

// Whoever looks after the fleet meets everybody else who changes its rows: in
// whatever order, nobody waits for anybody in a circle, and what has to be equal
// is (see checkInvariants).
func TestOperatorsAndWorkersDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	const workers, steps = 4, 60
	b := setup(t)
	var ids []string
	for range workers {
		ids = append(ids, b.worker(slots(2)).id)
	}
	var builds []string
	for range 10 {
		builds = append(builds, b.build().ID)
	}
	ctx := t.Context()
	load := 50.0
	acts := []func(worker, build string) error{
		func(w, _ string) error { _, err := b.workers.Delete(ctx, w); return err },
		func(w, _ string) error {
			_, err := b.workers.Register(ctx, store.Registration{ID: w, Name: w, Slots: 2})
			return err
		},
		func(w, build string) error {
			_, err := b.builds.Telemetry(ctx, store.Heartbeat{BuildID: build, WorkerID: w, Logs: []store.LogLine{{Level: store.Info, Message: "x"}}},
				store.Telemetry{Type: "cpu_snapshot", CPUPercent: &load})
			return err
		},
		func(w, _ string) error {
			id := store.NewID()
			return b.workers.Report(ctx, store.DiagnosticReport{
				ID: id, WorkerID: w, Status: store.Critical, Checks: []byte(`[]`), File: storetest.File("diagnostics/"+id, id),
			})
		},
		func(w, _ string) error { _, err := b.workers.Drain(ctx, w, len(w)%2 == 0); return err },
		func(string, string) error {
			var polls []store.Poll
			for _, id := range ids {
				polls = append(polls, store.Poll{WorkerID: id})
			}
			_, err := b.queue.Assign(ctx, polls)
			return err
		},
		func(_, build string) error { return b.builds.Cancel(ctx, build, "", "") },
		func(string, string) error { _, err := b.builds.Totals(ctx); return err },
		func(_, build string) error {
			s := submission(t)
			s.RetryOf = build
			_, err := b.builds.Submit(ctx, s)
			return err
		},
	}
	var wg sync.WaitGroup
	for _, act := range acts {
		wg.Go(func() {
			for i := range steps {
				err := act(ids[rand.IntN(workers)], builds[i%len(builds)])
				switch store.CodeOf(err) {
				case "", store.NotFound, store.Forbidden, store.NotAssigned, store.InvalidState, store.RetryWaiting:
				default:
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWorkersAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "worker_known")
	known := b.worker()
	b.exec(`INSERT INTO workers (id, slots) SELECT 'w' || i, 1 FROM generate_series(1, 99999) i`)
	workers := postgres.NewWorkers(b.DB) // which has not counted yet
	require.Equal(t, store.Overloaded, codeOf(workers.Register(t.Context(), store.Registration{ID: "one-more", Name: "w"})))
	_, err := workers.Register(t.Context(), store.Registration{ID: known.id, Name: "w"})
	require.NoError(t, err, "who is known comes back")
	require.Equal(t, store.NotFound, codeOf(workers.Show(t.Context(), "one-more")))
}

// The longest time between two signs of life of an attempt says how long silence may be.
func TestSignsOfLifeAreTimed(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	gap := func() (seconds *int) {
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT sign_gap FROM builds WHERE id = $1`, build.ID).Scan(&seconds))
		return seconds
	}
	sign := func(after time.Duration) {
		b.exec(`UPDATE builds SET last_seen_at = last_seen_at - $2::interval WHERE id = $1`, build.ID, after)
		b.exec(`UPDATE workers SET last_seen_at = last_seen_at - $2::interval WHERE id = $1`, w.id, after)
		must(b.builds.RecordHeartbeat(t.Context(), w.heartbeat(build.ID)))(t)
	}
	sign(0)
	require.Nil(t, gap(), "the first")
	for _, s := range []struct{ after, most int }{{20, 20}, {3, 20}, {31, 31}, {200, 75}} {
		sign(time.Duration(s.after) * time.Second)
		require.InDelta(t, s.most, *gap(), 1)
	}
	must(b.builds.Requeue(t.Context(), build.ID))(t)
	w.gets(build.ID)
	require.Nil(t, gap(), "another attempt")
}
