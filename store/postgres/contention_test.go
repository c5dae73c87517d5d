package postgres_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// locks runs a query in a transaction that stays open until the returned function is
// called.
func (b *fixture) locks(sql string, args ...any) (release func()) {
	b.t.Helper()
	tx := must(b.Pool.Begin(b.t.Context()))(b.t)
	b.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(b.t.Context())) })
	must(tx.Exec(b.t.Context(), sql, args...))(b.t)
	return func() { require.NoError(b.t, tx.Rollback(b.t.Context())) }
}

const lockWorkers = `SELECT FROM workers WHERE id = ANY ($1) FOR UPDATE`

// sessions replaces the handle's pool by one whose sessions have a setting.
func (b *fixture) sessions(setting, value string) {
	b.t.Helper()
	cfg := b.Pool.Config()
	cfg.ConnConfig.RuntimeParams[setting] = value
	pool := must(pgxpool.NewWithConfig(b.t.Context(), cfg))(b.t)
	b.t.Cleanup(pool.Close)
	b.DB.Use(pool)
}

func TestAssignServesAllButLockedWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var clients []*client
	for i := range 20 {
		clients = append(clients, b.worker())
		if i%2 == 0 {
			clients[i].gets("") // learns where its row is
		}
	}
	for range clients {
		b.build()
	}
	busy := []int{0, 1, 19}
	release := b.locks(lockWorkers, []string{clients[0].id, clients[1].id, clients[19].id})
	var polls []store.Poll
	for _, c := range clients {
		polls = append(polls, c.request())
	}
	var locked []int
	for i, r := range b.assign(polls...) { // which returns although the rows stay locked
		if r.Outcome == store.PollLocked {
			locked = append(locked, i)
			continue
		}
		require.Equal(t, store.PollServed, r.Outcome)
		require.NotNil(t, r.Jobs.First())
	}
	require.Equal(t, busy, locked)
	release()
	for _, i := range busy {
		require.NotNil(t, clients[i].poll().Jobs.First())
	}
}

func TestPresenceAndSweepPassOverLockedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var clients []*client
	var builds []string
	var heartbeats []store.Presence
	for range 3 {
		builds = append(builds, b.build().ID)
		clients = append(clients, b.worker())
	}
	for i, c := range clients {
		c.gets(builds[i])
		require.NoError(t, b.touch(t.Context(), c.heartbeat(builds[i])))
		heartbeats = append(heartbeats, store.Presence{Number: c.number, Used: c.shown})
		b.exec(ageSign, builds[i], time.Hour)
	}
	one, other := b.locks(lockWorkers, []string{clients[0].id}), b.locks(`SELECT FROM builds WHERE id = $1 FOR UPDATE`, builds[1])
	written := must(b.queue.RecordPresence(t.Context(), heartbeats))(t)
	require.Len(t, written, 2)
	require.NotContains(t, written, clients[0].number)

	require.Equal(t, []store.BuildRef{clients[2].losing(builds[2])}, plain(t, b.sweep().Requeued))
	one()
	other()
	require.Len(t, b.sweep().Requeued, 2)
}

// disturb makes the database end the first n changes of a table with a SQLSTATE. The
// returned function reports how many changes were tried.
func (b *fixture) disturb(table, state string, n int) (tried func() int) {
	b.t.Helper()
	b.exec(`DROP TRIGGER IF EXISTS disturb ON ` + table)
	b.exec(`DROP SEQUENCE IF EXISTS tries`)
	b.exec(`CREATE SEQUENCE tries`) // nothing rolls it back
	b.exec(`CREATE OR REPLACE FUNCTION disturb() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF nextval('tries') <= TG_ARGV[0]::int THEN RAISE EXCEPTION 'disturbed' USING ERRCODE = TG_ARGV[1]; END IF; RETURN NEW; END $$`)
	args := `(` + strconv.Itoa(n) + `, '` + state + `')`
	b.exec(`CREATE TRIGGER disturb BEFORE INSERT OR UPDATE ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION disturb` + args)
	return func() (tried int) {
		require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), `SELECT last_value FROM tries`).Scan(&tried))
		return tried
	}
}

func TestContentionIsTriedAgainAndIsNoOutage(t *testing.T) {
	t.Parallel()
	operations := map[string]struct {
		table string
		do    func(ctx context.Context, b *fixture, w *client) error
	}{
		"assign": {"builds", func(ctx context.Context, b *fixture, w *client) error {
			results, err := b.queue.Assign(ctx, []store.Poll{w.request(), b.worker().request()})
			if err == nil {
				require.NotEmpty(b.t, jobID(results[0]), results[0].Err)
			}
			return err
		}},
		"register": {"workers", func(ctx context.Context, b *fixture, w *client) error {
			_, err := b.workers.Register(ctx, store.Registration{ID: w.id, Name: "again"})
			return err
		}},
		"sweep": {"builds", func(ctx context.Context, b *fixture, _ *client) error {
			r, err := b.queue.Sweep(ctx, sweep())
			if err == nil {
				require.Len(b.t, r.Requeued, 1)
			}
			return err
		}},
		"submit with a count": {"builds", func(ctx context.Context, b *fixture, _ *client) error {
			_, err := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: 1}).Submit(ctx, submission(b.t))
			return err
		}},
		"submit": {"builds", func(ctx context.Context, b *fixture, _ *client) error {
			_, err := b.builds.Submit(ctx, submission(b.t))
			return err
		}},
		"unregister": {"builds", func(ctx context.Context, b *fixture, w *client) error {
			gone, err := b.workers.UnregisterID(ctx, "holder", "")
			if err == nil {
				require.Len(b.t, gone.Requeued, 1)
			}
			return err
		}},
	}
	for name, o := range operations {
		for _, state := range []string{"55P03", "40P01", "40001"} {
			inDatabase(t, name+" "+state, func(b *fixture) {
				var lost atomic.Int32
				b.DB.OnLost(func(error) { lost.Add(1) })
				b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{Quarantined: func(r store.BuildRef, cause error) {
					b.t.Errorf("build %s was quarantined: %v", r.ID, cause)
				}})
				held := b.build()
				holder := b.worker(func(r *store.Registration) { r.ID = "holder" })
				holder.gets(held.ID)
				b.exec(ageAssignment, held.ID)
				pending, w := b.build(), b.worker()

				tried := b.disturb(o.table, state, 1_000_000)
				ctx, cancel := context.WithTimeout(b.t.Context(), 3*time.Second) // enough for several tries
				defer cancel()
				if !strings.HasPrefix(name, "submit") { // whose transaction is bound to no caller
					err := o.do(ctx, b, w)
					require.ErrorIs(b.t, err, store.ErrContention)
					require.Equal(b.t, store.Unavailable, store.CodeOf(err))
					require.False(b.t, store.IsOutage(err))
					require.Greater(b.t, tried(), 1)
				}
				require.Equal(b.t, store.Pending, b.find(pending.ID).State)

				tried = b.disturb(o.table, state, 2)
				require.NoError(b.t, o.do(b.t.Context(), b, w))
				require.Greater(b.t, tried(), 2)
				require.Zero(b.t, lost.Load())
			})
		}
	}
}

func TestALockThatIsHeldLongIsContention(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	b.sessions("lock_timeout", "20")
	release := b.locks(`SELECT FROM worker_details WHERE worker_id = $1 FOR UPDATE`, w.id)
	ctx, cancel := context.WithTimeout(t.Context(), 2100*time.Millisecond)
	defer cancel()
	registration := store.Registration{ID: w.id, Name: "again"}
	_, err := b.workers.Register(ctx, registration)
	require.ErrorIs(t, err, store.ErrContention)

	registered := make(chan error, 1)
	go func() { _, err := b.workers.Register(t.Context(), registration); registered <- err }()
	b.waits(1)
	b.waits(0) // its first try has ended
	release()
	require.NoError(t, <-registered)
}

// A transaction that stood still for too long is rolled back. Once its file has its name,
// it does not run again.
func TestATransactionThatStoodStillIsNoOutage(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	b.sessions("idle_in_transaction_session_timeout", "50")
	commits := 0
	_, err := b.builds.Finish(t.Context(), success(build.ID, w.id), staged(func() error {
		commits++
		require.Eventually(t, func() bool { // the server ends the session
			var n int
			err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND state LIKE 'idle in transaction%'`).Scan(&n)
			return err == nil && n == 0
		}, 10*time.Second, time.Millisecond)
		return nil
	}))
	require.ErrorIs(t, err, store.ErrContention)
	require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
	require.Equal(t, 1, commits)
	require.Equal(t, store.Assigned, b.find(build.ID).State)
	w.finishes(build.ID)
}

func TestAFileGetsItsNameOnce(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	b.disturb("build_files", "40001", 1)
	commits := 0
	commit := func() error { commits++; return nil }
	_, err := b.builds.Finish(t.Context(), success(build.ID, w.id), staged(commit))
	require.ErrorIs(t, err, store.ErrContention)
	require.Equal(t, 1, commits)
	must(b.builds.Finish(t.Context(), success(build.ID, w.id), staged(commit)))(t)
}
