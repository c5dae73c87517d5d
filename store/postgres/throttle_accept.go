package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Accept commits actions together with the jobs that serve them. When it returns, the
// answers (by index) are durable. Most batches hold new actions of queues that have a
// living job; these take one round trip. Repeats are looked up after it, and for a while
// every batch looks them up first. Queues
// without a living job take a transaction of several steps. After an error some of the
// actions may be durable nevertheless.
func (t *Throttle) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	got := make([]store.Acceptance, len(actions)) // without a state: not accepted yet
	if err := t.accept(ctx, newActionBatch(actions), got); err != nil {
		return nil, fmt.Errorf("accepting %d actions: %w", len(actions), err)
	}
	for i := range got {
		if !got[i].Repeat {
			got[i].Remaining = actions[i].Expires
		}
	}
	return got, nil
}

func (t *Throttle) accept(ctx context.Context, b actionBatch, got []store.Acceptance) error {
	steps := []func(context.Context, actionBatch, []store.Acceptance) error{t.acceptLive, t.acceptRepeats, t.acceptAll}
	if time.Since(time.Unix(0, t.repeated.Load())) < repeatsLast {
		steps = slices.Insert(steps, 0, t.acceptRepeats)
	}
	for _, step := range steps {
		if err := step(ctx, b, got); err != nil {
			return err
		}
		if b = b.without(got); len(b.names) == 0 {
			return nil
		}
	}
	return unavailable(errVanished)
}

// repeatsLast is how long after a repeat more repeats are expected.
const repeatsLast = 10 * time.Second

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

// acceptRepeats answers repeats that need no job, because a living job stays alive
// while an action waits.
func (t *Throttle) acceptRepeats(ctx context.Context, b actionBatch, got []store.Acceptance) error {
	return t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error { return t.findRepeats(ctx, c, b, got, false) })
}

// findRepeats answers repeats: with all every one of them, otherwise only those that
// need no job.
func (t *Throttle) findRepeats(ctx context.Context, q querier, b actionBatch, got []store.Acceptance, all bool) error {
	var nr int
	var state store.ActionState
	var left float64
	rows, _ := q.Query(ctx, sqlRepeats, b.portals, b.names, all) // its error is that of the rows
	_, err := pgx.ForEachRow(rows, []any{&nr, &state, &left}, func() error {
		got[b.rows[nr-1]] = store.Acceptance{State: state, Repeat: true, Remaining: max(seconds(left), 0)}
		t.repeated.Store(time.Now().UnixNano())
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

// sqlInsertActions inserts actions and returns the new ones.
const sqlInsertActions = `/* insert_actions */
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT q.seq, u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM unnest($2::int[], $3::bigint[], $4::text[], $5::float8[]) WITH ORDINALITY AS u(queue, portal, callback, seconds, nr)
	JOIN throttle_queues q ON q.id = ($1::text[])[u.queue]
ORDER BY u.nr
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id`

// sqlLiveJobs returns which queues have a living job. It is a separate statement, so
// that it sees what was committed before the locks were taken. River's insert would
// find the same, but it writes a new version of each job that it finds.
const sqlLiveJobs = `/* live_jobs */ SELECT ` + keyColumns + `, q.seq, coalesce((SELECT ` + livingJob + `
	FROM river_job j WHERE j.id = q.job_id), false)
FROM throttle_queues q WHERE q.id = ANY ($1) ORDER BY q.id`

// acceptAll accepts actions of any queue, in a transaction that holds the queues'
// locks. So either a queue's job sees the new actions, or acceptAll finds the job gone
// and inserts another. Deadlocks are possible, because River locks jobs in its own order.
func (t *Throttle) acceptAll(ctx context.Context, b actionBatch, got []store.Acceptance) error {
	mine := make([]store.Acceptance, len(got)) // discarded if the transaction fails
	err := t.db.write("creating queues").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		clear(mine)
		var queues []queueRow
		send := &pgx.Batch{}
		send.Queue(sqlUpsertQueues, b.queueColumns()...)
		send.Queue(sqlInsertActions, b.ids, b.in, b.portals, b.names, b.seconds).Query(func(rows pgx.Rows) error {
			var portal int64
			var name string
			_, err := pgx.ForEachRow(rows, []any{&portal, &name}, func() error {
				mine[b.row(portal, name)].State = store.ActionWaiting
				return nil
			})
			return err
		})
		send.Queue(sqlLiveJobs, b.ids).Query(func(rows pgx.Rows) (err error) {
			queues, err = pgx.CollectRows(rows, pgx.RowToStructByPos[queueRow])
			return err
		})
		if err := tx.SendBatch(ctx, send).Close(); err != nil {
			return err
		}
		if err := t.ensureJobs(ctx, tx, queues); err != nil {
			return err
		}
		if left := b.without(mine); len(left.names) > 0 {
			return t.findRepeats(ctx, tx, left, mine, true)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range b.rows {
		got[row] = mine[row]
	}
	return nil
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
