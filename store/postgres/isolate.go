package postgres

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// skipList has the builds that the database refused both to assign and to fail, which claims
// skip. It is lost when the process ends, and built again as assignments fail. Safe for
// concurrent use.
type skipList struct {
	mu   sync.Mutex // guards seqs
	seqs []int64
}

func (l *skipList) list() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64{}, l.seqs...)
}

func (l *skipList) add(seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seqs = append(l.seqs, seq)
}

// isDataError reports whether the database refused a statement because of its data. It is
// false for an outage, contention and a lost connection.
func isDataError(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Severity == "ERROR" && !isOutage(err) && !isContention(err)
}

// assignAlone continues with a poll that failed with cause when it was served alone. If the
// database refused the build, it isolates the build and serves the poll again. If it refused one
// of several, the poll gets one at a time from now on.
func (q *Queue) assignAlone(ctx context.Context, t *turn, cause error) error {
	for range MaxBatch {
		switch {
		case t.refused != nil:
			if err := q.isolate(ctx, *t.refused, cause); err != nil {
				return err
			}
			t.refused = nil
		case t.New > 1:
			t.New = 1
		default:
			fail([]*turn{t}, cause)
			return nil
		}
		if cause = q.serve(ctx, []*turn{t}); !isDataError(cause) {
			return cause
		}
	}
	fail([]*turn{t}, cause)
	return nil
}

const sqlFailBuild = `/* fail_build */
UPDATE builds SET state = 'failed', error_message = $2, ended = 'unassignable', completed_at = now(), updated_at = now(), log_lines = log_lines + 1
WHERE seq = $1 AND state = 'pending'`

// sqlLogRefused inserts a line without a number if sqlFailBuild was refused, because then
// log_lines was not raised.
const sqlLogRefused = `/* log_refused */
INSERT INTO build_logs (build, number, level, message, kind, facts)
SELECT seq, CASE WHEN state = 'failed' THEN log_lines END, 'error', $2, 'failed', '{"reason": "unassignable"}' FROM builds WHERE seq = $1`

// messageUnassignable is the error message, for its submitter, of a build that can't be
// assigned.
const messageUnassignable = "Build cannot be assigned: the database refuses it"

// isolate fails a build with a message. If the database refuses that too, claims skip the
// build from now on.
func (q *Queue) isolate(ctx context.Context, b lockedBuild, cause error) error {
	err := q.db.write("failing a build that can't be assigned").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{sqlFailBuild, sqlLogRefused} {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql, b.seq, messageUnassignable)
				return err
			})
			switch {
			case isDataError(err) && sql == sqlFailBuild:
				q.skip.add(b.seq)
			case err != nil && !isDataError(err):
				return err
			}
		}
		return nil
	})
	if err == nil && q.cfg.Quarantined != nil {
		q.cfg.Quarantined(store.BuildRef{ID: b.BuildID, Platform: b.Platform, ClassID: b.ClassID, SubmittedAt: b.SubmittedAt}, cause)
	}
	return err
}
