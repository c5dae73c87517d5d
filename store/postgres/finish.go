package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
)

// Finish records a result. The files of a success get their names within the transaction; if
// one can't, the result is not recorded. The files of any other result are aborted. If the
// same worker repeats a result that was accepted, nothing changes.
//
// After a failure with an exit code that the build's submitter named, the build is pending again
// while attempts remain, and waits for its retry; see LetIn.
//
// A result is accepted from the holder, from any worker for a build that was never
// assigned, and from the last holder for a build that is pending again. Errors:
// NotFound for an unknown build or worker, NotAssigned, StaleAttempt, Conflict if the build
// has ended otherwise, InvalidArgument for a success without a file. An Unavailable that
// wraps store.ErrOutcomeUnknown means that the result may have been stored; the files are
// then left as they are.
//
// Results share transactions. Those of one build are recorded one after the other. ctx bounds
// the wait for a transaction, but not the transaction, whose renames can't be given up.
func (b *Builds) Finish(ctx context.Context, r store.Result, files ...store.Staged) (done store.Finished, err error) {
	defer func() {
		if done.Repeat || !r.Success || isCertain(err) {
			abortFiles(ctx, files)
		}
	}()
	if r.Success && r.File == nil {
		return done, store.NewError(store.InvalidArgument, "Missing result file")
	}
	if !r.Success {
		r.File = nil
		r.ErrorMessage = cmp.Or(store.ErrorText(r.ErrorMessage), store.MessageFailed)
	}
	op := b.db.write("finishing build " + r.BuildID)
	free, err := b.ending.take(ctx, r.BuildID)
	if err != nil {
		return done, op.shared(ctx, err)
	}
	defer free()
	e := &ending{Result: r, request: trace.SpanContextFromContext(ctx), alone: b.slowDisk.Load()}
	if r.Success {
		e.files = files
	}
	if !e.alone {
		err = op.shared(ctx, b.endings.Stay(ctx, e))
	}
	if err == nil && e.alone {
		err = b.recordEnds(ctx, op, []*ending{e})
	}
	if err == nil {
		err = op.failure(e.err)
	}
	if err == nil && e.blamed != nil && e.blamed.rest > 0 && b.cfg.Quarantined != nil {
		b.cfg.Quarantined(e.blamed.id, e.blamed.health.Quarantine, e.blamed.status)
	}
	if err != nil {
		return done, err
	}
	return e.finished(), nil
}

// finished returns what became of a result that was recorded.
func (e *ending) finished() store.Finished {
	return store.Finished{Repeat: e.repeat, Again: e.again || e.repeat && e.st.state == store.Pending, Was: e.was}
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
	case st.holder == "" && st.lastHolder == r.WorkerID && st.ended != "" && r.Success:
		return false, errStale()
	case st.holder == "" && st.lastHolder == r.WorkerID && !r.Success && (st.ended != "" || st.named(r.Ended)):
		return true, nil // the build is pending again already
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

// blame records that the build of e had failed on another worker before e completed it, and
// returns that worker if its record changes. Its row is locked after those of e, out of order.
// So the transaction may deadlock with another one that locks rows of both: of two workers that
// complete each other's builds, of the blamed worker that delivers this build late or gives it
// back (it locks itself, then the build), or a repair of invariants. PostgreSQL then rolls one
// back, which is tried again.
func (b *Builds) blame(ctx context.Context, c *pgx.Conn, e *ending) (*ender, error) {
	var id, build string
	other, err := &ender{}, c.QueryRow(ctx, sqlRetried, e.BuildID, e.WorkerID).Scan(&id, &build)
	if err == nil {
		err = c.QueryRow(ctx, sqlLockEnders, []string{id}).Scan(other.columns()...)
	}
	if err != nil { // no row: build or worker were deleted
		return nil, orNone(err, nil)
	}
	was := other.health
	if other.rest = other.health.CompletedElsewhere(b.cfg.Quarantine, build); other.health == was {
		return nil, nil //nolint:nilnil // nobody is blamed
	}
	return other, nil
}

// failureLine is the log line of a build that failed with message.
func failureLine(message string) string {
	if message == store.MessageFailed {
		return message
	}
	return store.MessageFailed + ": " + message
}
