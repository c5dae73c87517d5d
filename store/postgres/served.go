package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	sqlWaitingClasses = `/* waiting_classes */ WITH ` + pendingClasses + ` SELECT k.id, k.platform, k.require FROM c JOIN build_classes k ON k.id = c.class`

	// sqlKnownWorkers lists the combinations of platforms and labels among known workers, and
	// whether workers with each get builds.
	sqlKnownWorkers = `/* known_workers */
SELECT DISTINCT platforms, labels, ` + servedState + ` IN ('idle', 'building') FROM workers w WHERE left_at IS NULL OR left_at < last_seen_at`

	// sqlMarkClasses records that no known worker can take builds of the classes $1, and since
	// when, and that no worker gets builds of the classes $2. It clears both of all others.
	sqlMarkClasses = `/* mark_classes */
UPDATE build_classes SET unmatched_since = CASE WHEN id = ANY ($1) THEN coalesce(unmatched_since, now()) END, served = id <> ALL ($2)
WHERE (id = ANY ($1)) <> (unmatched_since IS NOT NULL) OR (id <> ALL ($2)) <> served`

	// sqlFailUnmatched fails up to $1 builds that no known worker could take for longer than
	// $2 while they were pending.
	sqlFailUnmatched = `/* fail_unmatched */
WITH b AS (
	UPDATE builds SET state = 'failed', ended = 'unmatched', completed_at = now(), updated_at = now(), log_lines = log_lines + 1,
		error_message = 'No worker can take this build: it needs ' || platform || w.with_labels
	FROM (
		SELECT b.seq, CASE WHEN k.require <> '' THEN ' with ' ||
			replace(replace(replace(regexp_replace(k.require, 'takt:timeout>=([0-9]+)', 'a time limit of \1 h'), 'takt:env', 'parameters'), 'takt:secrets', 'secrets'), 'takt:exit', 'retries by exit code')
			ELSE '' END AS with_labels FROM builds b JOIN build_classes k ON k.id = b.class
		WHERE b.state = 'pending' AND k.unmatched_since IS NOT NULL AND greatest(k.unmatched_since, b.updated_at) < now() - $2::interval
		ORDER BY b.position, b.seq LIMIT $1 FOR NO KEY UPDATE OF b SKIP LOCKED
	) w WHERE builds.seq = w.seq
	RETURNING builds.seq, id, platform, class, submitted_at, error_message, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, facts)
	SELECT seq, log_lines, 'error', error_message, 'failed', '{"reason": "unmatched"}' FROM b
)
SELECT id, platform, class, submitted_at FROM b`

	// maxUnmatched is the most builds that one transaction fails.
	maxUnmatched = 1000
)

// CheckClasses records which classes with pending builds have no worker. If limit is not 0,
// it fails up to 1000 builds that no known worker could take for longer than limit, and
// returns them. A worker is known from its registration until it unregisters or is deleted.
// While another controller does the same or sweeps, CheckClasses does nothing.
func (q *Queue) CheckClasses(ctx context.Context, limit time.Duration) (failed []store.BuildRef, err error) {
	err = q.db.write("looking for workers for the builds that wait").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, sqlTrySweep, int64(sweepKey)).Scan(&mine); err != nil || !mine {
			return err
		}
		waiting, err := collect(ctx, tx, pgx.RowToStructByPos[store.Class], sqlWaitingClasses)
		if err != nil {
			return err
		}
		unmatched, unserved, err := withoutWorkers(ctx, tx, waiting)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlMarkClasses, unmatched, unserved); err != nil || limit == 0 || len(unmatched) == 0 {
			return err
		}
		failed, err = collect(ctx, tx, func(row pgx.CollectableRow) (b store.BuildRef, err error) {
			return b, row.Scan(&b.ID, &b.Platform, &b.ClassID, &b.SubmittedAt)
		}, sqlFailUnmatched, maxUnmatched, limit)
		return err
	})
	return failed, err
}

// withoutWorkers returns which of the waiting classes no known worker can take, and which of
// them no worker gets builds of now.
func withoutWorkers(ctx context.Context, tx pgx.Tx, waiting []store.Class) (unmatched, unserved []int32, err error) {
	unmatched, unserved = []int32{}, []int32{}
	if len(waiting) == 0 {
		return unmatched, unserved, nil
	}
	type kind struct {
		store.WorkerSession
		able bool
	}
	workers, err := collect(ctx, tx, func(row pgx.CollectableRow) (w kind, err error) {
		return w, row.Scan(&w.Platforms, &w.Labels, &w.able)
	}, sqlKnownWorkers)
	for i := range waiting {
		known, served := false, false
		for j := range workers {
			if workers[j].Takes(&waiting[i]) {
				known, served = true, served || workers[j].able
			}
		}
		if !known {
			unmatched = append(unmatched, waiting[i].ID)
		}
		if !served {
			unserved = append(unserved, waiting[i].ID)
		}
	}
	return unmatched, unserved, err
}
