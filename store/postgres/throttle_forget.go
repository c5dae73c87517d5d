package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const sqlForgetActions = `/* forget_actions */
DELETE FROM action_executions WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM action_executions WHERE finished_at < now() - make_interval(secs => $1)
	ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

// Forget deletes up to limit actions that ended longer than age ago. It returns how
// many it deleted; fewer than limit means that none are left.
func (t *Throttle) Forget(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	gone, err := t.db.write("deleting old actions").exec(ctx, sqlForgetActions, age.Seconds(), limit)
	return int(gone), err
}

// windowsKey is the advisory lock that lets one controller merge at a time.
const windowsKey = 0x74616b74_77696e73 // "taktwins"

const sqlLockWindows = `/* lock_windows */ SELECT pg_advisory_xact_lock($1)`

// sqlSweepWindows looks at $2 rows after $1 and deletes those whose budget is back, as
// a claim of their queue would. It reads rows by their own index, so one pass over the
// table sees each row once, even if its queue is gone.
//
// It merges neighbours among the other rows: budget that comes back within a thousandth
// of the period comes back with the last of it, which is never early. Rows of the last
// minute are left alone, because their claim may still be answered. If a claim deletes
// a row meanwhile, everything that was merged into it is back too.
const sqlSweepWindows = `/* sweep_windows */
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
// deletes those whose budget is back, because in a queue without claims nothing else
// does. It merges others, so that a claim of a large budget has few rows to read. It
// returns how many rows it removed and where to continue; 0 means that it has seen all.
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
	// sqlOldQueues locks queues that have received nothing for long. A paused queue
	// stays, because it would not be paused when it is created again. A queue whose
	// ended job still exists stays too, because the job could be revived.
	sqlOldQueues = `/* old_queues */
SELECT q.seq FROM throttle_queues q
WHERE q.received_at < now() - make_interval(secs => $1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)
	AND NOT EXISTS (SELECT FROM river_job j WHERE j.id = q.job_id)
ORDER BY q.seq LIMIT $2 FOR UPDATE SKIP LOCKED`

	// sqlForgetQueues deletes those of them that are still empty, now that nothing can
	// be added. It is a separate statement, so that it sees what was committed before
	// the locks were taken.
	sqlForgetQueues = `/* forget_queues */
DELETE FROM throttle_queues q
WHERE q.seq = ANY ($1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)`

	// sqlForgetConfigs removes the rows of rates that were deleted long ago and that no
	// queue needs any more.
	sqlForgetConfigs = `/* forget_configs */
DELETE FROM throttle_configs WHERE (portal_id, action_id) IN (
	SELECT c.portal_id, c.action_id FROM throttle_configs c
	WHERE c.deleted_at < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM throttle_queues q WHERE q.portal_id = c.portal_id AND q.action_id = c.action_id)
	LIMIT $2 FOR UPDATE SKIP LOCKED)`
)

// ForgetQueues deletes up to limit queues that have received no action for longer than
// age and are unused: no action waits, no spent budget counts, and no job is left. It
// also deletes rates that were deleted longer than age ago and have no queue left. It
// returns how many of both it deleted; fewer than limit means that none are left.
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
