package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlRequeue takes build $1 from the worker that holds it. As in sqlCancel, that worker is
// locked first, and nothing happens if the holder changed meanwhile.
const sqlRequeue = `/* requeue */
WITH w AS MATERIALIZED (
	SELECT id FROM workers WHERE id = (
		SELECT worker_id FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state IN ('assigned', 'building')
	) FOR NO KEY UPDATE
), b AS (
	UPDATE builds SET state = 'pending', worker_id = NULL, last_worker_id = worker_id,
		started_at = NULL, last_seen_at = NULL, updated_at = now(), log_lines = log_lines + 1
	WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state IN ('assigned', 'building') AND worker_id IN (SELECT id FROM w)
	RETURNING seq, id, platform, position, last_worker_id AS worker, attempt, submitted_at, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, 'warn', 'Worker ' || worker || ' lost attempt ' || attempt || ' because an operator requeued it, build is pending again',
		'requeued', worker, attempt, '{"reason": "requeued"}' FROM b
), freed AS (
	UPDATE workers SET held = held - 1,
		status = CASE WHEN status = 'offline' THEN status WHEN held > 1 THEN 'building' ELSE 'idle' END
	FROM b WHERE workers.id = b.worker
)
SELECT id, platform, position, worker, attempt, submitted_at, (SELECT started_at FROM builds was WHERE was.seq = b.seq) FROM b`

// Requeue makes an assigned or running build pending again, at its old position and
// without using up an attempt. Its former worker may still send the result until another
// worker gets the build. Errors: NotFound, Conflict if no worker holds the build.
func (b *Builds) Requeue(ctx context.Context, id string) (ref store.BuildRef, err error) {
	var position int64
	err = b.db.write("requeueing build "+id).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sqlRequeue, id).Scan(
			&ref.ID, &ref.Platform, &position, &ref.WorkerID, &ref.Attempt, &ref.SubmittedAt, &ref.StartedAt)
		if !errors.Is(err, pgx.ErrNoRows) {
			if err != nil {
				return err
			}
			return notifyJobs(ctx, tx, []store.BuildRef{ref})
		}
		var state store.BuildState
		if err := orNone(tx.QueryRow(ctx, sqlBuildState, id).Scan(&state), errNoBuild); err != nil {
			return err
		}
		return store.NewError(store.Conflict, "No worker holds the build, its state is "+string(state))
	})
	if err != nil {
		return store.BuildRef{}, err
	}
	b.db.requeued([]int64{position})
	return ref, nil
}
