package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// Each invariant is broken by hand and found; what can be mended is, and stays so.
func TestInvariants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		breaks []string // w1 and b1 are the worker and its build, b2 waits
		mended string   // a query that is true after the repair; "" if there is none
	}{
		{"worker_held", []string{`UPDATE workers SET held = 0, status = 'idle' WHERE id = 'w1'`}, `SELECT held = 1 FROM workers WHERE id = 'w1'`},
		{"worker_status", []string{`UPDATE workers SET status = 'idle' WHERE id = 'w1'`}, `SELECT status = 'building' FROM workers WHERE id = 'w1'`},
		{"worker_slots", []string{`UPDATE builds SET state = 'assigned', worker_id = 'w1' WHERE id = 'b2'`, `UPDATE workers SET slots = 1, held = 2`}, ""},
		{"worker_known", []string{`DELETE FROM worker_details WHERE worker_id = 'w1'`}, ""},
		{"build_holder", []string{`UPDATE builds SET worker_id = 'gone' WHERE id = 'b1'`}, `SELECT state = 'pending' FROM builds WHERE id = 'b1'`},
		{"build_pending", []string{`UPDATE builds SET worker_id = 'w1' WHERE id = 'b2'`}, `SELECT worker_id IS NULL FROM builds WHERE id = 'b2'`},
		{"build_ended", []string{`UPDATE builds SET state = 'failed', updated_at = now() WHERE id = 'b2'`}, `SELECT completed_at = updated_at FROM builds WHERE id = 'b2'`},
		{"build_known", []string{`DELETE FROM build_ids WHERE id = 'b2'`}, `SELECT EXISTS (SELECT FROM build_ids WHERE id = 'b2')`},
		{"build_source", []string{`DELETE FROM build_files WHERE build = (SELECT seq FROM builds WHERE id = 'b2')`}, ""},
		{"build_result", []string{`UPDATE builds SET state = 'completed', completed_at = now() WHERE id = 'b2'`}, ""},
		{"day_totals", []string{`INSERT INTO build_days (day, failed) VALUES ((now() AT TIME ZONE 'UTC')::date, 1)`}, ""},
		{"action_queue", []string{`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at) VALUES (7, 1, 'c', now() + interval '1 d')`}, ""},
		{"queue_job", []string{
			`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) VALUES ('queue:1:2:3:0', 1, '2', 3, '0')`,
			`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at, received_at)
				SELECT seq, 1, 'c', now() + interval '1 d', now() - interval '11 min' FROM throttle_queues`,
		}, ""},
		{"queue_rate", []string{
			`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) VALUES ('queue:1:2:3:0', 1, '2', 3, '0')`,
			`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit, updated_at)
				VALUES (1, 3, 10, 1, 'minute', now() - interval '1 h')`,
			`INSERT INTO throttle_windows (queue, claim, n, ended_at) SELECT seq, 1, 11, now() - interval '1 s' FROM throttle_queues`,
		}, ""},
		{"deployment_sum", []string{
			`INSERT INTO deployments (id, request, state, credential_id) VALUES ('d', '{}', 'done', '')`,
			`INSERT INTO deployment_repos (deployment_id, name, target, source) VALUES ('d', 'r', 'r', '{}')`,
		}, ""},
		{"deployment_credential", []string{
			`INSERT INTO deployments (id, request, state, credential, credential_id) VALUES ('d', '{}', 'failed', 'sealed', '')`,
		}, `SELECT credential IS NULL FROM deployments`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := storetest.New(t)
			b := &fixture{Database: db, t: t, builds: postgres.NewBuilds(db.DB, postgres.BuildsConfig{}), queue: postgres.NewQueue(db.DB, postgres.QueueConfig{})}
			first := b.build(func(s *store.Submission) { s.ID = "b1" })
			b.worker().gets(first.ID)
			b.exec(`UPDATE workers SET id = 'w1', slots = 2`)
			b.exec(`UPDATE worker_details SET worker_id = 'w1'`)
			b.exec(`UPDATE builds SET worker_id = 'w1'`)
			b.build(func(s *store.Submission) { s.ID = "b2" })
			require.Empty(t, broken(t.Context(), t, db.DB))

			for _, statement := range c.breaks {
				b.exec(statement)
			}
			found := strings.Join(broken(t.Context(), t, db.DB), "\n")
			require.Contains(t, found, c.name+": [")
			repaired := must(postgres.NewInvariants(db.DB, nil).Repair(t.Context()))(t)
			i := slices.IndexFunc(repaired, func(i store.Invariant) bool { return i.Name == c.name })
			require.Positive(t, repaired[i].Broken, "it says what was broken")
			require.Equal(t, c.mended != "", repaired[i].Repaired > 0)
			if c.mended == "" {
				require.Equal(t, found, strings.Join(broken(t.Context(), t, db.DB), "\n"), "nobody knows what is right")
				return
			}
			var mended bool
			require.NoError(t, db.Pool.QueryRow(t.Context(), c.mended).Scan(&mended))
			require.True(t, mended)
			require.Empty(t, broken(t.Context(), t, db.DB))
		})
	}
}

// What is handed out while a repair waits for its locks is part of what it judges.
func TestARepairWaitsForItsLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	w := b.worker(slots(2))
	w.gets(one.ID)
	b.exec(`UPDATE workers SET held = 0, status = 'idle'`)
	tx := must(b.Pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, statement := range []string{
		`UPDATE workers SET held = 2, status = 'building'`,
		`UPDATE builds SET state = 'assigned', worker_id = (SELECT id FROM workers), started_at = now() WHERE id = '` + two.ID + `'`,
	} {
		must(tx.Exec(t.Context(), statement))(t)
	}
	repaired := make(chan error, 1)
	go func() { _, err := postgres.NewInvariants(b.DB, nil).Repair(t.Context()); repaired <- err }()
	b.waits(1)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-repaired)
	require.Equal(t, 2, w.find().Held)
}

// A result that blames another worker locks its own worker first, whatever their ids. PostgreSQL
// breaks the deadlock with a repair, which locks all workers in the order of their ids.
func TestARepairIsTriedAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = []string{"deadlocks"}
	for _, id := range []string{"w1", "w2", "w3"} {
		b.worker(func(r *store.Registration) { r.ID = id }).gets(b.build().ID)
	}
	b.exec(`UPDATE workers SET held = 0, status = 'idle'`)
	result := must(b.Pool.Begin(t.Context()))(t)
	defer func() { _ = result.Rollback(t.Context()) }()
	must(result.Exec(t.Context(), `SET LOCAL deadlock_timeout = '1h'`))(t) // so that it is not the victim
	must(result.Exec(t.Context(), lockWorkers, []string{"w3"}))(t)
	release := b.locks(lockWorkers, []string{"w2"})

	b.sessions("deadlock_timeout", "1")
	repaired := make(chan error, 1)
	go func() {
		found, err := postgres.NewInvariants(b.DB, nil).Repair(t.Context())
		for _, i := range found {
			if i.Name == "worker_held" && i.Repaired != 3 {
				t.Errorf("%d workers were repaired", i.Repaired)
			}
		}
		repaired <- err
	}()
	b.waits(1) // the repair has w1, and waits for w2
	blamed := make(chan error, 1)
	go func() {
		_, err := result.Exec(t.Context(), lockWorkers, []string{"w1"})
		if err == nil {
			err = result.Commit(t.Context())
		}
		blamed <- err
	}()
	b.waits(2)
	release()
	require.NoError(t, <-blamed)
	require.NoError(t, <-repaired)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM workers WHERE held = 1 AND status = 'building'`))
}

func TestWhatIsSealedOpens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ring := seal.NewRing(seal.Key{1})
	b.exec(`INSERT INTO deployments (id, request, credential, credential_id) VALUES ('good', '{}', $1, ''), ('moved', '{}', $2, ''), ('foreign', '{}', $3, '')`,
		ring.Seal(seal.ForgeCredential, "good", []byte("ghp_x")), ring.Seal(seal.ForgeCredential, "good", []byte("ghp_x")),
		seal.NewRing(seal.Key{2}).Seal(seal.ForgeCredential, "foreign", []byte("ghp_x")))
	found := must(postgres.NewInvariants(b.DB, ring).Repair(t.Context()))(t)
	last := found[len(found)-1]
	require.EqualValues(t, 2, last.Broken)
	require.ElementsMatch(t, []string{"forge credential moved", "forge credential foreign"}, last.Examples)
	require.Zero(t, last.Repaired)
}

func TestOnlyTheInvariantsOfTheServicesAreChecked(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	names := func(services ...string) (names []string) {
		found := must(postgres.NewInvariants(db.DB, nil, services...).Check(t.Context()))(t)
		for _, i := range found {
			names = append(names, i.Name)
		}
		return names
	}
	require.Equal(t, []string{"deployment_sum", "deployment_credential"}, names("deployments"))
	require.Equal(t, []string{"action_queue", "queue_job", "queue_rate"}, names("throttle"))
	require.Equal(t, names(), slices.Concat(names("builds"), names("throttle"), names("deployments")), "each is of a service")
}
