package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Finish records a result. commit is called before the transaction ends, to give the
// result's file its name; its error takes everything back. The identical repeat
// of an accepted result changes nothing, does not call commit and answers repeat.
//
// Accepted are results of the holder, of anybody for a build that was never
// assigned, and of the last holder for one that waits again. Errors: NotFound,
// NotAssigned, StaleAttempt, Conflict when the build ended otherwise,
// InvalidArgument for a success without a file; Unavailable, wrapping
// store.ErrOutcomeUnknown when the result and its file may stand.
func (b *Builds) Finish(ctx context.Context, r store.Result, commit func() error) (repeat bool, err error) {
	if r.Success && r.File == nil {
		return false, store.NewError(store.InvalidArgument, "Missing result file")
	}
	if !r.Success {
		r.File = nil
		if r.ErrorMessage = store.Text(r.ErrorMessage); r.ErrorMessage == "" {
			r.ErrorMessage = store.MessageFailed
		}
	}
	err = b.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := lockStanding(ctx, tx, r)
		if err != nil {
			return err
		}
		if repeat, err = st.result(r); repeat || err != nil {
			return err
		}
		if commit != nil && r.Success {
			if err := commit(); err != nil {
				return err
			}
		}
		return writeResult(ctx, tx, r)
	})
	if err != nil {
		return false, fmt.Errorf("finishing build %s: %w", r.BuildID, err)
	}
	return repeat, nil
}

const sqlLockWorker = `SELECT true FROM workers WHERE id = $1 FOR NO KEY UPDATE`

const sqlLockBuild = `SELECT true, state, coalesce(worker_id, ''), coalesce(last_worker_id, ''), attempt
FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) FOR UPDATE`

// lockStanding locks the worker and then the build, and reads how they stand.
func lockStanding(ctx context.Context, tx pgx.Tx, r store.Result) (st relation, err error) {
	err = tx.QueryRow(ctx, sqlLockWorker, r.WorkerID).Scan(&st.workerKnown)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return st, fmt.Errorf("locking worker %s: %w", r.WorkerID, err)
	}
	err = tx.QueryRow(ctx, sqlLockBuild, r.BuildID).Scan(
		&st.buildKnown, &st.state, &st.holder, &st.lastHolder, &st.attempt)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return st, fmt.Errorf("locking the build: %w", err)
	}
	return st, nil
}

// result judges a result: take it (false, nil), know it already, or refuse it.
func (st relation) result(r store.Result) (repeat bool, err error) {
	switch {
	case !st.buildKnown:
		return false, errNoBuild()
	case !st.workerKnown:
		return false, errNoWorker()
	case r.Attempt > 0 && r.Attempt < st.attempt:
		return false, errStale()
	case st.state.Final():
		same := st.state == store.Completed && r.Success || st.state == store.Failed && !r.Success
		if same && st.holder == r.WorkerID {
			return true, nil
		}
		return false, store.NewError(store.Conflict, "Build already finished")
	case st.holder == r.WorkerID:
		return false, nil
	case st.holder == "" && (st.attempt == 0 || st.lastHolder == r.WorkerID):
		return false, nil
	}
	return false, errNotAssigned()
}

// sqlFinish ends build $1 of worker $2: $3 success, $4 message or NULL, $5 to $7
// and $9 to $11 the result's file. The worker is freed of it only if it was the holder.
const sqlFinish = `
WITH was AS MATERIALIZED (
	SELECT (state IN ('assigned', 'building'))::int AS freed FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)
), b AS (
	UPDATE builds SET state = CASE WHEN $3 THEN 'completed' ELSE 'failed' END, worker_id = $2,
		error_message = $4, completed_at = now(), updated_at = now(), last_seen_at = now()
	WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) RETURNING seq
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT seq, 'result', $5, $6, $7, $9, $10, $11 FROM b WHERE $3
), l AS (
	INSERT INTO build_logs (build, level, message)
	SELECT seq, CASE WHEN $3 THEN 'info' ELSE 'error' END, $8 FROM b
)
UPDATE workers SET
	held = held - freed, last_seen_at = now(),
	completed = completed + $3::int, failed = failed + 1 - $3::int,
	status = CASE WHEN held > freed THEN 'building' WHEN status = 'offline' AND freed = 0 THEN 'offline' ELSE 'idle' END
FROM was WHERE id = $2`

// writeResult ends the build. Both rows are locked.
func writeResult(ctx context.Context, tx pgx.Tx, r store.Result) error {
	line := "Build completed successfully"
	var message, name, object *string
	var size *int64
	var digest []byte
	location, due := string(store.OnDisk), (*time.Time)(nil)
	if r.Success {
		name, size, digest = &r.File.Name, &r.File.Size, r.File.SHA256[:]
		location, object, due = whereabouts(*r.File)
	} else {
		message, line = &r.ErrorMessage, failureLine(r.ErrorMessage)
	}
	_, err := tx.Exec(ctx, sqlFinish, r.BuildID, r.WorkerID, r.Success, message, name, size, digest, line,
		location, object, due)
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// failureLine is the log line of a build that failed with message.
func failureLine(message string) string {
	if message == store.MessageFailed {
		return message
	}
	return store.MessageFailed + ": " + message
}
