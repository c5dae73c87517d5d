package postgres

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// quarantine lists builds that the database refuses both to assign and to fail, so that
// claims skip them. It is a hint: a new process finds them again when an assignment
// fails. Safe for concurrent use.
type quarantine struct {
	mu   sync.Mutex
	seqs []int64
}

func (l *quarantine) list() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64{}, l.seqs...)
}

func (l *quarantine) add(seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seqs = append(l.seqs, seq)
}

// isDataError reports whether the database refused a row. It is false for an outage, for
// contention and for a lost connection.
func isDataError(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Severity == "ERROR" && !isOutage(err) && !isContention(err)
}

// assignAlone serves a poll whose assignment failed by itself. If a build is the
// reason, that build is quarantined and the poll gets the next one.
func (q *Queue) assignAlone(ctx context.Context, t *turn, cause error) error {
	for range MaxBatch {
		found, err := q.quarantineNext(ctx, t.WorkerID)
		if err != nil {
			return err
		}
		if !found {
			break
		}
		if err = q.serve(ctx, []*turn{t}); !isDataError(err) {
			return err
		}
		cause = err
	}
	fail([]*turn{t}, cause)
	return nil
}

// sqlSuspects locks the first builds of the queue.
const sqlSuspects = `/* suspects */
SELECT seq, id, platform, submitted_at FROM builds WHERE state = 'pending' AND seq <> ALL ($1::bigint[])
ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED`

// suspect is a build that may be the reason of a refusal.
type suspect struct {
	Seq         int64
	ID          string
	Platform    store.Platform
	SubmittedAt time.Time
}

// sqlTryAssign assigns build $1 to worker $2 as sqlAssignBuilds would.
const sqlTryAssign = `/* try_assign */
WITH b AS (
	UPDATE builds SET state = 'assigned', worker_id = $2, attempt = attempt + 1, started_at = now(),
		last_seen_at = NULL, updated_at = now(), log_lines = log_lines + 1
	WHERE seq = $1 RETURNING seq, attempt, log_lines
)
INSERT INTO build_logs (build, number, message, kind, worker, attempt)
SELECT seq, log_lines, 'Trial', 'assigned', $2, attempt FROM b`

// quarantineNext tries the first builds of the queue one by one and quarantines the
// first that can't be assigned. It reports whether there was one.
func (q *Queue) quarantineNext(ctx context.Context, worker string) (found bool, err error) {
	err = q.db.write("looking for a build that can't be assigned").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		found = false
		suspects, err := collect(ctx, tx, pgx.RowToStructByPos[suspect], sqlSuspects, q.skip.list())
		if err != nil {
			return err
		}
		for _, s := range suspects {
			cause, err := attempt(ctx, tx, errUndo, sqlTryAssign, s.Seq, worker)
			if err != nil {
				return err
			}
			if cause != nil {
				found = true
				return q.isolate(ctx, tx, s, cause)
			}
		}
		return nil
	})
	return found && err == nil, err
}

// errUndo rolls a trial back.
var errUndo = errors.New("undo")

// attempt runs a statement in a savepoint, which it rolls back if undo is not nil.
// refused is the database's reason for a refusal.
func attempt(ctx context.Context, tx pgx.Tx, undo error, sql string, args ...any) (refused, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return cmp.Or(err, undo)
	})
	switch {
	case isDataError(err):
		return err, nil
	case errors.Is(err, errUndo):
		return nil, nil
	}
	return nil, err
}

const sqlFailBuild = `/* fail_build */
UPDATE builds SET state = 'failed', error_message = $2, completed_at = now(), updated_at = now(), log_lines = log_lines + 1 WHERE seq = $1`

// sqlLogRefused has no number for the line if sqlFailBuild was refused.
const sqlLogRefused = `/* log_refused */
INSERT INTO build_logs (build, number, level, message, kind, facts)
SELECT seq, CASE WHEN state = 'failed' THEN log_lines END, 'error', $2, 'failed', '{"reason": "unassignable"}' FROM builds WHERE seq = $1`

// messageQuarantined is the error message of a build that can't be assigned, for its
// submitter.
const messageQuarantined = "Build cannot be assigned: the database refuses it"

// isolate fails the build with a visible message. If the database refuses even that,
// claims skip the build from now on.
func (q *Queue) isolate(ctx context.Context, tx pgx.Tx, s suspect, cause error) error {
	refused, err := attempt(ctx, tx, nil, sqlFailBuild, s.Seq, messageQuarantined)
	if err != nil {
		return err
	}
	if refused != nil {
		q.skip.add(s.Seq)
	}
	if _, err := attempt(ctx, tx, nil, sqlLogRefused, s.Seq, messageQuarantined); err != nil {
		return err
	}
	if q.cfg.Quarantined != nil {
		q.cfg.Quarantined(store.BuildRef{ID: s.ID, Platform: s.Platform, SubmittedAt: s.SubmittedAt.UTC()}, cause)
	}
	return nil
}
