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

// queueRow is a queue in an accepting transaction, which holds its lock.
type queueRow struct {
	seq int64
	key store.QueueKey
	// live says that a job answers for the queue.
	live bool
}

// Accept makes actions durable, with the jobs that see to them, in one
// transaction: the answers, by index, hold when it returns. It locks the queues
// in the order of their ids, so that either a queue's job sees the new actions
// or they find the job gone and get another.
func (t *Throttle) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	var answers map[callback]store.Acceptance
	var err error
	for range acceptTries {
		err = t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			answers, err = t.accept(ctx, tx, actions)
			return err
		})
		if !isConflict(err) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("accepting %d actions: %w", len(actions), err)
	}
	out := make([]store.Acceptance, len(actions))
	for i, a := range actions {
		at := callback{a.Queue.PortalID, a.CallbackID}
		out[i] = answers[at]
		if !out[i].Repeat { // whoever sent it again in the same batch
			again := out[i]
			again.Repeat = true
			answers[at] = again
		}
	}
	return out, nil
}

// acceptTries is how often a transaction is begun anew that PostgreSQL ended in
// favour of another: River locks jobs in an order of its own.
const acceptTries = 5

// isConflict reports whether err is a deadlock or a failed serialization.
func isConflict(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001")
}

// actionBatch is actions in columns, each once, in the order of the unique index: two
// transactions never wait for each other's.
type actionBatch struct {
	queues  map[string]store.QueueKey
	ids     []string // of queues, sorted
	portals []int64
	names   []string
	in      []string
	seconds []float64
}

func newActionBatch(actions []store.Action) actionBatch {
	b := actionBatch{queues: map[string]store.QueueKey{}}
	order := make([]store.Action, len(actions))
	copy(order, actions)
	slices.SortStableFunc(order, func(x, y store.Action) int {
		return cmp.Or(cmp.Compare(x.Queue.PortalID, y.Queue.PortalID), cmp.Compare(x.CallbackID, y.CallbackID))
	})
	for i, a := range order {
		if i > 0 && a.CallbackID == order[i-1].CallbackID && a.Queue.PortalID == order[i-1].Queue.PortalID {
			continue
		}
		id := a.Queue.ID()
		b.queues[id] = a.Queue
		b.in = append(b.in, id)
		b.portals = append(b.portals, a.Queue.PortalID)
		b.names = append(b.names, a.CallbackID)
		b.seconds = append(b.seconds, a.Expires.Seconds())
	}
	b.ids = slices.Sorted(maps.Keys(b.queues))
	return b
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
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::float8[]) WITH ORDINALITY AS u(queue, portal, callback, seconds, nr)
	JOIN throttle_queues q ON q.id = u.queue
ORDER BY u.nr
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id, extract(epoch FROM a.expires_at - now())::float8`

// sqlLiveJobs says which queues have a job that answers for them. It is a
// statement of its own, so that it sees what was committed before the locks
// were had. River's insert would find the same, but writes a new version of each
// job that it finds.
const sqlLiveJobs = `
SELECT q.id, q.seq, coalesce((SELECT j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')
	FROM river_job j WHERE j.id = q.job_id), false)
FROM throttle_queues q WHERE q.id = ANY ($1)`

func (t *Throttle) accept(ctx context.Context, tx pgx.Tx, actions []store.Action) (map[callback]store.Acceptance, error) {
	b := newActionBatch(actions)
	answers := make(map[callback]store.Acceptance, len(actions))
	queues := make([]queueRow, 0, len(b.ids))
	send := &pgx.Batch{}
	send.Queue(sqlUpsertQueues, b.queueColumns()...)
	send.Queue(sqlInsertActions, b.in, b.portals, b.names, b.seconds).Query(func(rows pgx.Rows) error {
		var at callback
		var left float64
		_, err := pgx.ForEachRow(rows, []any{&at.portal, &at.id, &left}, func() error {
			answers[at] = store.Acceptance{State: store.ActionWaiting, Remaining: seconds(left)}
			return nil
		})
		return err
	})
	send.Queue(sqlLiveJobs, b.ids).Query(func(rows pgx.Rows) error {
		var id string
		var q queueRow
		_, err := pgx.ForEachRow(rows, []any{&id, &q.seq, &q.live}, func() error {
			q.key = b.queues[id]
			queues = append(queues, q)
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, send).Close(); err != nil {
		return nil, err
	}
	if err := t.ensureJobs(ctx, tx, queues); err != nil {
		return nil, err
	}
	return answers, repeats(ctx, tx, b, answers)
}

func (b actionBatch) queueColumns() []any {
	n := len(b.ids)
	portals, actions := make([]int64, 0, n), make([]int64, 0, n)
	workflows, indexes := make([]string, 0, n), make([]string, 0, n)
	for _, id := range b.ids {
		k := b.queues[id]
		portals, workflows = append(portals, k.PortalID), append(workflows, k.WorkflowID)
		actions, indexes = append(actions, k.ActionID), append(indexes, k.Index)
	}
	return []any{b.ids, portals, workflows, actions, indexes}
}

const sqlRepeats = `
SELECT a.portal_id, a.callback_id, a.state, extract(epoch FROM a.expires_at - now())::float8
FROM unnest($1::bigint[], $2::text[]) AS u(portal, callback)
	JOIN action_executions a ON a.portal_id = u.portal AND a.callback_id = u.callback`

// repeats answers those that were here before.
func repeats(ctx context.Context, tx pgx.Tx, b actionBatch, answers map[callback]store.Acceptance) error {
	var portals []int64
	var names []string
	for i, name := range b.names {
		if _, fresh := answers[callback{b.portals[i], name}]; !fresh {
			portals, names = append(portals, b.portals[i]), append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, sqlRepeats, portals, names)
	if err != nil {
		return err
	}
	var at callback
	var state store.ActionState
	var left float64
	_, err = pgx.ForEachRow(rows, []any{&at.portal, &at.id, &state, &left}, func() error {
		answers[at] = store.Acceptance{State: state, Repeat: true, Remaining: max(seconds(left), time.Duration(0))}
		return nil
	})
	return err
}
