package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Unregister takes the worker of a checked token offline, voids its tokens and requeues
// its builds at their old positions without using up an attempt. Error: InvalidToken if
// the token was superseded.
func (w *Workers) Unregister(ctx context.Context, token store.WorkerToken) (store.Departure, error) {
	return w.unregister(ctx, sqlLockByToken, store.ErrInvalidToken, int64(token.Worker), int64(token.Counter))
}

// UnregisterID does the same for a worker named by its id. Error: NotFound.
func (w *Workers) UnregisterID(ctx context.Context, id string) (store.Departure, error) {
	return w.unregister(ctx, sqlLockByID, errNoWorker, id)
}

// sqlLockByToken locks worker number $1 if it has used no higher counter than $2.
const sqlLockByToken = `/* lock_by_token */ SELECT id FROM workers WHERE number = $1 AND used <= $2 FOR NO KEY UPDATE`

const sqlLockByID = `/* lock_by_id */ SELECT id FROM workers WHERE id = $1 FOR NO KEY UPDATE`

// sqlReturnBuilds makes the builds of worker $1 pending again; $2 is the reason. The worker
// is locked, so none can be added or end meanwhile.
const sqlReturnBuilds = `/* return_builds */
WITH b AS (
	UPDATE builds SET state = 'pending', worker_id = NULL, last_worker_id = $1,
		started_at = NULL, last_seen_at = NULL, updated_at = now(), log_lines = log_lines + 1
	WHERE worker_id = $1 AND state IN ('assigned', 'building')
	RETURNING seq, id, platform, position, attempt, submitted_at, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, 'warn', 'Worker ' || $1 || CASE $2::text WHEN 'deleted' THEN ' was deleted' ELSE ' unregistered' END || ', build is pending again',
		'requeued', $1, attempt, jsonb_build_object('reason', $2) FROM b
)
SELECT id, platform, position, attempt, submitted_at, (SELECT started_at FROM builds was WHERE was.seq = b.seq)
FROM b ORDER BY position`

// sqlTakeOffline records that worker $1 has left, frees its id for any process and raises its
// counter by $2, which supersedes all its tokens.
const sqlTakeOffline = `/* take_offline */
WITH w AS (
	UPDATE workers SET status = 'offline', held = 0, used = used + $2, instance = NULL, left_at = now() WHERE id = $1 RETURNING number
)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`

// unregister locks the worker with the statement lock. If there is no worker, it
// returns nobody's error.
func (w *Workers) unregister(ctx context.Context, lock string, nobody func() error, args ...any) (gone store.Departure, err error) {
	var positions []int64
	err = w.db.write("unregistering").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		err := orNone(tx.QueryRow(ctx, lock, args...).Scan(&gone.WorkerID), nobody)
		if err != nil {
			return err
		}
		if gone.Requeued, positions, err = returnBuilds(ctx, tx, gone.WorkerID, store.LostUnregistered); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlTakeOffline, gone.WorkerID, registrationStep); err != nil {
			return err
		}
		return notifyJobs(ctx, tx, gone.Requeued)
	})
	if err != nil {
		return store.Departure{}, err
	}
	w.db.requeued(positions)
	return gone, nil
}

// returnBuilds requeues the builds of a locked worker and returns them with their
// positions, in the order of the queue.
func returnBuilds(ctx context.Context, tx pgx.Tx, worker, why string) (refs []store.BuildRef, positions []int64, err error) {
	r := store.BuildRef{WorkerID: worker}
	var position int64
	rows, _ := tx.Query(ctx, sqlReturnBuilds, worker, why) // its error is that of the rows
	_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.Platform, &position, &r.Attempt, &r.SubmittedAt, &r.StartedAt}, func() error {
		refs, positions = append(refs, r), append(positions, position)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("returning builds of worker %s: %w", worker, err)
	}
	return refs, positions, nil
}

const sqlNotify = `/* notify */ SELECT pg_notify('takt', $1)`

// notifyJobs notifies every controller at the commit that builds are pending: once per
// transaction, with the platform if the builds share one.
func notifyJobs(ctx context.Context, tx pgx.Tx, refs []store.BuildRef) error {
	if len(refs) == 0 {
		return nil
	}
	payload := "job:available " + string(refs[0].Platform)
	for _, r := range refs {
		if r.Platform != refs[0].Platform {
			payload = "job:available"
		}
	}
	if _, err := tx.Exec(ctx, sqlNotify, payload); err != nil {
		return fmt.Errorf("announcing builds: %w", err)
	}
	return nil
}
