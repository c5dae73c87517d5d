package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// callback is what makes an action unique.
type callback struct {
	portal int64
	id     string
}

// answers is what became of actions so far.
type answers map[callback]store.Acceptance

// Accept makes actions durable, with the jobs that see to them: the answers, by
// index, hold when it returns. Most loads are new actions of queues that have a
// living job: one statement, which is a transaction, takes those and leaves the
// others as they were. They are answered by a second look, if they were here
// before, and by a transaction of several steps. After an error some of the
// actions may be durable nevertheless.
func (t *Throttle) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	b := newActionBatch(actions)
	total := len(b.names)
	got := make(answers, total)
	for _, take := range []func(context.Context, actionBatch, answers) error{t.acceptLive, t.acceptRepeats, t.acceptAll} {
		if err := undisturbed(func() error { return take(ctx, b, got) }); err != nil {
			return nil, fmt.Errorf("accepting %d actions: %w", len(actions), err)
		}
		if len(got) == total {
			break
		}
		b = b.without(got)
	}
	if len(got) < total {
		return nil, fmt.Errorf("accepting %d actions: %w", len(actions), unavailable(errVanished))
	}
	out := make([]store.Acceptance, len(actions))
	for i, a := range actions {
		at := callback{a.Queue.PortalID, a.CallbackID}
		out[i] = got[at]
		if !out[i].Repeat {
			out[i].Remaining = a.Expires
			again := out[i] // for who sent it again in the same batch
			again.Repeat = true
			got[at] = again
		}
	}
	return out, nil
}

// errVanished says that an action was there and is not: retention has just deleted
// it.
var errVanished = errors.New("an action was deleted while it was looked at")

// acceptTries is how often a transaction is begun anew that PostgreSQL ended in
// favour of another: River locks jobs in an order of its own.
const acceptTries = 5

// undisturbed calls f again if another transaction was preferred to its own.
func undisturbed(f func() error) (err error) {
	for range acceptTries {
		if err = f(); !isConflict(err) {
			break
		}
	}
	return err
}

// isConflict reports whether err is a deadlock or a failed serialization.
func isConflict(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001")
}

// actionBatch is actions, each once, in the order of the unique index: two
// transactions never wait for each other's. The columns are arguments.
type actionBatch struct {
	keys []store.QueueKey // of queues, in the order of ids
	ids  []string         // of queues, sorted: the order of their locks

	in      []int32 // place in ids, from 1
	portals []int64
	names   []string
	seconds []float64
}

func newActionBatch(actions []store.Action) actionBatch {
	n := len(actions)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		x, y := &actions[i], &actions[j]
		return cmp.Or(cmp.Compare(x.Queue.PortalID, y.Queue.PortalID), cmp.Compare(x.CallbackID, y.CallbackID), cmp.Compare(i, j))
	})
	b := actionBatch{in: make([]int32, 0, n), portals: make([]int64, 0, n), names: make([]string, 0, n), seconds: make([]float64, 0, n)}
	places := b.sortQueues(actions)
	for _, i := range order {
		a := &actions[i]
		if last := len(b.names) - 1; last >= 0 && a.CallbackID == b.names[last] && a.Queue.PortalID == b.portals[last] {
			continue
		}
		b.in = append(b.in, places[a.Queue])
		b.portals = append(b.portals, a.Queue.PortalID)
		b.names = append(b.names, a.CallbackID)
		b.seconds = append(b.seconds, a.Expires.Seconds())
	}
	return b
}

// sortQueues sets keys and ids and returns the queues' places.
func (b *actionBatch) sortQueues(actions []store.Action) map[store.QueueKey]int32 {
	places := map[store.QueueKey]int32{}
	type queue struct {
		id  string
		key store.QueueKey
	}
	var queues []queue
	for i := range actions {
		key := actions[i].Queue
		if _, known := places[key]; !known {
			places[key] = 0
			queues = append(queues, queue{key.ID(), key})
		}
	}
	slices.SortFunc(queues, func(x, y queue) int { return cmp.Compare(x.id, y.id) })
	for i, q := range queues {
		b.ids, b.keys = append(b.ids, q.id), append(b.keys, q.key)
		places[q.key] = int32(i + 1)
	}
	return places
}

// without returns what has no answer yet.
func (b actionBatch) without(got answers) actionBatch {
	var left []store.Action
	for i, name := range b.names {
		if _, answered := got[callback{b.portals[i], name}]; !answered {
			left = append(left, store.Action{Queue: b.keys[b.in[i]-1], CallbackID: name, Expires: seconds(b.seconds[i])})
		}
	}
	return newActionBatch(left)
}

// sqlAcceptLive inserts the new actions of queues that have a living job, and
// returns them.
//
// own takes the queues' locks, in the order of their ids, and all of them before
// the first action is written: who waits for another's action holds what it needs.
// The lock is the weakest there is, so that batches and claims do not wait for
// each other; the end of a job (FOR UPDATE) waits for it, and it for that. A row
// that changed meanwhile is read anew: it names no job then, or one that the
// statement cannot see, and its actions are left.
const sqlAcceptLive = `
WITH own AS MATERIALIZED (
	SELECT ARRAY(
		SELECT (SELECT q.seq FROM river_job j
			WHERE j.id = q.job_id AND j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled'))
		FROM unnest($1::text[]) WITH ORDINALITY AS u(id, nr)
			LEFT JOIN LATERAL (SELECT seq, job_id FROM throttle_queues WHERE id = u.id FOR KEY SHARE) q ON true
		ORDER BY u.nr
	) AS seqs
)
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT own.seqs[u.queue], u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM own, unnest($2::int[], $3::bigint[], $4::text[], $5::float8[]) AS u(queue, portal, callback, seconds)
WHERE own.seqs[u.queue] IS NOT NULL
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id`

func (t *Throttle) acceptLive(ctx context.Context, b actionBatch, got answers) error {
	return t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlAcceptLive, b.ids, b.in, b.portals, b.names, b.seconds)
		if err == nil {
			err = scanNew(rows, got)
		}
		return statementFailure(ctx, err)
	})
}

// scanNew notes the actions that were inserted, once all is well.
func scanNew(rows pgx.Rows, got answers) error {
	fresh := []callback{}
	var at callback
	_, err := pgx.ForEachRow(rows, []any{&at.portal, &at.id}, func() error {
		fresh = append(fresh, at)
		return nil
	})
	if err != nil {
		return err
	}
	for _, at := range fresh {
		got[at] = store.Acceptance{State: store.ActionWaiting}
	}
	return nil
}

// sqlRepeats finds actions that are here. $3: also those that wait although their
// queue has no living job.
const sqlRepeats = `
SELECT a.portal_id, a.callback_id, a.state, extract(epoch FROM a.expires_at - now())::float8
FROM unnest($1::bigint[], $2::text[]) AS u(portal, callback)
	JOIN action_executions a ON a.portal_id = u.portal AND a.callback_id = u.callback
WHERE $3 OR a.state <> 'waiting' OR EXISTS (SELECT FROM throttle_queues q JOIN river_job j ON j.id = q.job_id
	WHERE q.seq = a.queue AND j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled'))`

// acceptRepeats answers those that were here before and need nothing more: a job
// that lives stays alive while an action waits.
func (t *Throttle) acceptRepeats(ctx context.Context, b actionBatch, got answers) error {
	return t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlRepeats, b.portals, b.names, false)
		if err != nil {
			return err
		}
		return scanRepeats(rows, got)
	})
}

func scanRepeats(rows pgx.Rows, got answers) error {
	var at callback
	var state store.ActionState
	var left float64
	_, err := pgx.ForEachRow(rows, []any{&at.portal, &at.id, &state, &left}, func() error {
		got[at] = store.Acceptance{State: state, Repeat: true, Remaining: max(seconds(left), time.Duration(0))}
		return nil
	})
	return err
}

// queueRow is a queue in an accepting transaction, which holds its lock.
type queueRow struct {
	seq int64
	key store.QueueKey
	// live says that a job answers for the queue.
	live bool
}

// sqlUpsertQueues takes the locks of the queues, in the order of their ids.
const sqlUpsertQueues = `
INSERT INTO throttle_queues AS q (id, portal_id, workflow_id, action_id, index)
SELECT u.* FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[]) AS u(id, portal, workflow, action, index)
ORDER BY u.id COLLATE "C"
ON CONFLICT (id) DO UPDATE SET received_at = now()`

// sqlInsertActions returns those that are new.
const sqlInsertActions = `
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT q.seq, u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM unnest($2::int[], $3::bigint[], $4::text[], $5::float8[]) WITH ORDINALITY AS u(queue, portal, callback, seconds, nr)
	JOIN throttle_queues q ON q.id = ($1::text[])[u.queue]
ORDER BY u.nr
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id`

// sqlLiveJobs says which queues have a job that answers for them. It is a
// statement of its own, so that it sees what was committed before the locks
// were had. River's insert would find the same, but writes a new version of each
// job that it finds.
const sqlLiveJobs = `
SELECT q.id, q.seq, coalesce((SELECT j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')
	FROM river_job j WHERE j.id = q.job_id), false)
FROM throttle_queues q WHERE q.id = ANY ($1) ORDER BY q.id`

// acceptAll takes actions of any queue, in a transaction that holds the queues'
// locks: so that either a queue's job sees the new actions or they find the job
// gone and get another.
func (t *Throttle) acceptAll(ctx context.Context, b actionBatch, got answers) error {
	mine := make(answers, len(b.names)) // lost if the transaction is
	err := t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		queues := make([]queueRow, 0, len(b.ids))
		send := &pgx.Batch{}
		send.Queue(sqlUpsertQueues, b.queueColumns()...)
		send.Queue(sqlInsertActions, b.ids, b.in, b.portals, b.names, b.seconds).Query(func(rows pgx.Rows) error {
			return scanNew(rows, mine)
		})
		send.Queue(sqlLiveJobs, b.ids).Query(func(rows pgx.Rows) error {
			var id string
			var q queueRow
			_, err := pgx.ForEachRow(rows, []any{&id, &q.seq, &q.live}, func() error {
				q.key = b.keys[len(queues)] // both are in the order of the ids
				queues = append(queues, q)
				return nil
			})
			return err
		})
		if err := tx.SendBatch(ctx, send).Close(); err != nil {
			return err
		}
		if err := t.ensureJobs(ctx, tx, queues); err != nil {
			return err
		}
		left := b.without(mine)
		if len(left.names) == 0 {
			return nil
		}
		rows, err := tx.Query(ctx, sqlRepeats, left.portals, left.names, true)
		if err != nil {
			return err
		}
		return scanRepeats(rows, mine)
	})
	if err == nil {
		maps.Copy(got, mine)
	}
	return err
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
