package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog" // River logs with it
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// other is the store of another controller on the same database.
func (b *throttled) other() *throttled {
	b.t.Helper()
	th := must(postgres.NewThrottle(storetest.Another(b.t, b.Database).DB))(b.t)
	return &throttled{&fixture{Database: b.Database, t: b.t}, th}
}

// working is the context of a job's worker.
func (b *throttled) working() context.Context {
	b.t.Helper()
	client := must(river.NewClient(riverpgxv5.New(b.Pool), &river.Config{Logger: slog.New(slog.DiscardHandler)}))(b.t)
	return rivertest.WorkContext(b.t.Context(), client)
}

// job takes a queue's job, as River does; nil if none is to be had.
func (b *throttled) job(key store.QueueKey) (*river.Job[store.ThrottleJob], error) {
	row := &rivertype.JobRow{State: rivertype.JobStateRunning}
	err := b.Pool.QueryRow(b.t.Context(), `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now()
		WHERE args->>'queue' = $1 AND state = 'available' RETURNING id`, key.ID()).Scan(&row.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &river.Job[store.ThrottleJob]{JobRow: row, Args: store.ThrottleJob{Queue: key.ID(), PortalID: key.PortalID}}, err
}

// finish completes all that waits in a queue.
func (b *throttled) finish(key store.QueueKey) error {
	c, err := b.Claim(b.t.Context(), store.ClaimRequest{PortalID: portal, Queues: []string{key.ID()}, Limit: 100, Lease: lease})
	for _, call := range c.Claims {
		if err == nil {
			_, err = b.Record(b.t.Context(), store.Outcome{Claim: call.Number, PortalID: portal, Done: idsOf(claimOne{Claim: call}), Rule: testRule()})
		}
	}
	return err
}

// live counts the jobs that live.
func (b *throttled) live() int {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM river_job WHERE state IN ('available', 'pending', 'running', 'retryable', 'scheduled')`)
}

// accepting is a transaction that has accepted an action, and is not committed.
func (b *throttled) accepting(key store.QueueKey, name string) pgx.Tx {
	b.t.Helper()
	tx := must(b.Pool.Begin(b.t.Context()))(b.t)
	constants := stringConstants(b.t)
	must(tx.Exec(b.t.Context(), constants["sqlShareQueues"], queueLockClass, []int32{queueLock(key)}))(b.t)
	tag := must(tx.Exec(b.t.Context(), constants["sqlAccept"],
		[]string{key.ID()}, []int32{1}, []int64{portal}, []string{name}, []float64{3600}))(b.t)
	require.EqualValues(b.t, 1, tag.RowsAffected(), "the action")
	return tx
}

// queueLock is the advisory lock of a queue, in queueLockClass.
func queueLock(key store.QueueKey) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.ID()))
	return int32(h.Sum32() % 256)
}

const queueLockClass = 0x74616b74

func TestABatchWaitsForAJobThatEnds(t *testing.T) {
	t.Parallel()
	constants := stringConstants(t)
	for name, again := range map[string]bool{"and makes another": false, "and finds another's": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := throttle(t, 10, 1, store.Second)
			b.accept(queueOf(1), 0, 1)
			require.NoError(t, b.finish(queueOf(1)))
			tx := must(b.Pool.Begin(t.Context()))(t)
			must(tx.Exec(t.Context(), constants["sqlExcludeQueue"], queueLockClass, queueLock(queueOf(1))))(t)
			must(tx.Exec(t.Context(), constants["sqlLockQueue"], queueOf(1).ID()))(t)
			accepted := make(chan error, 1)
			go func() {
				_, err := b.Accept(t.Context(), []store.Action{{Queue: queueOf(1), CallbackID: "late", Expires: time.Hour}})
				accepted <- err
			}()
			b.waits(1)
			must(tx.Exec(t.Context(), `UPDATE river_job SET state = 'completed', finalized_at = now()`))(t)
			if again { // a job that the waiting statement cannot see
				must(tx.Exec(t.Context(), `
WITH j AS (INSERT INTO river_job (state, kind, args, max_attempts) VALUES ('available', 'throttle', jsonb_build_object('queue', $1::text), 10) RETURNING id)
UPDATE throttle_queues SET job_id = j.id FROM j`, queueOf(1).ID()))(t)
			} else {
				must(tx.Exec(t.Context(), `UPDATE throttle_queues SET job_id = NULL`))(t)
			}
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, <-accepted)
			require.Equal(t, 1, b.live())
			require.Equal(t, 1, b.count(`SELECT count(*) FROM action_executions a JOIN throttle_queues q ON q.seq = a.queue
				JOIN river_job j ON j.id = q.job_id AND j.state = 'available' WHERE callback_id = 'late'`))
		})
	}
}

// Two batches, or two controllers, that write to the same queues, and a claim.
func TestBatchesOfOneQueueDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	first := b.accepting(queueOf(1), "first")
	second := b.accepting(queueOf(1), "second")
	require.False(t, b.other().accept(queueOf(1), 1, 1)[0].Repeat)
	require.Len(t, b.claim(100, queueOf(1)).Actions, 2, "of those that are committed")
	require.NoError(t, second.Commit(t.Context()))
	require.NoError(t, first.Commit(t.Context()))
	require.Equal(t, 4, b.count(`SELECT count(*) FROM action_executions`))
}

func TestARepeatIsAnsweredWhenTheFirstIsCommitted(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	first := b.accepting(queueOf(1), "twin")
	got := make(chan []store.Acceptance, 1)
	go func() {
		a, _ := b.Accept(t.Context(), []store.Action{
			{Queue: queueOf(2), CallbackID: "fresh", Expires: time.Hour}, // its queue has no job
			{Queue: queueOf(1), CallbackID: "twin", Expires: time.Hour},
			{Queue: queueOf(1), CallbackID: "young", Expires: 2 * time.Hour},
			{Queue: queueOf(1), CallbackID: "young", Expires: 2 * time.Hour},
		})
		got <- a
	}()
	b.waits(1)
	require.NoError(t, first.Commit(t.Context()))
	a := <-got
	require.Len(t, a, 4)
	require.Equal(t, store.Acceptance{State: store.ActionWaiting, Remaining: time.Hour}, a[0])
	require.True(t, a[1].Repeat)
	require.InDelta(t, time.Hour, a[1].Remaining, float64(time.Minute))
	require.Equal(t, store.Acceptance{State: store.ActionWaiting, Remaining: 2 * time.Hour}, a[2])
	require.True(t, a[3].Repeat)
	require.InDelta(t, 2*time.Hour, a[3].Remaining, float64(time.Minute))
	require.Equal(t, 2, b.live())
}

func TestARepeatThatWaitsWithoutAJobBringsOne(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	b.exec(`UPDATE river_job SET state = 'discarded', finalized_at = now()`)
	require.True(t, b.accept(queueOf(1), 0, 1)[0].Repeat)
	require.Equal(t, 1, b.live())
	require.NoError(t, b.finish(queueOf(1)))
	b.exec(`UPDATE river_job SET state = 'completed', finalized_at = now()`)
	require.Equal(t, store.ActionCompleted, b.accept(queueOf(1), 0, 1)[0].State)
	require.Zero(t, b.live(), "one that is finished needs none")
}

// Each new action gets a living job, whatever became of its queue's last one.
func TestQueuesThatAreKnownMayHaveChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"its job has ended": `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE args->>'queue' = $1`,
		"its job is gone":   `DELETE FROM river_job WHERE args->>'queue' = $1`,
		"it has no job":     `UPDATE throttle_queues SET job_id = NULL WHERE id = $1`,
		"it was forgotten":  `WITH j AS (DELETE FROM river_job WHERE args->>'queue' = $1) DELETE FROM throttle_queues WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := throttle(t, 100, 1, store.Second)
			both := func(i int) []store.Acceptance {
				got := must(b.Accept(t.Context(), []store.Action{
					{Queue: queueOf(1), CallbackID: fmt.Sprint("one-", i), Expires: time.Hour},
					{Queue: queueOf(2), CallbackID: fmt.Sprint("two-", i), Expires: time.Hour},
				}))(t)
				return got
			}
			both(0)
			require.NoError(t, b.finish(queueOf(1)))
			b.exec(change, queueOf(1).ID())
			for _, a := range both(1) {
				require.Equal(t, store.Acceptance{State: store.ActionWaiting, Remaining: time.Hour}, a)
			}
			require.Equal(t, 2, b.live())
			require.Equal(t, 2, b.count(`SELECT count(*) FROM action_executions a JOIN throttle_queues q ON q.seq = a.queue
				JOIN river_job j ON j.id = q.job_id AND j.state = 'available' AND j.args->>'queue' = q.id WHERE callback_id IN ('one-1', 'two-1')`))
		})
	}
}

// One that was here before is answered for itself, whatever comes with it, and
// however often.
func TestRepeatsAmongNewActions(t *testing.T) {
	t.Parallel()
	b := throttle(t, 1000, 1, store.Second)
	for i := range 3 {
		b.accept(queueOf(1), 10*i, 10)
	}
	b.exec(`CREATE SEQUENCE tries`) // knows no rollback
	b.exec(`CREATE FUNCTION try() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('tries'); RETURN NULL; END $$`)
	b.exec(`CREATE TRIGGER try BEFORE INSERT ON action_executions FOR EACH STATEMENT EXECUTE FUNCTION try()`)
	for i, repeats := range []int{5, 10, 1} { // none makes a statement fail, so none is tried again
		got := b.accept(queueOf(1), 30+10*i-repeats, 10+repeats)
		for n, a := range got {
			require.Equal(t, n < repeats, a.Repeat, "%d of %d", n, len(got))
			require.Equal(t, store.ActionWaiting, a.State)
		}
	}
	require.Equal(t, 60, b.count(`SELECT count(*) FROM action_executions`))
	require.Equal(t, 1, b.live())
	require.Equal(t, 3, b.count(`SELECT last_value FROM tries`))
}

// The statements have said that all went well when the commit fails: nobody may
// have been told so.
func TestNothingIsTakenThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100, 1, store.Second)
	one := func(callback string) error {
		_, err := b.Accept(t.Context(), []store.Action{{Queue: queueOf(1), CallbackID: callback, Expires: time.Hour}})
		return err
	}
	require.NoError(t, one("a queue without a job"))
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.callback_id LIKE 'lost%' THEN RAISE EXCEPTION 'not at the commit'; END IF; RETURN NULL; END $$`)
	b.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON action_executions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	require.ErrorContains(t, one("lost, of a queue that is not known"), "not at the commit")
	require.NoError(t, one("it is known now"))
	require.ErrorContains(t, one("lost, of one that is"), "not at the commit")
	require.Equal(t, 2, b.count(`SELECT count(*) FROM action_executions`))
	require.NoError(t, one("and the connection is good"))
}

// The locks of a batch are held until its commit, not only while they are taken.
func TestAJobThatEndsWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	b.accept(queueOf(1), 1, 1)
	job := must(b.job(queueOf(1)))(t)
	require.NoError(t, b.finish(queueOf(1)))
	b.exec(`CREATE TABLE slow_commit ()`)
	b.exec(`CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE slow_commit IN SHARE MODE; RETURN NULL; END $$`)
	b.exec(`CREATE TRIGGER slow_commit AFTER INSERT ON action_executions FOR EACH STATEMENT EXECUTE FUNCTION slow_commit()`)
	release := b.locks(`LOCK TABLE slow_commit IN EXCLUSIVE MODE`)

	accepted := make(chan error, 1)
	go func() {
		_, err := b.Accept(t.Context(), []store.Action{{Queue: queueOf(1), CallbackID: "late", Expires: time.Hour}})
		accepted <- err
	}()
	b.waits(1)
	type outcome struct {
		ended bool
		err   error
	}
	end := make(chan outcome, 1)
	working := b.working()
	go func() { ended, err := b.EndJob(working, job); end <- outcome{ended, err} }()
	require.Eventually(t, func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 2 || len(end) > 0
	}, time.Minute, time.Millisecond)
	require.Empty(t, end)
	release()
	require.NoError(t, <-accepted)
	require.Equal(t, outcome{}, <-end, "it sees the action and stays")
	require.Equal(t, 1, b.live())
	require.NoError(t, b.finish(queueOf(1)))
	require.True(t, must(b.EndJob(working, job))(t))
}
