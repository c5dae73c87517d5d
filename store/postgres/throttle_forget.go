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

// Forget deletes up to limit actions that ended more than age ago, and returns how many. If
// that is less than limit, none are left.
func (t *Throttle) Forget(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	gone, err := t.db.write("deleting old actions").exec(ctx, sqlForgetActions, age.Seconds(), limit)
	return int(gone), err
}

// windowsKey is the advisory lock that lets one controller at a time merge windows.
const windowsKey = 0x74616b74_77696e73 // "taktwins"

const sqlLockWindows = `/* lock_windows */ SELECT pg_advisory_xact_lock($1)`

// sqlSweepWindows reads $2 windows after $1 and deletes those whose budget is available
// again, as a claim of their queue would. It reads them by id, so that one pass over the
// table reads each once, even if its queue is gone.
//
// It merges others of a queue that end within the same thousandth of the period into the
// one that ends last, so that their budget is never available too early. It leaves out those
// that ended within the last minute, because their claims may still get a result. If a claim
// deletes a window meanwhile, the budget of all that were merged into it is available too.
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

// SweepWindows reads up to limit windows of spent budget after the window after. It deletes
// those whose budget is available again, because nothing else does in a queue without
// claims, and merges others, so that a claim of a large budget has few to read. It returns
// how many it removed, and the after of the next call, 0 if it has read all.
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
	// sqlOldQueues locks unused queues that last became busy more than $1 seconds ago. A
	// paused queue stays, because it would not be paused when it is created again. A queue
	// whose ended job still exists stays too, because the job could be revived.
	sqlOldQueues = `/* old_queues */
SELECT q.seq FROM throttle_queues q
WHERE q.received_at < now() - make_interval(secs => $1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)
	AND NOT EXISTS (SELECT FROM river_job j WHERE j.id = q.job_id)
ORDER BY q.seq LIMIT $2 FOR UPDATE SKIP LOCKED`

	// sqlForgetQueues deletes those of them that are still unused, now that the locks keep
	// actions from being added. It is a separate statement, so that it sees what was
	// committed before the locks were taken.
	sqlForgetQueues = `/* forget_queues */
DELETE FROM throttle_queues q
WHERE q.seq = ANY ($1) AND q.paused_at IS NULL
	AND NOT EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND NOT EXISTS (SELECT FROM throttle_windows w WHERE w.queue = q.seq)`

	// sqlForgetConfigs removes the rows of rates that were deleted more than $1 seconds ago
	// and that no queue needs any more.
	sqlForgetConfigs = `/* forget_configs */
DELETE FROM throttle_configs WHERE (portal_id, action_id) IN (
	SELECT c.portal_id, c.action_id FROM throttle_configs c
	WHERE c.deleted_at < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM throttle_queues q WHERE q.portal_id = c.portal_id AND q.action_id = c.action_id)
	LIMIT $2 FOR UPDATE SKIP LOCKED)`
)

// ForgetQueues deletes up to limit unused queues that last became busy more than age ago.
// Unused means that no action waits, no spent budget counts, no job is left and it is not
// paused. It also removes the rows of up to limit rates that were deleted more than age ago
// and have no queue left. It returns the larger of both counts; if that is less than limit,
// none are left.
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
