package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Unregister takes the worker of a valid token offline, voids its tokens and puts
// its builds back where they stood in the queue; no attempt is used up. Error:
// InvalidToken.
func (w *Workers) Unregister(ctx context.Context, token store.TokenHash) (store.Departure, error) {
	return w.unregister(ctx, func(ctx context.Context, tx pgx.Tx) (string, error) {
		id, err := lockByToken(ctx, tx, token)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", store.NewError(store.InvalidToken, "Invalid worker token")
		}
		return id, err
	})
}

// UnregisterID does the same for a worker named by its id. Error: NotFound.
func (w *Workers) UnregisterID(ctx context.Context, id string) (store.Departure, error) {
	return w.unregister(ctx, func(ctx context.Context, tx pgx.Tx) (string, error) {
		err := tx.QueryRow(ctx, sqlLockWorker, id).Scan(nil)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", errNoWorker()
		}
		return id, err
	})
}

// sqlLockByToken finds the worker of the token $2 of family $1.
const sqlLockByToken = `
SELECT id FROM workers WHERE
	current_family = $1 AND current_hash = $2 AND current_expires > now() OR
	previous_family = $1 AND previous_hash = $2 AND previous_expires > now()
LIMIT 1 FOR NO KEY UPDATE`

func lockByToken(ctx context.Context, tx pgx.Tx, token store.TokenHash) (id string, err error) {
	err = tx.QueryRow(ctx, sqlLockByToken, token.Family(), token[:]).Scan(&id)
	return id, err
}

// sqlReturnBuilds makes the builds of worker $1 pending again; $2 says what it
// did. The worker is
// locked, so none can be added or end meanwhile.
const sqlReturnBuilds = `
WITH b AS (
	UPDATE builds SET state = 'pending', worker_id = NULL, last_worker_id = $1,
		started_at = NULL, last_seen_at = NULL, updated_at = now()
	WHERE worker_id = $1 AND state IN ('assigned', 'building')
	RETURNING seq, id, platform, place
), l AS (
	INSERT INTO build_logs (build, level, message)
	SELECT seq, 'warn', 'Worker ' || $1 || ' ' || $2::text || ', build is pending again' FROM b
)
SELECT id, platform, place FROM b ORDER BY place`

const sqlTakeOffline = `
UPDATE workers SET status = 'offline', held = 0, poll_seq = poll_seq + 1,
	current_family = NULL, current_hash = NULL, current_expires = NULL,
	previous_family = NULL, previous_hash = NULL, previous_expires = NULL
WHERE id = $1`

func (w *Workers) unregister(
	ctx context.Context, lock func(context.Context, pgx.Tx) (string, error),
) (gone store.Departure, err error) {
	var places []int64
	err = w.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		id, err := lock(ctx, tx)
		if err != nil {
			return fmt.Errorf("locking the worker: %w", err)
		}
		gone.WorkerID = id
		if gone.Requeued, places, err = returnBuilds(ctx, tx, id, "unregistered"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlTakeOffline, id); err != nil {
			return fmt.Errorf("taking worker %s offline: %w", id, err)
		}
		return notifyJobs(ctx, tx, gone.Requeued)
	})
	if err != nil {
		return store.Departure{}, fmt.Errorf("unregistering: %w", err)
	}
	w.db.requeued(places)
	return gone, nil
}

// returnBuilds gives the builds of a locked worker back, in their order, and says
// where they are in the queue.
func returnBuilds(ctx context.Context, tx pgx.Tx, worker, did string) (refs []store.BuildRef, places []int64, err error) {
	rows, err := tx.Query(ctx, sqlReturnBuilds, worker, did)
	if err == nil {
		refs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r store.BuildRef, err error) {
			var place int64
			err = row.Scan(&r.ID, &r.Platform, &place)
			places = append(places, place)
			return r, err
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("returning builds of worker %s: %w", worker, err)
	}
	return refs, places, nil
}

const sqlNotify = `SELECT pg_notify('takt', $1)`

// notifyJobs tells every controller at the commit that builds wait: once per
// transaction, with the platform if they share one.
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
