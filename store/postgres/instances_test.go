package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func named(instance string) func(*store.Registration) {
	return func(r *store.Registration) { r.Instance = instance }
}

// registers registers c's worker again, in a process.
func (c *client) registers(instance string, edit ...func(*store.Registration)) error {
	c.t.Helper()
	r := store.Registration{ID: c.id, Name: "again", Capabilities: []byte(`{"version":"2"}`), Slots: 1, Instance: instance}
	for _, e := range edit {
		e(&r)
	}
	reg, err := c.workers.Register(c.t.Context(), r)
	if err == nil {
		c.shown = reg.Token.Counter
	}
	return err
}

func (c *client) silentFor(d time.Duration) {
	c.t.Helper()
	c.exec(`UPDATE workers SET last_seen_at = now() - $2::interval WHERE id = $1`, c.id, d)
}

// process names the process that sends a heartbeat or polls.
func (c *client) process(instance, build string) (store.Heartbeat, store.Poll) {
	heartbeat := c.heartbeat(build)
	heartbeat.Instance = instance
	return heartbeat, c.request(func(p *store.Poll) { p.Instance = instance })
}

func TestAProcessTakesAWorkerOverOnlyAfterTheOtherWasSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker(named("a"), slots(2))
	w.gets(build.ID)
	waits := b.build()

	before := *w
	w.silentFor(29 * time.Second)
	reports := func(r *store.Registration) { r.Reports = true }
	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("b", reports)))
	require.Equal(t, store.Assigned, b.find(build.ID).State, "a refused process takes nothing away")
	require.JSONEq(t, `{}`, string(w.find().Capabilities))
	require.Equal(t, before.shown, w.shown)

	heartbeat, poll := w.process("b", build.ID)
	heartbeat.Logs = []store.LogLine{{Level: store.Info, Message: "from b"}}
	require.Equal(t, store.DuplicateWorker, store.CodeOf(b.touch(t.Context(), heartbeat)))
	require.Equal(t, store.DuplicateWorker, codeOf(b.builds.Heartbeat(t.Context(), heartbeat)))
	require.Equal(t, store.DuplicateWorker, codeOf(b.builds.Held(t.Context(), heartbeat)))
	require.Equal(t, store.DuplicateWorker, codeOf(b.builds.Telemetry(t.Context(), heartbeat, store.Telemetry{Type: "heartbeat"})))
	require.NotContains(t, b.logs(build.ID), "from b")
	require.Equal(t, store.Assigned, b.find(build.ID).State)
	require.Equal(t, store.PollDuplicateWorker, b.assign(poll)[0].Outcome)
	require.Equal(t, store.Pending, b.find(waits.ID).State)

	// The first goes on, and its heartbeat is no silence.
	heartbeat, _ = w.process("a", build.ID)
	require.NoError(t, b.touch(t.Context(), heartbeat))
	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("b")))

	// After its silence the second has the worker, and what it does not run waits again.
	w.silentFor(30 * time.Second)
	require.NoError(t, w.registers("b", reports))
	require.Equal(t, store.Pending, b.find(build.ID).State)
	require.Equal(t, store.DuplicateWorker, codeOf(b.builds.Heartbeat(t.Context(), heartbeat)), "the first speaks again")
	late := before.request(func(p *store.Poll) { p.Instance = "a" })
	require.Equal(t, store.PollDuplicateWorker, b.assign(late)[0].Outcome, "although its token is superseded too")
	require.Equal(t, store.DuplicateWorker, store.CodeOf(before.registers("a")))
	_, poll = w.process("b", "")
	require.Equal(t, build.ID, jobID(b.assign(poll)[0]))
}

func TestAWorkerIDIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before   func(w *client)
		instance string
	}{
		"for the same process":                {instance: "a"},
		"when the other has unregistered":     {before: func(w *client) { _, err := w.workers.UnregisterID(t.Context(), w.id, ""); require.NoError(t, err) }, instance: "b"},
		"for a process that names itself not": {},
		"when the other has named itself not": {before: func(w *client) { require.NoError(t, w.registers("")) }, instance: "b"},
	} {
		inDatabase(t, name, func(b *fixture) {
			w := b.worker(named("a"))
			if c.before != nil {
				c.before(w)
			}
			require.NoError(b.t, w.registers(c.instance))
		})
	}
}

// A process that names none is served as before, also while another one holds the worker.
func TestProcessesWithoutAnIDAreServedAsBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker(named("a"))
	w.gets(build.ID)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(build.ID)))
	w.finishes(build.ID)
}

func TestOfManyProcessesOneTakesASilentWorkerOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"))
	w.silentFor(time.Minute)
	var taken atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := b.workers.Register(t.Context(), store.Registration{ID: w.id, Name: "w", Slots: 1, Instance: store.NewID()})
			switch store.CodeOf(err) {
			case "":
				taken.Add(1)
			case store.DuplicateWorker:
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, taken.Load())
}

func TestNobodysSilenceCountsUntilTheControllerWasReady(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"))
	w.silentFor(time.Hour)
	ready, since := true, time.Now().Add(-29*time.Second)
	b.workers.ReadySince = func() (time.Time, bool) { return since, ready }
	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("b")), "it may have polled meanwhile")
	since, ready = time.Now().Add(-time.Hour), false
	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("b")))
	again, _, err := b.workers.Conflict(t.Context(), w.id, "192.0.2.7")
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, again)
	ready = true
	require.NoError(t, w.registers("b"))
}

func TestAConflictIsReportedOnceAMinuteAndShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"))
	w.silentFor(12 * time.Second)
	shown := func() store.WorkerDetail { one := must(b.workers.Show(t.Context(), w.id))(t); return one }
	require.Zero(t, shown().ConflictAt)
	again, report, err := b.workers.Conflict(t.Context(), w.id, "192.0.2.7")
	require.NoError(t, err)
	require.True(t, report)
	require.InDelta(t, 18, again.Seconds(), 5, "when the other will have been silent long enough")
	_, report, err = b.workers.Conflict(t.Context(), w.id, "192.0.2.7")
	require.NoError(t, err)
	require.False(t, report)
	require.WithinDuration(t, time.Now(), shown().ConflictAt, time.Minute)
	require.Equal(t, "192.0.2.7", shown().ConflictFrom)
	b.exec(`UPDATE worker_details SET conflict_at = now() - interval '61 s'`)
	_, report, err = b.workers.Conflict(t.Context(), w.id, "192.0.2.8")
	require.NoError(t, err)
	require.True(t, report)
	b.exec(`UPDATE worker_details SET conflict_at = now() - interval '121 s'`)
	require.Zero(t, shown().ConflictAt)
	require.Empty(t, shown().ConflictFrom)
}
