package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// suspecting is a fixture with a worker on which five builds failed, and one that completed the
// like. check judges at another controller.
func suspecting(t *testing.T, edit ...func(*store.Submission)) (b *fixture, sick, well *client, check func() []store.WorkerUpdate) {
	t.Helper()
	b, _ = quarantining(t, 3, 10)
	sick, well = b.worker(slots(2)), b.worker(slots(2))
	second := postgres.New()
	second.Use(b.Pool)
	queue := postgres.NewQueue(second, postgres.QueueConfig{})
	check = func() []store.WorkerUpdate { return must(queue.CheckSuspects(t.Context()))(t) }
	for range 5 {
		require.Empty(t, check())
		build := b.build(edit...)
		sick.gets(build.ID)
		sick.fails(build.ID)
	}
	require.Empty(t, check(), "nobody completed the like")
	return b, sick, well, check
}

var ofShop = func(s *store.Submission) { s.Labels = store.Labels{"app": "shop", "branch": "main"} }

func (c *client) completesOne(edit ...func(*store.Submission)) {
	c.t.Helper()
	build := c.build(edit...)
	c.gets(build.ID)
	c.finishes(build.ID)
}

// state returns the worker's state and whether others count it as able.
func (c *client) state() (string, int) {
	c.t.Helper()
	shown := must(c.workers.Show(c.t.Context(), c.id))(c.t)
	return shown.State, summaries(c.t, c.fixture)[0].Able
}

func TestAWorkerOnWhichAllFailsIsSuspect(t *testing.T) {
	t.Parallel()
	b, sick, well, check := suspecting(t, ofShop)
	well.completesOne()
	require.Empty(t, check(), "another application")
	well.completesOne(ofShop)
	changed := check()
	require.Len(t, changed, 1)
	require.Equal(t, store.StepSuspected, changed[0].Step.What)
	require.Equal(t, sick.id, changed[0].WorkerID)
	require.Regexp(t, `^all 5 failures of \d+ s ran here; other workers completed \d of \d builds of the same kind$`, changed[0].Step.Lost)
	require.Empty(t, check(), "controllers agree")
	state, able := sick.state()
	require.Equal(t, []any{"suspect", 1}, []any{state, able})
	shown := must(b.workers.Show(t.Context(), sick.id))(t)
	require.Equal(t, changed[0].Step.Lost, shown.Suspect)
	require.False(t, shown.SuspectServed)
	require.WithinDuration(t, time.Now(), shown.SuspectSince, time.Minute)
	require.Equal(t, 5, b.count(`SELECT count(*)::int FROM builds WHERE suspect AND worker_id = $1`, sick.id))
	require.Equal(t, time.Minute, sick.rests())

	first := b.build(ofShop)
	sick.gets("")
	for _, minutes := range []time.Duration{2, 4} {
		sick.rested()
		build := first
		b.build(ofShop)
		sick.gets(build.ID)
		sick.gets("") // one trial
		sick.fails(build.ID)
		require.Equal(t, minutes*time.Minute, sick.rests())
		sick.gets("")
		require.Equal(t, 1, b.count(`SELECT count(*)::int FROM builds WHERE suspect AND id = $1`, build.ID))
		first = store.Build{ID: b.text(`SELECT id FROM builds WHERE state = 'pending' ORDER BY seq LIMIT 1`)}
	}
	b.build(ofShop)
	sick.rested()
	for range 2 {
		state, _ = sick.state()
		require.Equal(t, "suspect", state, "two trials")
		next := b.text(`SELECT id FROM builds WHERE state = 'pending' ORDER BY seq LIMIT 1`)
		sick.gets(next)
		sick.gets("")
		sick.finishes(next)
	}
	require.Empty(t, check())
	state, able = sick.state()
	require.Equal(t, []any{"idle", 2}, []any{state, able})
	require.Equal(t, 0, b.count(`SELECT count(*)::int FROM builds WHERE suspect AND state <> 'failed'`))
}

func (b *fixture) text(sql string) (s string) {
	b.t.Helper()
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), sql).Scan(&s))
	return s
}

// Builds that fail on their way to it were handed out before.
func TestASuspectIsServedAsBeforeWhileNobodyElseCanTakeAClass(t *testing.T) {
	t.Parallel()
	b, sick, well, check := suspecting(t, ofShop)
	held := b.build(ofShop)
	sick.gets(held.ID)
	well.completesOne(ofShop)
	require.Len(t, check(), 1)
	sick.fails(held.ID)
	require.Equal(t, time.Minute, sick.rests(), "it was no trial")

	must(b.workers.Drain(t.Context(), well.id, true))(t)
	changed := check()
	require.Len(t, changed, 1)
	require.Empty(t, changed[0].Step, "it was suspect before")
	state, able := sick.state()
	require.Equal(t, []any{"suspect", 1}, []any{state, able})
	for range 2 {
		build := b.build()
		sick.gets(build.ID)
		sick.fails(build.ID)
	}
	must(b.workers.Drain(t.Context(), well.id, false))(t)
	require.Len(t, check(), 1)
	require.Equal(t, time.Minute, sick.rests())

	sick.gets("")
	lone := b.worker(labelled("gpu", "1"))
	b.exec(`UPDATE workers SET suspect = 'x', suspect_rests = 1 WHERE id = $1`, lone.id)
	require.Empty(t, check())
	build := b.build(requires("gpu"))
	require.Len(t, check(), 1, "nobody else can take what waits")
	lone.gets(build.ID)
}

func TestAnOperatorEndsThatAWorkerIsSuspect(t *testing.T) {
	t.Parallel()
	b, sick, well, check := suspecting(t)
	for range 2 {
		well.completesOne()
		require.Empty(t, check(), "builds have no labels")
	}
	well.completesOne()
	require.Len(t, check(), 1)
	must(b.workers.Register(t.Context(), store.Registration{ID: sick.id, Name: "w", Slots: 1}))(t)
	state, _ := sick.state()
	require.Equal(t, "suspect", state, "registering ends nothing")
	must(b.workers.Drain(t.Context(), sick.id, true))(t)
	state, _ = sick.state()
	require.Equal(t, "draining", state)
	must(b.workers.Drain(t.Context(), sick.id, false))(t)
	require.Empty(t, check(), "what was before counts no more")
	state, _ = sick.state()
	require.Equal(t, "idle", state)
	build := b.build()
	sick.gets(build.ID, sick.byID())
}

// Builds that were lost or given back, and of which takt says why, failed by no command.
func TestOnlyCommandsMakeAWorkerSuspect(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{"lost": store.MessageTimeout, "restarted": store.MessageLost, "given back": "No worker could run it, 6 attempts failed."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, well, check := suspecting(t, ofShop)
			b.exec(`UPDATE builds SET error_message = $1 WHERE seq = (SELECT max(seq) FROM builds WHERE state = 'failed')`, message)
			well.completesOne(ofShop)
			require.Empty(t, check())
		})
	}
}
