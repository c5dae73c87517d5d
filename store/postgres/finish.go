package postgres

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Finish records a result. The files of a success are committed within the transaction, and
// a file that can't be committed rolls it back; the files of any other result are aborted.
// If the same worker repeats a result that was accepted, nothing changes and repeat is true.
//
// A result is accepted from the holder, from any worker for a build that was never
// assigned, and from the last holder for a build that is pending again. Errors:
// NotFound for an unknown build or worker, NotAssigned, StaleAttempt, Conflict if the build
// has ended otherwise, InvalidArgument for a success without a file. An Unavailable that
// wraps store.ErrOutcomeUnknown means that the result may have been stored; the files are
// then left as they are.
func (b *Builds) Finish(ctx context.Context, r store.Result, files ...store.Staged) (repeat bool, err error) {
	defer func() {
		if repeat || !r.Success || isCertain(err) {
			abortFiles(ctx, files)
		}
	}()
	if r.Success && r.File == nil {
		return false, store.NewError(store.InvalidArgument, "Missing result file")
	}
	if !r.Success {
		r.File = nil
		r.ErrorMessage = cmp.Or(store.ErrorText(r.ErrorMessage), store.MessageFailed)
	}
	op := b.db.write("finishing build " + r.BuildID)
	commit := op.committing(ctx, files)
	var blamed blame
	err = op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := lockRelation(ctx, tx, r)
		if err != nil {
			return err
		}
		if repeat, err = st.result(r); repeat || err != nil {
			return err
		}
		if blamed = (blame{}); r.Success && st.retry && b.cfg.Quarantine.Faults > 0 {
			if blamed, err = b.blame(ctx, tx, r); err != nil {
				return err
			}
		}
		if r.Success {
			if err := commit(); err != nil {
				return err
			}
		}
		return b.writeResult(ctx, tx, &st, r)
	})
	if err == nil && blamed.why != "" && b.cfg.Quarantined != nil {
		b.cfg.Quarantined(blamed.worker, blamed.why, blamed.status)
	}
	return repeat && err == nil, err
}

const sqlLockHealth = `/* lock_health */
SELECT true, attempts, coalesce(quarantine, ''), quarantines, rests_until > now(), held FROM workers WHERE id = $1 FOR NO KEY UPDATE`

const sqlLockBuild = `/* lock_build */ SELECT true, state, coalesce(worker_id, ''), coalesce(last_worker_id, ''), attempt, given_back, retry_root IS NOT NULL
FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) FOR UPDATE`

// lockRelation locks the worker, then the build, and returns their relation.
func lockRelation(ctx context.Context, tx pgx.Tx, r store.Result) (st relation, err error) {
	known, held, h := false, 0, store.WorkerHealth{}
	err = tx.QueryRow(ctx, sqlLockHealth, r.WorkerID).Scan(&known, &h.Attempts, &h.Quarantine, &h.Backoffs, &h.Resting, &held)
	if err := orNone(err, nil); err != nil {
		return st, fmt.Errorf("locking worker %s: %w", r.WorkerID, err)
	}
	st, err = lockBuild(ctx, tx, r.BuildID)
	st.workerKnown, st.held, st.health = known, held, h
	return st, err
}

// lockBuild locks a build and reads its state and holders. If it does not exist, buildKnown
// is false.
func lockBuild(ctx context.Context, tx pgx.Tx, id string) (st relation, err error) {
	err = tx.QueryRow(ctx, sqlLockBuild, id).Scan(&st.buildKnown, &st.state, &st.holder, &st.lastHolder, &st.attempt, &st.givenBack, &st.retry)
	if err = orNone(err, nil); err != nil {
		return st, fmt.Errorf("locking the build: %w", err)
	}
	return st, nil
}

// result returns an error if the result is refused, and whether it repeats the one that was
// accepted.
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

// sqlRetried finds the failed build of which $1 is a retry, and the worker on which it
// failed, unless that is $2. The first line of the retry's log names the build.
const sqlRetried = `/* retried */
SELECT o.worker_id, o.id FROM (
	SELECT facts ->> 'build' AS build FROM build_logs WHERE build = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY seq LIMIT 1
) l JOIN build_ids i ON i.id = l.build JOIN builds o ON o.seq = i.seq
WHERE o.state = 'failed' AND o.worker_id <> $2`

const sqlBlame = `/* blame */
UPDATE workers SET` + healthColumns + ` WHERE id = @worker RETURNING status, (SELECT pg_notify('takt', 'worker:changed ' || number) WHERE @rest::interval > interval '0')`

// blame is what a result means for another worker.
type blame struct {
	worker string
	why    string // why this quarantines the worker; "" if it does not
	status store.WorkerStatus
}

// blame records that the build of r had failed on another worker before r completed it.
// That worker's row is locked after those of r, out of order. So the transaction may deadlock
// with another one that locks rows of both: of two workers that complete each other's builds, of
// the blamed worker that delivers this build late or gives it back (it locks itself, then the
// build), or a repair of invariants. PostgreSQL then rolls one back, which is tried again.
func (b *Builds) blame(ctx context.Context, tx pgx.Tx, r store.Result) (other blame, err error) {
	var build string
	if err = tx.QueryRow(ctx, sqlRetried, r.BuildID, r.WorkerID).Scan(&other.worker, &build); err == nil {
		var h store.WorkerHealth
		err = tx.QueryRow(ctx, sqlLockHealth, other.worker).Scan(nil, &h.Attempts, &h.Quarantine, &h.Backoffs, &h.Resting, nil)
		was := h
		if rest := h.CompletedElsewhere(b.cfg.Quarantine, build); err == nil && h != was {
			args := pgx.NamedArgs{"worker": other.worker, "attempts": h.Attempts, "quarantine": h.Quarantine, "backoffs": h.Backoffs, "rest": rest}
			if rest > 0 {
				other.why = h.Quarantine
			}
			err = tx.QueryRow(ctx, sqlBlame, args).Scan(&other.status, nil)
		}
	}
	if err = orNone(err, nil); err != nil { // no row: build or worker were deleted
		return other, fmt.Errorf("judging the worker on which the build failed before: %w", err)
	}
	return other, nil
}

// sqlFinish ends a build. It frees a slot of the worker only if the build was held.
const sqlFinish = `/* finish */
WITH was AS MATERIALIZED (
	SELECT (state IN ('assigned', 'building'))::int AS freed FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = @build)
), b AS (
	UPDATE builds SET state = CASE WHEN @success THEN 'completed' ELSE 'failed' END, worker_id = @worker,
		error_message = @message, completed_at = now(), updated_at = now(), last_seen_at = now(), log_lines = log_lines + 1
	WHERE seq = (SELECT seq FROM build_ids WHERE id = @build) RETURNING seq, state, attempt, log_lines
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT seq, 'result', @name, @size, @digest, @location, @object, @due FROM b WHERE @success
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt)
	SELECT seq, log_lines, CASE WHEN @success THEN 'info' ELSE 'error' END, @line, state, @worker, attempt FROM b
)
UPDATE workers SET
	held = held - freed, last_seen_at = now(),` + healthColumns + `,
	completed = completed + @success::int, failed = failed + 1 - @success::int,
	status = CASE WHEN held > freed THEN 'building' WHEN status = 'offline' AND freed = 0 THEN 'offline' ELSE 'idle' END
FROM was WHERE id = @worker`

// writeResult ends the build. The rows of the build and its worker are locked.
func (b *Builds) writeResult(ctx context.Context, tx pgx.Tx, st *relation, r store.Result) error {
	args := pgx.NamedArgs{
		"build": r.BuildID, "worker": r.WorkerID, "success": r.Success, "line": "Build completed successfully",
		"message": nil, "name": nil, "size": nil, "digest": nil, "location": nil, "object": nil, "due": nil,
	}
	b.recordEnd(st, r, args)
	if r.Success {
		args["name"], args["size"], args["digest"] = r.File.Name, r.File.Size, r.File.SHA256[:]
		args["location"], args["object"], args["due"] = whereabouts(*r.File)
	} else {
		args["message"], args["line"] = r.ErrorMessage, failureLine(r.ErrorMessage)
	}
	if _, err := tx.Exec(ctx, sqlFinish, args); err != nil {
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
