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
// results (by index) are durable. New actions of queues that have a live job, which are
// most, take one round trip. The others, mostly the first actions of queues, take a
// transaction that creates the jobs first. After an error some of the actions may be durable
// nevertheless; repeating them is harmless.
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

// errVanished means that an action existed, but retention deleted it before it was read.
var errVanished = errors.New("an action was deleted while it was looked at")

// actionBatch holds actions column by column, as arguments of statements, and their
// results.
type actionBatch struct {
	// The queues, each once.
	keys  []store.QueueKey
	ids   []string // in the order of keys
	locks []int32  // sorted, each once

	// The actions. If one occurs twice, only the first occurrence is inserted.
	in      []int32 // index in ids, from 1
	portals []int64
	names   []string
	seconds []float64          // until it expires
	first   map[actionKey]int  // the index of its first occurrence
	got     []store.Acceptance // no result yet if State is ""
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

// open returns the indexes of the actions that have no result yet.
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

// livingJob is a condition for a river_job j that still serves its queue, a live job.
const livingJob = `j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')`

// A batch holds the locks of its queues shared until its end, and EndJob takes a queue's lock
// exclusively. So either EndJob sees the new actions, or the batch sees that the job has
// ended. The locks are advisory, because a row lock writes to the row, and one that two
// transactions share also writes to the multixact log. All queues share queueLocks locks, so
// that the largest batch leaves room in PostgreSQL's lock table. A queue may therefore wait
// for the transaction of another queue, but only briefly.
const (
	queueLockClass = 0x74616b74 // "takt"
	queueLocks     = 256
)

func queueLock(id string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return int32(h.Sum32() % queueLocks)
}

// sqlShareQueues takes the locks in the order of $2. All are taken before the first action
// is written, so that a transaction that waits for another's action waits for no lock after
// that. It is a separate statement, so that the next one sees what was committed before the
// locks were taken.
const sqlShareQueues = `/* share_queues */ SELECT count(pg_advisory_xact_lock_shared($1, u.lock)) FROM unnest($2::int[]) AS u(lock)`

// sqlAccept inserts the new actions of those queues of $1 that have a live job, and returns
// them. It inserts in one order, so that two transactions never deadlock on each other's
// actions. This statement and sqlRepeats look up each row by itself, whatever the plan,
// because the plan of a join could read all jobs.
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

// sqlRepeats finds actions that already exist. It leaves out those that wait in a queue
// without a live job, unless $3 is true.
const sqlRepeats = `/* repeats */
SELECT u.nr, a.state, extract(epoch FROM a.expires_at - now())::float8
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS u(portal, callback, nr) CROSS JOIN LATERAL (
	SELECT * FROM action_executions WHERE portal_id = u.portal AND callback_id = u.callback OFFSET 0 -- one look-up each
) a
WHERE $3 OR a.state <> 'waiting' OR (
	SELECT (SELECT ` + livingJob + ` FROM river_job j WHERE j.id = q.job_id)
	FROM throttle_queues q WHERE q.seq = a.queue)`

// insert inserts new actions under the locks of their queues, and then looks up which of the
// others exist already; all is $3 of sqlRepeats. If q is a connection, the first two
// statements are one transaction.
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
	Seq  int64
	Live bool // it has a live job
}

// sqlUpsertQueues creates the queues that don't exist and locks all, in the order of their
// ids.
const sqlUpsertQueues = `/* upsert_queues */
INSERT INTO throttle_queues AS q (id, portal_id, workflow_id, action_id, index)
SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[]) AS u(id, portal, workflow, action, index)
ORDER BY u.id COLLATE "C"
ON CONFLICT (id) DO UPDATE SET received_at = now()`

// sqlLiveJobs returns which queues have a live job. It is a separate statement, so that it
// sees what was committed before the locks were taken. River's insert would also find them,
// but it writes a new version of each job that it finds.
const sqlLiveJobs = `/* live_jobs */ SELECT ` + keyColumns + `, q.seq, coalesce((SELECT ` + livingJob + `
	FROM river_job j WHERE j.id = q.job_id), false)
FROM throttle_queues q WHERE q.id = ANY ($1) ORDER BY q.id`

// makeJobs creates the queues of the batch that don't exist, locks all of them, and inserts
// a job for each that has no live one. It may deadlock, because River locks jobs in an order
// of its own.
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
