package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	// sqlLockByToken locks worker number $1 if it has used no higher counter than $2.
	sqlLockByToken = `/* lock_by_token */ SELECT id FROM workers WHERE number = $1 AND used <= $2 FOR NO KEY UPDATE`
	sqlLockByID    = `/* lock_by_id */ SELECT id FROM workers WHERE id = $1 FOR NO KEY UPDATE`
	// sqlLockIdentity locks a worker's identity, which a registration locks first too.
	sqlLockIdentity = `/* lock_identity */ SELECT FROM worker_details WHERE worker_id = $1 FOR UPDATE`
	// sqlLockTelemetry comes before the lock of the worker, as in Builds.Telemetry.
	sqlLockTelemetry = `/* lock_telemetry */ SELECT FROM worker_telemetry WHERE worker_id = $1 FOR UPDATE`

	// sqlTakeOffline records that worker $1 has left, frees its id for any process and raises its
	// counter by $2, which supersedes all its tokens.
	sqlTakeOffline = `/* take_offline */
WITH w AS (
	UPDATE workers SET status = 'offline', held = 0, used = used + $2, instance = NULL, left_at = now() WHERE id = $1 RETURNING number
)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`

	// sqlDeleteWorker removes a worker and everything about it: reports and telemetry go
	// with worker_details. Its share in the mean processor load stays.
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

// unregister locks the worker with the statement lock. If there is no worker, it
// returns nobody's error.
func (w *Workers) unregister(ctx context.Context, lock string, nobody func() error, args ...any) (store.Departure, error) {
	return w.leave(ctx, "unregistering", store.LostUnregistered, func(ctx context.Context, tx pgx.Tx) (id string, err error) {
		err = orNone(tx.QueryRow(ctx, lock, args...).Scan(&id), nobody)
		return id, err
	}, sqlTakeOffline, registrationStep)
}

// Delete removes a worker: its tokens are void, and its builds are pending again at
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
		return id, orNone(err, errNoWorker)
	}, sqlDeleteWorker)
}

// leave requeues the builds of the worker that lock locks, and runs the statement end with
// the worker's id and args.
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
