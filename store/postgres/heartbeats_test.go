package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// The worker access rule: who may read a build's files and write its logs.
func TestAccess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, ended, waits := b.build(), b.build(), b.build(priority(-1))
	w, other := b.worker(slots(2)), b.worker()
	w.gets(build.ID)
	w.gets(ended.ID)
	w.finishes(ended.ID)
	for name, c := range map[string]struct {
		heartbeat   store.Heartbeat
		held, touch store.Code
	}{
		"the holder":                    {heartbeat: w.heartbeat(build.ID)},
		"the holder, with its attempt":  {heartbeat: store.Heartbeat{BuildID: build.ID, WorkerID: w.id, Attempt: 1}},
		"another worker":                {heartbeat: other.heartbeat(build.ID), held: store.NotAssigned, touch: store.NotAssigned},
		"an unknown worker":             {heartbeat: store.Heartbeat{BuildID: build.ID, WorkerID: "wrong-worker"}, held: store.Forbidden, touch: store.Forbidden},
		"no worker":                     {heartbeat: store.Heartbeat{BuildID: waits.ID}, held: store.Forbidden, touch: store.Forbidden},
		"an unknown build":              {heartbeat: w.heartbeat("none"), held: store.NotFound, touch: store.NotFound},
		"a build that waits":            {heartbeat: w.heartbeat(waits.ID), held: store.NotAssigned, touch: store.NotAssigned},
		"a build that the worker ended": {heartbeat: w.heartbeat(ended.ID), held: store.NotAssigned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := b.builds.Held(t.Context(), c.heartbeat)
			require.Equal(t, c.held, store.CodeOf(err), "%v", err)
			if err == nil {
				require.Equal(t, c.heartbeat.BuildID, got.ID)
				require.NotNil(t, got.Source)
			}
			require.Equal(t, c.touch, store.CodeOf(b.touch(t.Context(), c.heartbeat)))
		})
	}
}

func TestAnOlderAttemptIsStale(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	b.exec(ageAssignment, build.ID)
	b.sweep()
	w.gets(build.ID)
	stale := w.heartbeat(build.ID)
	stale.Attempt = 1
	require.Equal(t, store.StaleAttempt, codeOf(b.builds.Held(t.Context(), stale)))
	require.Equal(t, store.StaleAttempt, store.CodeOf(b.touch(t.Context(), stale)))
	require.Equal(t, store.StaleAttempt, codeOf(b.builds.Heartbeat(t.Context(), stale)))
	stale.Attempt = 2
	require.NoError(t, b.touch(t.Context(), stale))
}

func TestTouchAcknowledgesAtOnceAndThenSeldomWrites(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	must(b.builds.Held(t.Context(), w.heartbeat(build.ID)))(t)
	require.Equal(t, store.Assigned, b.find(build.ID).State, "Held leaves no trace")

	reply := must(b.builds.RecordHeartbeat(t.Context(), w.heartbeat(build.ID)))(t)
	require.True(t, reply.Began)
	first := b.find(build.ID)
	require.Equal(t, store.Building, first.State)
	require.False(t, first.LastSeenAt.IsZero())
	reply = must(b.builds.RecordHeartbeat(t.Context(), w.heartbeat(build.ID)))(t)
	require.False(t, reply.Began)
	require.Equal(t, first, b.find(build.ID))

	b.exec(`UPDATE builds SET last_seen_at = now() - interval '2 s'`)
	b.exec(`UPDATE workers SET last_seen_at = now() - interval '1 h', status = 'offline'`)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(build.ID)))
	require.WithinDuration(t, time.Now(), b.find(build.ID).LastSeenAt, time.Minute)
	require.Equal(t, store.Busy, w.find().Status)
	require.WithinDuration(t, time.Now(), w.find().LastSeenAt, time.Minute)
}

func TestLateLogsOfAnEndedBuildAreKept(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	w.finishes(build.ID)
	before := b.find(build.ID)
	heartbeat := w.heartbeat(build.ID)
	heartbeat.Logs = []store.LogLine{{Level: store.Warn, Message: "late\x00 \xff"}}
	require.NoError(t, b.touch(t.Context(), heartbeat))
	require.Equal(t, before, b.find(build.ID))
	require.Equal(t, "late\uFFFD \uFFFD", b.logs(build.ID)[3])
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before    func(b *fixture, w *client, build string)
		cancelled bool
		code      store.Code
	}{
		"of a build that runs": {},
		"of a cancelled build": {before: func(b *fixture, _ *client, build string) {
			require.NoError(t, b.builds.Cancel(t.Context(), build, "", ""))
		}, cancelled: true},
		"of a build that completed": {before: func(_ *fixture, w *client, build string) { w.finishes(build) }},
		"of a build that was given up": {before: func(b *fixture, _ *client, build string) {
			b.exec(ageAssignment, build)
			b.sweep(func(s *store.Sweep) { s.Rule.MaxAttempts = 1 })
		}, cancelled: true},
		"of a build that waits again": {before: func(b *fixture, _ *client, build string) { b.exec(ageAssignment, build); b.sweep() }},
		"of a build that somebody else got": {before: func(b *fixture, _ *client, build string) {
			b.exec(ageAssignment, build)
			b.sweep()
			b.worker().gets(build)
		}, cancelled: true},
		"of a build that was never this worker's": {before: func(b *fixture, w *client, _ string) { w.id = b.worker().id }, code: store.NotAssigned},
		"of an unknown worker":                    {before: func(_ *fixture, w *client, _ string) { w.id = "none" }, code: store.NotAssigned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, build, w := holding(t)
			if c.before != nil {
				c.before(b, w, build.ID)
			}
			heartbeat := w.heartbeat(build.ID)
			heartbeat.Logs = []store.LogLine{{Level: store.Info, Message: "Build progress: 10%"}}
			reply, err := b.builds.Heartbeat(t.Context(), heartbeat)
			require.Equal(t, c.code, store.CodeOf(err), "%v", err)
			require.Equal(t, c.cancelled, reply.Cancelled)
			require.Equal(t, c.before == nil, reply.Began, "the first heartbeat of an assigned build")
			if c.before == nil {
				require.Equal(t, store.Building, b.find(build.ID).State)
				require.Contains(t, b.logs(build.ID), "Build progress: 10%")
			}
		})
	}
	inDatabase(t, "of an unknown build", func(b *fixture) {
		require.Equal(b.t, store.NotFound, codeOf(b.builds.Heartbeat(b.t.Context(), b.worker().heartbeat("none"))))
	})
}

// A heartbeat that waits for a transaction which takes the build away is refused, and its
// line is not kept.
func TestBeatOfABuildThatIsTakenAwayMeanwhile(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	tx := must(b.Pool.Begin(t.Context()))(t)
	defer tx.Rollback(t.Context()) // committed below
	must(tx.Exec(t.Context(), `WITH w AS (UPDATE workers SET held = 0, status = 'idle')
		UPDATE builds SET state = 'pending', worker_id = NULL, last_worker_id = worker_id, started_at = NULL, last_seen_at = NULL`))(t)
	done := make(chan error, 1)
	heartbeat := w.heartbeat(build.ID)
	heartbeat.Logs = []store.LogLine{{Level: store.Info, Message: "too late"}}
	go func() { done <- b.touch(t.Context(), heartbeat) }()
	b.waits(1)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, store.NotAssigned, store.CodeOf(<-done))
	require.Equal(t, store.Pending, b.find(build.ID).State)
	require.NotContains(t, b.logs(build.ID), "too late")
}

// A worker's first heartbeats arrive together, at several controllers: source, log and
// heartbeat. The build begins once, in the attempt that its row names.
func TestOfBeatsThatArriveTogetherOneBeginsTheBuild(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	tx := must(b.Pool.Begin(t.Context()))(t)
	defer tx.Rollback(t.Context()) // ends the lock
	must(tx.Exec(t.Context(), `SELECT FROM workers FOR UPDATE`))(t)
	const each = 2
	type result struct {
		store.HeartbeatReply
		error
	}
	results := make(chan result)
	for range each {
		one, other := postgres.NewBuilds(b.DB, postgres.BuildsConfig{}), postgres.NewBuilds(b.DB, postgres.BuildsConfig{})
		go func() {
			reply, err := one.Heartbeat(t.Context(), w.heartbeat(build.ID))
			results <- result{reply, err}
		}()
		go func() {
			reply, err := other.RecordHeartbeat(t.Context(), w.heartbeat(build.ID))
			results <- result{reply, err}
		}()
	}
	b.waits(2 * each)
	require.NoError(t, tx.Rollback(t.Context()))
	began := 0
	for range 2 * each {
		r := <-results
		require.NoError(t, r.error)
		require.Equal(t, 1, r.Attempt, "although the heartbeat names none")
		if r.Began {
			began++
		}
	}
	require.Equal(t, 1, began)
}

// A reader that goes on after the last line it saw misses none, however many
// writers there are.
func TestLogsBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	const writers, each = 6, 30
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				heartbeat := w.heartbeat(build.ID)
				for k := range 3 {
					heartbeat.Logs = append(heartbeat.Logs, store.LogLine{Level: store.Info, Message: fmt.Sprint(i, j, k)})
				}
				if err := b.touch(t.Context(), heartbeat); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var seen []store.LogLine
	read := func(limit int) int {
		var after int64
		if n := len(seen); n > 0 {
			after = seen[n-1].Seq
		}
		lines := must(b.builds.Tail(t.Context(), build.ID, after, limit))(t).Lines
		seen = append(seen, lines...)
		return len(lines)
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			read(7)
		}
	}
	for read(7) > 0 {
	}
	all := storetest.Logs(t, b.DB, build.ID, 0)
	require.Len(t, all, 2+writers*each*3)
	require.Equal(t, all, seen)
}
