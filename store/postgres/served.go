package postgres

import (
	"context"
	"math/big"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	sqlWaitingClasses = `/* waiting_classes */ WITH ` + pendingClasses + ` SELECT k.id, k.platform, k.require FROM c JOIN build_classes k ON k.id = c.class`

	// sqlKnownWorkers lists the combinations of platforms and labels among known workers, and
	// whether workers with each get builds.
	sqlKnownWorkers = `/* known_workers */
SELECT DISTINCT platforms, labels, ` + servedState + ` IN ('idle', 'building') FROM workers w WHERE ` + knownWorker

	// knownWorker is true from a worker's registration until it unregisters.
	knownWorker = `(left_at IS NULL OR left_at < last_seen_at)`

	// sqlMarkClasses records that no known worker can take builds of the classes $1, and since
	// when, that no worker gets builds of the classes $2, and that from each of the classes $3 the one
	// of $4 waits apart. It clears that of all others.
	sqlMarkClasses = `/* mark_classes */
UPDATE build_classes k SET unmatched_since = CASE WHEN k.id = ANY ($1) THEN coalesce(k.unmatched_since, now()) END, served = k.id <> ALL ($2), apart = a.others
FROM build_classes o LEFT JOIN (
	SELECT class, array_agg(other ORDER BY other) AS others FROM unnest($3::int[], $4::int[]) AS a(class, other) GROUP BY 1
) a ON a.class = o.id
WHERE o.id = k.id AND ((k.id = ANY ($1)) <> (k.unmatched_since IS NOT NULL) OR (k.id <> ALL ($2)) <> k.served OR k.apart IS DISTINCT FROM a.others)`

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

// CheckClasses records which classes with pending builds have no worker, and which wait apart. If limit is not 0,
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
		m, err := judgeClasses(ctx, tx, waiting)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlMarkClasses, m.unmatched, m.unserved, m.from, m.apart); err != nil || limit == 0 || len(m.unmatched) == 0 {
			return err
		}
		failed, err = collect(ctx, tx, func(row pgx.CollectableRow) (b store.BuildRef, err error) {
			return b, row.Scan(&b.ID, &b.Platform, &b.ClassID, &b.SubmittedAt)
		}, sqlFailUnmatched, maxUnmatched, limit)
		return err
	})
	return failed, err
}

// classMarks are what sqlMarkClasses records: the numbers of classes that no known worker can take, and
// of those of which no worker gets builds now; and for each i that builds of apart[i] may wait while
// those of from[i] are handed out, because some worker gets builds of the latter only.
type classMarks struct{ unmatched, unserved, from, apart []int32 }

// judgeClasses judges the classes of pending builds by the workers.
func judgeClasses(ctx context.Context, tx pgx.Tx, waiting []store.Class) (m classMarks, err error) {
	m = classMarks{[]int32{}, []int32{}, []int32{}, []int32{}}
	if len(waiting) == 0 {
		return m, nil
	}
	type kind struct {
		store.WorkerSession
		able bool
	}
	workers, err := collect(ctx, tx, func(row pgx.CollectableRow) (w kind, err error) {
		return w, row.Scan(&w.Platforms, &w.Labels, &w.able)
	}, sqlKnownWorkers)
	serve := make([]big.Int, len(waiting)) // a bit for each kind of worker that gets builds of the class
	for i := range waiting {
		known := false
		for j := range workers {
			if workers[j].Takes(&waiting[i]) {
				if known = true; workers[j].able {
					serve[i].SetBit(&serve[i], j, 1)
				}
			}
		}
		if !known {
			m.unmatched = append(m.unmatched, waiting[i].ID)
		}
		if serve[i].Sign() == 0 {
			m.unserved = append(m.unserved, waiting[i].ID)
		}
	}
	only := new(big.Int)
	for i := range waiting {
		for j := range waiting { // which is served too, only by fewer
			if serve[j].Sign() != 0 && waiting[i].Platform == waiting[j].Platform && only.AndNot(&serve[i], &serve[j]).Sign() != 0 {
				m.from, m.apart = append(m.from, waiting[i].ID), append(m.apart, waiting[j].ID)
			}
		}
	}
	return m, err
}
