package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sqlForgetActions = `
DELETE FROM action_executions WHERE (portal_id, callback_id) IN (
	SELECT portal_id, callback_id FROM action_executions WHERE finished_at < now() - make_interval(secs => $1)
	ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED)`

	sqlForgetStates = `DELETE FROM oauth_states WHERE created_at < now() - interval '1 day'`
)

// Forget deletes up to limit actions that ended longer than age ago, and states
// of authorizations that nobody may use any more. It returns how many actions
// went; fewer than limit means that no more are left.
func (t *Throttle) Forget(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	err = t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlForgetActions, age.Seconds(), limit)
		if err != nil {
			return err
		}
		n = int(tag.RowsAffected())
		_, err = tx.Exec(ctx, sqlForgetStates)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deleting old actions: %w", err)
	}
	return n, nil
}

// sqlForgetWindows looks at $2 rows after $1 and deletes those that count no
// more, as a claim of their queue would. Rows are found by their own index, so
// one pass over the table meets each once, whatever became of its queue.
const sqlForgetWindows = `
WITH seen AS MATERIALIZED (
	SELECT w.id, w.queue, w.ended_at FROM throttle_windows w WHERE w.id > $1 ORDER BY w.id LIMIT $2
), gone AS (
	DELETE FROM throttle_windows w USING (
		SELECT s.id FROM seen s LEFT JOIN throttle_queues q ON q.seq = s.queue
			LEFT JOIN throttle_configs c ON c.portal_id = q.portal_id AND c.action_id = q.action_id
		WHERE s.ended_at <= now() - coalesce(make_interval(secs => c.time_period * CASE c.time_unit
			WHEN 'second' THEN 1 WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 ELSE 86400 END::float8), interval '0')
	) o WHERE w.id = o.id RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen), coalesce((SELECT max(id) FROM seen), 0)`

// ForgetWindows looks at up to limit rows of spent budget after the row after,
// and deletes those whose budget is back: nobody else does so in a queue that
// nobody claims from. It returns how many went and where to go on; 0 means that
// it has seen them all.
func (t *Throttle) ForgetWindows(ctx context.Context, after int64, limit int) (n int, next int64, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var seen int
		err := c.QueryRow(ctx, sqlForgetWindows, after, limit).Scan(&n, &seen, &next)
		if seen < limit {
			next = 0
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("deleting budget that is back: %w", err)
	}
	return n, next, nil
}

const (
	// sqlOldQueues takes the locks of queues that have got nothing for long. One
	// that is paused stays, or it would not be paused when it comes back. So does
	// one whose job has ended but is there: it could be brought back to life.
	sqlOldQueues = `
SELECT q.seq FROM throttle_queues q
WHERE q.received_at < now() - make_interval(secs => $1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)
	AND NOT EXISTS (SELECT FROM river_job j WHERE j.id = q.job_id)
ORDER BY q.seq LIMIT $2 FOR UPDATE SKIP LOCKED`

	// sqlForgetQueues deletes those of them in which still nothing waits, now that
	// nothing can come in. It is a statement of its own, so that it sees what was
	// committed before the locks were had.
	sqlForgetQueues = `
DELETE FROM throttle_queues q
WHERE q.seq = ANY ($1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)`

	// sqlForgetConfigs deletes rates that were deleted long ago and that no queue
	// needs any more.
	sqlForgetConfigs = `
DELETE FROM throttle_configs WHERE (portal_id, action_id) IN (
	SELECT c.portal_id, c.action_id FROM throttle_configs c
	WHERE c.deleted_at < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM throttle_queues q WHERE q.portal_id = c.portal_id AND q.action_id = c.action_id)
	LIMIT $2 FOR UPDATE SKIP LOCKED)`
)

// ForgetQueues deletes up to limit queues that have got no action for longer than
// age and of which nothing is left: nothing waits, no budget counts, no job lives.
// Rates that were deleted longer than age ago go with the last of their queues.
// It returns how many of either went; fewer than limit means that no more are left.
func (t *Throttle) ForgetQueues(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	err = t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		old, err := collect[int64](ctx, tx, sqlOldQueues, age.Seconds(), limit)
		if err != nil {
			return err
		}
		queues, err := tx.Exec(ctx, sqlForgetQueues, old)
		if err != nil {
			return err
		}
		configs, err := tx.Exec(ctx, sqlForgetConfigs, age.Seconds(), limit)
		n = int(max(queues.RowsAffected(), configs.RowsAffected()))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deleting old queues: %w", err)
	}
	return n, nil
}
