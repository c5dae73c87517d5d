package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	sqlKnownWorkers = `/* known_workers */ SELECT DISTINCT platforms, labels FROM workers w WHERE left_at IS NULL OR left_at < last_seen_at`

	sqlWaitingClasses = `/* waiting_classes */ WITH ` + pendingClasses + ` SELECT k.id, k.platform, k.require FROM c JOIN build_classes k ON k.id = c.class`

	// sqlMarkUnmatched keeps since when the classes $1 are unmatched, and forgets it of all others.
	sqlMarkUnmatched = `/* mark_unmatched */
UPDATE build_classes SET unmatched_since = CASE WHEN id = ANY ($1) THEN now() END
WHERE id = ANY ($1) AND unmatched_since IS NULL OR id <> ALL ($1) AND unmatched_since IS NOT NULL`

	// sqlFailUnmatched fails builds that have waited for $2 since then; $1 is a limit.
	sqlFailUnmatched = `/* fail_unmatched */
WITH b AS (
	UPDATE builds SET state = 'failed', completed_at = now(), updated_at = now(), log_lines = log_lines + 1,
		error_message = 'No worker can take this build: it needs ' || platform || w.with_labels
	FROM (
		SELECT b.seq, CASE WHEN k.require <> '' THEN ' with ' || k.require ELSE '' END AS with_labels FROM builds b JOIN build_classes k ON k.id = b.class
		WHERE b.state = 'pending' AND k.unmatched_since IS NOT NULL AND greatest(k.unmatched_since, b.updated_at) < now() - $2::interval
		ORDER BY b.position, b.seq LIMIT $1 FOR NO KEY UPDATE OF b SKIP LOCKED
	) w WHERE builds.seq = w.seq
	RETURNING builds.seq, id, platform, class, submitted_at, error_message, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, facts)
	SELECT seq, log_lines, 'error', error_message, 'failed', '{"reason": "unmatched"}' FROM b
)
SELECT id, platform, class, submitted_at FROM b`

	// maxUnmatched is how many builds one transaction fails.
	maxUnmatched = 1000
)

// FailUnmatched fails builds that no known worker could have taken for longer than limit,
// and returns them. A worker is known from its registration until it unregisters or is
// deleted. One controller does so at a time.
func (q *Queue) FailUnmatched(ctx context.Context, limit time.Duration) (failed []store.BuildRef, err error) {
	err = q.db.write("failing builds that no worker can take").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, sqlTrySweep, int64(sweepKey)).Scan(&mine); err != nil || !mine {
			return err
		}
		workers, err := collect(ctx, tx, func(row pgx.CollectableRow) (w store.WorkerSession, err error) {
			return w, row.Scan(&w.Platforms, &w.Labels)
		}, sqlKnownWorkers)
		if err != nil {
			return err
		}
		waiting, err := collect(ctx, tx, pgx.RowToStructByPos[store.Class], sqlWaitingClasses)
		if err != nil {
			return err
		}
		unmatched := []int32{}
		for i := range waiting {
			taken := false
			for j := range workers {
				taken = taken || workers[j].Takes(&waiting[i])
			}
			if !taken {
				unmatched = append(unmatched, waiting[i].ID)
			}
		}
		if _, err := tx.Exec(ctx, sqlMarkUnmatched, unmatched); err != nil || len(unmatched) == 0 {
			return err
		}
		failed, err = collect(ctx, tx, func(row pgx.CollectableRow) (b store.BuildRef, err error) {
			return b, row.Scan(&b.ID, &b.Platform, &b.ClassID, &b.SubmittedAt)
		}, sqlFailUnmatched, maxUnmatched, limit)
		return err
	})
	return failed, err
}
