package postgres_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// ordered makes registration n of a process that lists the builds that it runs.
func ordered(n int64, running ...string) func(*store.Registration) {
	return func(r *store.Registration) { r.Number, r.Reports, r.Running = n, true, running }
}

// rows returns all that the tables of workers and builds have.
func (b *fixture) rows() (all []string) {
	b.t.Helper()
	for _, table := range []string{"workers", "worker_details", "builds", "build_logs"} {
		var text string
		require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), `SELECT coalesce(jsonb_agg(to_jsonb(x) ORDER BY to_jsonb(x)::text), '[]')::text FROM `+table+` x`).Scan(&text))
		all = append(all, text)
	}
	return all
}

// late registers c's worker and expects that it is too late and changes nothing.
func (c *client) late(instance string, edit ...func(*store.Registration)) {
	c.t.Helper()
	before, shown := c.rows(), c.shown
	require.Equal(c.t, store.LateRegistration, store.CodeOf(c.registers(instance, edit...)))
	require.Equal(c.t, before, c.rows())
	require.Equal(c.t, shown, c.shown)
}

// A process gives its first registration up and sends another one, which is executed first.
func TestALateRegistrationTakesAndVoidsNothing(t *testing.T) {
	t.Parallel()
	for name, attempts := range map[string]int{"an attempt": 3, "the last attempt": 1} {
		inDatabase(t, name, func(b *fixture) {
			b.workers.Rule.MaxAttempts = attempts
			begun, assigned := b.build(), b.build()
			w := b.worker(named("a"), ordered(2), slots(3)) // and it is the first to arrive
			w.gets(begun.ID)
			w.gets(assigned.ID)
			require.NoError(b.t, b.touch(b.t.Context(), w.heartbeat(begun.ID)))

			w.late("a", ordered(1))
			w.late("a", ordered(1), slots(1))
			w.late("a", ordered(2)) // that a proxy has delivered twice
			require.Equal(b.t, store.Building, b.find(begun.ID).State)
			w.gets("") // its token is valid
			next := b.build()
			b.worker().gets(next.ID)
			w.finishes(begun.ID)
			w.finishes(assigned.ID)

			require.NoError(b.t, w.registers("a", ordered(3)), "the next is not late")
			w.late("a", ordered(2))
			w.gets("")
		})
	}
}

// Its number does not keep a registration from what it is for.
func TestANumberedRegistrationReportsWhatIsNotRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kept, lost := b.build(), b.build()
	w := b.worker(named("a"), ordered(7), slots(2))
	w.gets(kept.ID)
	w.gets(lost.ID)
	for _, id := range []string{kept.ID, lost.ID} {
		require.NoError(t, b.touch(t.Context(), w.heartbeat(id)))
	}
	old := *w
	require.NoError(t, w.registers("a", ordered(8, kept.ID), slots(2)))
	require.Equal(t, store.Building, b.find(kept.ID).State)
	require.Equal(t, store.Pending, b.find(lost.ID).State)
	require.Equal(t, store.PollInvalidToken, old.lost().Outcome)
	w.gets(lost.ID)
}

// The process of an id that was free, or taken over, has numbers of its own. Nothing that is
// not numbered is ever late.
func TestTheOrderOfRegistrationsIsThatOfOneProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"), ordered(1_000_000))
	w.silentFor(store.WorkerSilence)
	require.NoError(t, w.registers("b", ordered(1)), "another process took the id over")
	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("a", ordered(1_000_001))))
	w.late("b", ordered(1))

	require.NoError(t, w.registers("b"), "0.1.0's workers have no number")
	require.NoError(t, w.registers(""), "the clients of before have no process either")
	require.NoError(t, w.registers("", ordered(1)), "which a number without a process does not make one")
	w.late("b", ordered(1))
	require.NoError(t, w.registers("b", ordered(2)))

	must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	w.late("b", ordered(2))
	require.Equal(t, store.Offline, w.find().Status, "a late one does not bring back a worker that has left")
	require.NoError(t, w.registers("b", ordered(3)))
}

// identifyOf010 and registerOf010 are how release 0.1.0 registered a known worker.
const (
	identifyOf010 = `INSERT INTO worker_details (worker_id, name, capabilities) VALUES ($1, 'again', '{}')
		ON CONFLICT (worker_id) DO UPDATE SET capabilities = excluded.capabilities`
	registerOf010 = `UPDATE workers SET used = used + (1 << 20), handed = used + (1 << 20) + 1024, last_seen_at = now(),
		status = CASE WHEN held > 0 THEN 'building' ELSE 'idle' END WHERE id = $1`
)

// During a rolling upgrade a controller of 0.1.0 ignores the numbers of registrations.
func TestRegistrationsByTheReleaseBeforeKeepTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"), ordered(2))
	byOld := func() {
		b.exec(identifyOf010, w.id)
		b.exec(registerOf010, w.id)
		w.shown += 1<<20 + 1
	}
	byOld() // number 3
	build := b.build()
	w.gets(build.ID)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(build.ID)))
	w.late("a", ordered(2))
	require.NoError(t, w.registers("a", ordered(4, build.ID)), "the next one goes to a controller of this release")
	require.Equal(t, store.Building, b.find(build.ID).State)
	byOld()

	// The release before may let another process take the id over, and does not know its number.
	b.exec(`UPDATE workers SET instance = 'b' WHERE id = $1`, w.id)
	require.NoError(t, w.registers("b", ordered(1, build.ID)))
	w.finishes(build.ID)
}

// Of two controllers that execute a worker's registrations at the same time, the one with the
// newer has the last word, and its token is valid.
func TestTwoControllersExecuteRegistrationsInAnyOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"), ordered(1))
	other := postgres.NewWorkers(b.DB)
	var number int64 = 1
	for range 10 {
		older, newer := number+1, number+2
		number = newer
		register := func(at *postgres.Workers, n int64) (store.Registered, error) {
			r := store.Registration{ID: w.id, Name: "w", Slots: 1, Instance: "a"}
			ordered(n)(&r)
			return at.Register(t.Context(), r)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := register(other, older); err != nil && store.CodeOf(err) != store.LateRegistration {
				t.Error(err)
			}
		})
		reg, err := register(b.workers, newer)
		wg.Wait()
		require.NoError(t, err)
		w.shown = reg.Token.Counter
		require.Equal(t, store.PollServed, w.poll().Outcome)
	}
}

// A registration that contention rolls back has not used its number up.
func TestARegistrationThatIsTriedAgainIsNotLate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(named("a"), ordered(1))
	tried := b.disturb("workers", "40P01", 2)
	require.NoError(t, w.registers("a", ordered(2)))
	require.Equal(t, 3, tried())
}
