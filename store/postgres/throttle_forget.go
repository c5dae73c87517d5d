package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const sqlForgetActions = `
DELETE FROM action_executions WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM action_executions WHERE finished_at < now() - make_interval(secs => $1)
	ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

// Forget deletes up to limit actions that ended longer than age ago. It returns how
// many went; fewer than limit means that no more are left.
func (t *Throttle) Forget(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	err = t.db.write("deleting old actions").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlForgetActions, age.Seconds(), limit)
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// windowsKey is the advisory lock that lets one controller merge at a time.
const windowsKey = 0x74616b74_77696e73 // "taktwins"

const sqlLockWindows = `SELECT pg_advisory_xact_lock($1)`

// sqlSweepWindows looks at $2 rows after $1 and deletes those that count no more,
// as a claim of their queue would. Rows are found by their own index, so one pass
// over the table meets each once, whatever became of its queue. Of those that
// count, neighbours are merged: budget that came back at about the same time, a
// thousandth of the period, comes back with the last of it. That is never early.
// A row of the last minute is left alone: its claim may still be answered. If a
// claim deletes a row meanwhile, all that was merged into it counts no more
// either.
const sqlSweepWindows = `
WITH seen AS MATERIALIZED (
	SELECT w.id, w.queue, w.ended_at, ` + periodSeconds + ` AS period
	FROM (SELECT id, queue, ended_at FROM throttle_windows WHERE id > $1 ORDER BY id LIMIT $2) w
		LEFT JOIN throttle_queues q ON q.seq = w.queue
		LEFT JOIN throttle_configs c ON c.portal_id = q.portal_id AND c.action_id = q.action_id
), gone AS (
	DELETE FROM throttle_windows w USING seen s
	WHERE w.id = s.id AND s.ended_at <= now() - make_interval(secs => coalesce(s.period, 0)) RETURNING 1
), bucket AS MATERIALIZED (
	SELECT s.id, first_value(s.id) OVER (
		PARTITION BY s.queue, floor(extract(epoch FROM s.ended_at)::float8 * 1000 / s.period) ORDER BY s.ended_at DESC, s.id) AS last
	FROM seen s WHERE s.ended_at > now() - make_interval(secs => s.period) AND s.ended_at < now() - interval '1 minute'
), merged AS (
	DELETE FROM throttle_windows w USING bucket b WHERE w.id = b.id AND b.id <> b.last RETURNING b.last, w.n
), grown AS (
	UPDATE throttle_windows w SET n = w.n + m.n
	FROM (SELECT last, sum(n)::integer AS n FROM merged GROUP BY last) m WHERE w.id = m.last
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM merged), (SELECT count(*) FROM seen), coalesce((SELECT max(id) FROM seen), 0)`

// SweepWindows looks at up to limit rows of spent budget after the row after. It
// deletes those whose budget is back, which nobody else does in a queue that
// nobody claims from, and merges others, so that a claim of a large budget has few
// to look at. It returns how many went and where to go on; 0 means that it has
// seen them all.
func (t *Throttle) SweepWindows(ctx context.Context, after int64, limit int) (n int, next int64, err error) {
	err = t.db.write("sweeping spent budget").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlLockWindows, int64(windowsKey)); err != nil {
			return err
		}
		var seen int
		if err := tx.QueryRow(ctx, sqlSweepWindows, after, limit).Scan(&n, &seen, &next); err != nil {
			return err
		}
		if seen < limit {
			next = 0
		}
		return nil
	})
	return n, next, err
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
	err = t.db.write("deleting old queues").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		old, err := collect(ctx, tx, pgx.RowTo[int64], sqlOldQueues, age.Seconds(), limit)
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
	return n, err
}
