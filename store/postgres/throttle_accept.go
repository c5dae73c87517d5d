package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Accept commits actions together with the jobs that serve them. When it returns, the
// answers (by index) are durable. Most batches hold new actions of queues that have a
// living job; these take one round trip. What that leaves, mostly the first action of a
// queue, takes a transaction that makes the jobs first. After an error some of the
// actions may be durable nevertheless.
func (t *Throttle) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	got, err := t.accept(ctx, newActionBatch(actions))
	if err != nil {
		return nil, fmt.Errorf("accepting %d actions: %w", len(actions), err)
	}
	for i := range got {
		if !got[i].Repeat {
			got[i].Remaining = actions[i].Expires
		}
	}
	return got, nil
}

func (t *Throttle) accept(ctx context.Context, b actionBatch) ([]store.Acceptance, error) {
	got := make([]store.Acceptance, len(b.rows)) // without a state: not accepted yet
	err := t.db.write("inserting actions").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		clear(got)
		return b.insert(ctx, c, got, false)
	})
	if b = b.without(got); err != nil || len(b.rows) == 0 {
		return got, err
	}
	more := make([]store.Acceptance, len(got))
	err = t.db.write("creating queues").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		clear(more)
		if err := t.makeJobs(ctx, tx, b); err != nil {
			return err
		}
		return b.insert(ctx, tx, more, true)
	})
	for _, row := range b.rows {
		got[row] = more[row]
	}
	if err == nil && len(b.without(got).rows) > 0 {
		err = unavailable(errVanished)
	}
	return got, err
}

// errVanished means that an action existed and then did not, because retention deleted
// it meanwhile.
var errVanished = errors.New("an action was deleted while it was looked at")

// actionBatch holds actions in the order of the unique index, so that two transactions
// never deadlock on each other's actions. Of an action that is there twice only the first
// is added. Its columns are statement arguments.
type actionBatch struct {
	keys  []store.QueueKey // of queues, in the order of ids
	ids   []string         // of queues, sorted: the order of their locks
	locks []int32          // of queues, sorted

	rows    []int   // where the answers go
	in      []int32 // position in ids, from 1
	portals []int64
	names   []string
	seconds []float64
}

func newActionBatch(actions []store.Action) (b actionBatch) {
	n := len(actions)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		x, y := &actions[i], &actions[j]
		return cmp.Or(compareActions(x.Queue.PortalID, x.CallbackID, y.Queue.PortalID, y.CallbackID), cmp.Compare(i, j))
	})
	b = actionBatch{
		rows: make([]int, 0, n), in: make([]int32, 0, n), portals: make([]int64, 0, n), names: make([]string, 0, n), seconds: make([]float64, 0, n),
	}
	positions := b.sortQueues(actions)
	for _, i := range order {
		a := &actions[i]
		b.rows = append(b.rows, i)
		b.in = append(b.in, positions[a.Queue])
		b.portals = append(b.portals, a.Queue.PortalID)
		b.names = append(b.names, a.CallbackID)
		b.seconds = append(b.seconds, a.Expires.Seconds())
	}
	return b
}

// compareActions compares in the order of the unique index.
func compareActions(portal int64, name string, portal2 int64, name2 string) int {
	return cmp.Or(cmp.Compare(portal, portal2), cmp.Compare(name, name2))
}

// sortQueues sets keys, ids and locks and returns the queues' positions.
func (b *actionBatch) sortQueues(actions []store.Action) map[store.QueueKey]int32 {
	positions := map[store.QueueKey]int32{}
	type queue struct {
		id  string
		key store.QueueKey
	}
	var queues []queue
	for i := range actions {
		key := actions[i].Queue
		if _, known := positions[key]; !known {
			positions[key] = 0
			queues = append(queues, queue{key.ID(), key})
		}
	}
	slices.SortFunc(queues, func(x, y queue) int { return cmp.Compare(x.id, y.id) })
	for i, q := range queues {
		b.ids, b.keys = append(b.ids, q.id), append(b.keys, q.key)
		b.locks = append(b.locks, queueLock(q.id))
		positions[q.key] = int32(i + 1)
	}
	slices.Sort(b.locks)
	b.locks = slices.Compact(b.locks)
	return positions
}

// without returns the actions that have no answer yet.
func (b actionBatch) without(got []store.Acceptance) actionBatch {
	var left []store.Action
	var rows []int
	for i, row := range b.rows {
		if got[row].State == "" {
			left = append(left, store.Action{Queue: b.keys[b.in[i]-1], CallbackID: b.names[i], Expires: seconds(b.seconds[i])})
			rows = append(rows, row)
		}
	}
	b = newActionBatch(left)
	b.rows = rows // they were in order
	return b
}

// row returns the index of an action's answer, the first if it is there twice.
func (b actionBatch) row(portal int64, name string) int {
	i, _ := sort.Find(len(b.names), func(i int) int { return compareActions(portal, name, b.portals[i], b.names[i]) })
	return b.rows[i]
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
// returns them. This statement and sqlRepeats look up one row after the other, whatever
// the plan, because a join could end up reading all jobs.
const sqlAccept = `/* accept */
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT own.seqs[u.queue], u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM (SELECT ARRAY(
	SELECT (SELECT CASE WHEN (SELECT ` + livingJob + ` FROM river_job j WHERE j.id = q.job_id)
		THEN q.seq END FROM throttle_queues q WHERE q.id = k.id) FROM unnest($1::text[]) AS k(id)
) AS seqs OFFSET 0) own, unnest($2::int[], $3::bigint[], $4::text[], $5::float8[]) AS u(queue, portal, callback, seconds)
WHERE own.seqs[u.queue] IS NOT NULL
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
func (b actionBatch) insert(ctx context.Context, q interface {
	querier
	SendBatch(ctx context.Context, send *pgx.Batch) pgx.BatchResults
}, got []store.Acceptance, all bool,
) error {
	send := &pgx.Batch{}
	send.Queue(sqlShareQueues, queueLockClass, b.locks)
	var added []int
	send.Queue(sqlAccept, b.ids, b.in, b.portals, b.names, b.seconds).Query(func(rows pgx.Rows) error {
		var portal int64
		var name string
		_, err := pgx.ForEachRow(rows, []any{&portal, &name}, func() error {
			added = append(added, b.row(portal, name))
			return nil
		})
		return err
	})
	if err := q.SendBatch(ctx, send).Close(); err != nil {
		return err
	}
	for _, row := range added {
		got[row].State = store.ActionWaiting
	}
	if b = b.without(got); len(b.rows) == 0 {
		return nil
	}
	var nr int
	var state store.ActionState
	var left float64
	rows, _ := q.Query(ctx, sqlRepeats, b.portals, b.names, all) // its error is that of the rows
	_, err := pgx.ForEachRow(rows, []any{&nr, &state, &left}, func() error {
		got[b.rows[nr-1]] = store.Acceptance{State: state, Repeat: true, Remaining: max(seconds(left), 0)}
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
func (t *Throttle) makeJobs(ctx context.Context, tx pgx.Tx, b actionBatch) error {
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

func (b actionBatch) queueColumns() []any {
	n := len(b.ids)
	portals, actions := make([]int64, 0, n), make([]int64, 0, n)
	workflows, indexes := make([]string, 0, n), make([]string, 0, n)
	for _, k := range b.keys {
		portals, workflows = append(portals, k.PortalID), append(workflows, k.WorkflowID)
		actions, indexes = append(actions, k.ActionID), append(indexes, k.Index)
	}
	return []any{b.ids, portals, workflows, actions, indexes}
}
