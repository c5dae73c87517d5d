package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Accept commits actions together with the jobs that serve them. When it returns, the
// answers (by index) are durable. Most batches hold new actions of queues that have a
// living job; these take one round trip. What that leaves, mostly the first action of a
// queue, takes a transaction that makes the jobs first. After an error some of the
// actions may be durable nevertheless.
func (t *Throttle) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	b := newActionBatch(actions)
	err := t.db.write("inserting actions").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		clear(b.got)
		return b.insert(ctx, c, false)
	})
	if left := b.open(); err == nil && len(left) > 0 {
		rest := newActionBatch(pick(actions, left))
		err = t.db.write("creating queues").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			clear(rest.got)
			if err := t.makeJobs(ctx, tx, rest); err != nil {
				return err
			}
			return rest.insert(ctx, tx, true)
		})
		for i, row := range left {
			b.got[row] = rest.got[i]
		}
		if err == nil && len(rest.open()) > 0 {
			err = unavailable(errVanished)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("accepting %d actions: %w", len(actions), err)
	}
	for i := range b.got {
		if !b.got[i].Repeat {
			b.got[i].Remaining = actions[i].Expires
		}
	}
	return b.got, nil
}

// errVanished means that an action existed and then did not, because retention deleted
// it meanwhile.
var errVanished = errors.New("an action was deleted while it was looked at")

// actionBatch holds actions column by column, as arguments of statements, and their
// answers. Of an action that is there twice only the first is added.
type actionBatch struct {
	keys  []store.QueueKey // of queues, in the order of ids
	ids   []string         // of queues
	locks []int32          // of queues, sorted

	in      []int32 // position in ids, from 1
	portals []int64
	names   []string
	seconds []float64
	first   map[actionKey]int  // index of an action, the first if it is there twice
	got     []store.Acceptance // without a state: not accepted yet
}

type actionKey struct {
	portal int64
	name   string
}

func newActionBatch(actions []store.Action) *actionBatch {
	b := &actionBatch{first: make(map[actionKey]int, len(actions)), got: make([]store.Acceptance, len(actions))}
	positions := map[store.QueueKey]int32{}
	for i := range actions {
		a := &actions[i]
		if positions[a.Queue] == 0 {
			id := a.Queue.ID()
			b.keys, b.ids, b.locks = append(b.keys, a.Queue), append(b.ids, id), append(b.locks, queueLock(id))
			positions[a.Queue] = int32(len(b.ids))
		}
		b.in, b.seconds = append(b.in, positions[a.Queue]), append(b.seconds, a.Expires.Seconds())
		b.portals, b.names = append(b.portals, a.Queue.PortalID), append(b.names, a.CallbackID)
		key := actionKey{a.Queue.PortalID, a.CallbackID}
		if _, twice := b.first[key]; !twice {
			b.first[key] = i
		}
	}
	slices.Sort(b.locks)
	b.locks = slices.Compact(b.locks)
	return b
}

// open returns the indexes of the actions that have no answer yet.
func (b *actionBatch) open() (rows []int) {
	for i := range b.got {
		if b.got[i].State == "" {
			rows = append(rows, i)
		}
	}
	return rows
}

// pick returns the elements of all at these indexes.
func pick[T any](all []T, at []int) []T {
	some := make([]T, len(at))
	for i, row := range at {
		some[i] = all[row]
	}
	return some
}

// livingJob is true for a river_job j that still serves its queue.
const livingJob = `j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')`

// A batch holds the locks of its queues shared until its end, and ending a queue's job
// takes them exclusively. So either a queue's job sees the new actions, or the batch finds
// the job gone. The locks are advisory, because a row lock writes to the row, and one that
// two transactions share also writes to the multixact log. All queues together use
// queueLocks locks, so that the largest batch leaves room in PostgreSQL's lock table. A
// queue may therefore wait for the lock of another queue, but only briefly.
const (
	queueLockClass = 0x74616b74 // "takt"
	queueLocks     = 256
)

func queueLock(id string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return int32(h.Sum32() % queueLocks)
}

// sqlShareQueues takes the locks in the order of $2, all of them before the first
// action is written, so that a transaction that waits for another's action already
// holds its locks. It is a separate statement, so that the next one sees what was
// committed before the locks were taken.
const sqlShareQueues = `/* share_queues */ SELECT count(pg_advisory_xact_lock_shared($1, u.lock)) FROM unnest($2::int[]) AS u(lock)`

// sqlAccept inserts the new actions of those queues of $1 that have a living job, and
// returns them. It inserts in one order, so that two transactions never deadlock
// on each other's actions. This statement and sqlRepeats look up one row after the
// other, whatever the plan, because a join could end up reading all jobs.
const sqlAccept = `/* accept */
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT own.seqs[u.queue], u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM (SELECT ARRAY(
	SELECT (SELECT CASE WHEN (SELECT ` + livingJob + ` FROM river_job j WHERE j.id = q.job_id)
		THEN q.seq END FROM throttle_queues q WHERE q.id = k.id) FROM unnest($1::text[]) AS k(id)
) AS seqs OFFSET 0) own, unnest($2::int[], $3::bigint[], $4::text[], $5::float8[])
	WITH ORDINALITY AS u(queue, portal, callback, seconds, nr)
WHERE own.seqs[u.queue] IS NOT NULL ORDER BY u.portal, u.callback COLLATE "C", u.nr
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id`

// sqlRepeats finds actions that already exist. With $3 it also returns those that wait
// although their queue has no living job.
const sqlRepeats = `/* repeats */
SELECT u.nr, a.state, extract(epoch FROM a.expires_at - now())::float8
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS u(portal, callback, nr) CROSS JOIN LATERAL (
	SELECT * FROM action_executions WHERE portal_id = u.portal AND callback_id = u.callback OFFSET 0 -- one look-up each
) a
WHERE $3 OR a.state <> 'waiting' OR (
	SELECT (SELECT ` + livingJob + ` FROM river_job j WHERE j.id = q.job_id)
	FROM throttle_queues q WHERE q.seq = a.queue)`

// insert inserts new actions under the locks of their queues, and then looks up repeats
// among the others: all of them, or those that need no job. On a connection, the first
// two statements are one transaction.
func (b *actionBatch) insert(ctx context.Context, q interface {
	querier
	SendBatch(ctx context.Context, send *pgx.Batch) pgx.BatchResults
}, all bool,
) error {
	send := &pgx.Batch{}
	send.Queue(sqlShareQueues, queueLockClass, b.locks)
	send.Queue(sqlAccept, b.ids, b.in, b.portals, b.names, b.seconds).Query(func(rows pgx.Rows) error {
		var added actionKey
		_, err := pgx.ForEachRow(rows, []any{&added.portal, &added.name}, func() error {
			b.got[b.first[added]].State = store.ActionWaiting
			return nil
		})
		return err
	})
	if err := q.SendBatch(ctx, send).Close(); err != nil {
		return err
	}
	open := b.open()
	if len(open) == 0 {
		return nil
	}
	var nr int
	var state store.ActionState
	var left float64
	rows, _ := q.Query(ctx, sqlRepeats, pick(b.portals, open), pick(b.names, open), all) // its error is that of the rows
	_, err := pgx.ForEachRow(rows, []any{&nr, &state, &left}, func() error {
		b.got[open[nr-1]] = store.Acceptance{State: state, Repeat: true, Remaining: max(seconds(left), 0)}
		return nil
	})
	return err
}

// keyColumns are the columns of a store.QueueKey in throttle_queues q.
const keyColumns = `q.portal_id, q.workflow_id, q.action_id, q.index`

// queueRow is a queue in a transaction that holds its lock.
type queueRow struct {
	store.QueueKey
	Seq int64
	// Live is true if a living job serves the queue.
	Live bool
}

// sqlUpsertQueues creates missing queues and locks all of them, in the order of their
// ids.
const sqlUpsertQueues = `/* upsert_queues */
INSERT INTO throttle_queues AS q (id, portal_id, workflow_id, action_id, index)
SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[]) AS u(id, portal, workflow, action, index)
ORDER BY u.id COLLATE "C"
ON CONFLICT (id) DO UPDATE SET received_at = now()`

// sqlLiveJobs returns which queues have a living job. It is a separate statement, so
// that it sees what was committed before the locks were taken. River's insert would
// find the same, but it writes a new version of each job that it finds.
const sqlLiveJobs = `/* live_jobs */ SELECT ` + keyColumns + `, q.seq, coalesce((SELECT ` + livingJob + `
	FROM river_job j WHERE j.id = q.job_id), false)
FROM throttle_queues q WHERE q.id = ANY ($1) ORDER BY q.id`

// makeJobs creates missing queues and locks all queues of the batch, and inserts a job for
// each that has no living one. Deadlocks are possible, because River locks jobs in its own
// order.
func (t *Throttle) makeJobs(ctx context.Context, tx pgx.Tx, b *actionBatch) error {
	var queues []queueRow
	send := &pgx.Batch{}
	send.Queue(sqlShareQueues, queueLockClass, b.locks) // before the rows' locks, as everywhere
	send.Queue(sqlUpsertQueues, b.queueColumns()...)
	send.Queue(sqlLiveJobs, b.ids).Query(func(rows pgx.Rows) (err error) {
		queues, err = pgx.CollectRows(rows, pgx.RowToStructByPos[queueRow])
		return err
	})
	if err := tx.SendBatch(ctx, send).Close(); err != nil {
		return err
	}
	return t.ensureJobs(ctx, tx, queues)
}

func (b *actionBatch) queueColumns() []any {
	n := len(b.keys)
	portals, workflows, actions, indexes := make([]int64, n), make([]string, n), make([]int64, n), make([]string, n)
	for i, k := range b.keys {
		portals[i], workflows[i], actions[i], indexes[i] = k.PortalID, k.WorkflowID, k.ActionID, k.Index
	}
	return []any{b.ids, portals, workflows, actions, indexes}
}
