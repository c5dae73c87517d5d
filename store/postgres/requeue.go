package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// pendingAgain sets the columns of a held build that becomes pending again without its
// attempt counting as lost.
const pendingAgain = ` state = 'pending', worker_id = NULL, last_worker_id = worker_id, started_at = NULL, last_seen_at = NULL,
		waiting_since = now(), updated_at = now(), log_lines = log_lines + 1`

// refColumns are the columns of a store.BuildRef for an attempt by worker $1, of builds b
// that the same statement has changed. started_at is the time before that change, because
// the subquery reads the statement's snapshot.
const refColumns = ` id, platform, $1, attempt, submitted_at, (SELECT started_at FROM builds was WHERE was.seq = b.seq), position, class `

// sqlReturnBuilds makes the builds of worker $1 pending again, or only build $3 if that is
// not NULL; $2 is the reason. The worker is locked, so it gets and finishes no build
// meanwhile.
const sqlReturnBuilds = `/* return_builds */
WITH b AS (
	UPDATE builds SET` + pendingAgain + `
	WHERE worker_id = $1 AND state IN ('assigned', 'building') AND ($3::text IS NULL OR id = $3)
	RETURNING seq, id, platform, class, position, attempt, submitted_at, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, 'warn', 'Worker ' || $1 || CASE $2::text WHEN 'deleted' THEN ' was deleted' WHEN 'unregistered' THEN ' unregistered'
			ELSE ' lost attempt ' || attempt || ' because an operator requeued it' END || ', build is pending again',
		'requeued', $1, attempt, jsonb_build_object('reason', $2) FROM b
), freed AS (
	UPDATE workers SET held = held - n.back,
		status = CASE WHEN status = 'offline' THEN status WHEN held > n.back THEN 'building' ELSE 'idle' END
	FROM (SELECT count(*)::int AS back FROM b) n WHERE id = $1 AND n.back > 0
)
SELECT` + refColumns + `FROM b ORDER BY position`

// returnBuilds makes the builds of a locked worker pending again, or only one of them, and
// returns them in the order of the queue.
func returnBuilds(ctx context.Context, tx pgx.Tx, worker, why string, only *string) ([]store.BuildRef, error) {
	refs, err := collect(ctx, tx, pgx.RowToStructByPos[store.BuildRef], sqlReturnBuilds, worker, why, only)
	if err != nil {
		return nil, fmt.Errorf("returning builds of worker %s: %w", worker, err)
	}
	return refs, nil
}

// lockHolder locks the worker that holds build $1.
const lockHolder = `SELECT id FROM workers WHERE id = (
		SELECT worker_id FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state IN ('assigned', 'building')
	) FOR NO KEY UPDATE`

const sqlLockHolder = `/* lock_holder */ ` + lockHolder

// Requeue makes an assigned or building build pending again, at its old position and without
// counting the attempt as lost. Its former worker may still send the result until another
// worker gets the build. A build that waits for its retry waits no longer; the reference names no
// attempt then. Errors: NotFound, Conflict if no worker holds the build and it does not wait either.
func (b *Builds) Requeue(ctx context.Context, id string) (ref store.BuildRef, err error) {
	err = b.db.write("requeueing build "+id).requeue(ctx, func(ctx context.Context, tx pgx.Tx) ([]store.BuildRef, error) {
		var worker string
		err := tx.QueryRow(ctx, sqlLockHolder, id).Scan(&worker)
		if err == nil {
			var refs []store.BuildRef
			if refs, err = returnBuilds(ctx, tx, worker, store.LostRequeued, &id); len(refs) > 0 {
				ref = refs[0]
				return refs, nil
			}
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
		refs, err := collect(ctx, tx, pgx.RowToStructByPos[store.BuildRef], sqlLetInOne, 1, id)
		if len(refs) > 0 || err != nil {
			ref = append(refs, ref)[0]
			return refs, err
		}
		state, err := buildState(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		return nil, store.NewError(store.Conflict, "No worker holds the build, its state is "+string(state))
	})
	if err != nil {
		return store.BuildRef{}, err
	}
	return ref, nil
}

const sqlBuildState = `/* build_state */ SELECT state FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)`

// buildState returns the state of a build. Error: NotFound.
func buildState(ctx context.Context, q querier, id string) (state store.BuildState, err error) {
	err = orNone(q.QueryRow(ctx, sqlBuildState, id).Scan(&state), errNoBuild)
	return state, err
}
