package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	// sqlLockByToken locks worker number $1 unless it has used a counter above $2.
	sqlLockByToken = `/* lock_by_token */ SELECT id FROM workers WHERE number = $1 AND used <= $2 FOR NO KEY UPDATE`
	sqlLockByID    = `/* lock_by_id */ SELECT id FROM workers WHERE id = $1 FOR NO KEY UPDATE`
	// sqlLockProcess returns the process that holds worker $1 too, "" if it was silent for $2.
	sqlLockProcess = `/* lock_process */ SELECT id, CASE WHEN last_seen_at > now() - $2::interval THEN coalesce(instance, '') ELSE '' END
FROM workers WHERE id = $1 FOR NO KEY UPDATE`
	// sqlLockIdentity locks a worker's identity, which a registration also locks first.
	sqlLockIdentity = `/* lock_identity */ SELECT FROM worker_details WHERE worker_id = $1 FOR UPDATE`
	// sqlLockTelemetry comes before the lock of the worker, as in Builds.Telemetry.
	sqlLockTelemetry = `/* lock_telemetry */ SELECT FROM worker_telemetry WHERE worker_id = $1 FOR UPDATE`

	// sqlTakeOffline records that worker $1 has left, lets any process register with its id,
	// and raises its counter by $2, which voids all its tokens.
	sqlTakeOffline = `/* take_offline */
WITH w AS (
	UPDATE workers SET status = 'offline', held = 0, used = used + $2, instance = NULL, left_at = now() WHERE id = $1 RETURNING number
)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`

	// sqlDeleteWorker deletes a worker. The foreign keys of reports and telemetry delete these
	// with its worker_details. Its CPU load stays in the mean of all.
	sqlDeleteWorker = `/* delete_worker */
WITH r AS (
	UPDATE rollup SET cpu_sum = rollup.cpu_sum + t.cpu_sum, cpu_count = rollup.cpu_count + t.cpu_count
	FROM worker_telemetry t WHERE t.worker_id = $1
), w AS (
	DELETE FROM workers WHERE id = $1 RETURNING number
), d AS (
	DELETE FROM worker_details WHERE worker_id = $1
)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`
)

const sqlLeaving = `/* leaving */
UPDATE workers SET leaving_at = now(), poll_closed_at = now() WHERE number = $1 AND used <= $2 RETURNING id, status`

// Leaving records that the worker of a token takes no more builds, ends those that it has, and
// unregisters then. The next poll of it ends that. Error: InvalidToken as for Unregister.
func (w *Workers) Leaving(ctx context.Context, token store.WorkerToken) (id string, status store.WorkerStatus, err error) {
	err = w.db.write("recording that a worker leaves").scan(ctx, store.ErrInvalidToken, []any{&id, &status}, sqlLeaving, int64(token.Worker), int64(token.Counter))
	return id, status, err
}

// Unregister takes the worker of a token offline, voids its tokens, and makes its builds
// pending again at their old positions without counting their attempts as lost. The caller
// has checked the token's signature. Error: InvalidToken if the token was superseded or the
// worker is deleted.
func (w *Workers) Unregister(ctx context.Context, token store.WorkerToken) (store.Departure, error) {
	return w.unregister(ctx, func(ctx context.Context, tx pgx.Tx) (id string, err error) {
		err = orNone(tx.QueryRow(ctx, sqlLockByToken, int64(token.Worker), int64(token.Counter)).Scan(&id), store.ErrInvalidToken)
		return id, err
	})
}

// UnregisterID does the same for the worker with this id. Errors: NotFound; DuplicateWorker if
// instance is not "" and another process holds the worker.
func (w *Workers) UnregisterID(ctx context.Context, id, instance string) (store.Departure, error) {
	return w.unregister(ctx, func(ctx context.Context, tx pgx.Tx) (string, error) {
		var holder string
		err := orNone(tx.QueryRow(ctx, sqlLockProcess, id, store.WorkerSilence).Scan(&id, &holder), errNoWorker)
		if err == nil && instance != "" && holder != "" && holder != instance {
			err = errDuplicate()
		}
		return id, err
	})
}

// unregister takes offline the worker that lock locks and returns.
func (w *Workers) unregister(ctx context.Context, lock func(context.Context, pgx.Tx) (id string, err error)) (store.Departure, error) {
	return w.leave(ctx, "unregistering", store.LostUnregistered, lock, sqlTakeOffline, registrationStep)
}

// Delete deletes a worker, which voids its tokens, and makes its builds pending again at
// their old positions. Builds that it has ended keep its id. It may register again.
// Error: NotFound.
func (w *Workers) Delete(ctx context.Context, id string) (store.Departure, error) {
	return w.leave(ctx, "deleting worker "+id, store.LostDeleted, func(ctx context.Context, tx pgx.Tx) (string, error) {
		err := tx.QueryRow(ctx, sqlLockIdentity, id).Scan()
		if err == nil {
			_, err = tx.Exec(ctx, sqlLockTelemetry, id)
		}
		if err == nil {
			err = tx.QueryRow(ctx, sqlLockByID, id).Scan(nil)
		}
		if err == nil {
			err = freeKeys(ctx, tx, id)
		}
		return id, orNone(err, errNoWorker)
	}, sqlDeleteWorker)
}

func freeKeys(ctx context.Context, tx pgx.Tx, worker string) error {
	tag, err := tx.Exec(ctx, sqlFreeKeys, worker)
	if err == nil && tag.RowsAffected() > 0 {
		_, err = tx.Exec(ctx, sqlKeysChanged)
	}
	return err
}

const sqlWorkerOfNumber = `/* worker_of_number */ SELECT id FROM workers WHERE number = $1`

// IDOf returns the id of the worker with a number. Error: NotFound.
func (w *Workers) IDOf(ctx context.Context, number uint32) (id string, err error) {
	return id, w.db.read("reading a worker's id").scan(ctx, errNoWorker, []any{&id}, sqlWorkerOfNumber, int64(number))
}

// leave makes the builds of the worker that lock locks pending again, and runs the statement
// end with the worker's id and args.
func (w *Workers) leave(
	ctx context.Context, doing, why string, lock func(context.Context, pgx.Tx) (id string, err error), end string, args ...any,
) (gone store.Departure, err error) {
	err = w.db.write(doing).requeue(ctx, func(ctx context.Context, tx pgx.Tx) (refs []store.BuildRef, err error) {
		if gone.WorkerID, err = lock(ctx, tx); err == nil {
			refs, err = returnBuilds(ctx, tx, gone.WorkerID, why, nil)
		}
		if err == nil {
			_, err = tx.Exec(ctx, end, append([]any{gone.WorkerID}, args...)...)
		}
		gone.Requeued = refs
		return refs, err
	})
	if err != nil {
		return store.Departure{}, err
	}
	return gone, nil
}
