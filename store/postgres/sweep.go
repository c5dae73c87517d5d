package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sweepKey is the advisory lock that lets one controller sweep at a time.
const sweepKey = 0x74616b74_73776570 // "taktswep"

const sqlTrySweep = `/* try_sweep */ SELECT pg_try_advisory_xact_lock($1)`

// lostColumns sets the columns of a build whose attempt is lost. $3 is as in attemptsLeft, $4 the
// message of a build that has no attempts left.
const lostColumns = `
		state = CASE WHEN ` + attemptsLeft + ` THEN 'pending' ELSE 'failed' END,
		lost = lost + 1,
		last_worker_id = worker_id,
		worker_id     = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE worker_id END,
		started_at    = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE started_at END,
		last_seen_at  = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE last_seen_at END,
		completed_at  = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE now() END,
		waiting_since = CASE WHEN ` + attemptsLeft + ` THEN now() ELSE waiting_since END,
		ended         = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE 'lost' END,
		error_message = CASE WHEN ` + attemptsLeft + ` THEN NULL ELSE $4 END,
		updated_at = now(), log_lines = log_lines + 1`

// sqlSweep finds silent builds and workers by the database's clock, in one statement: $1
// build timeout, $2 worker timeout, $3 and $4 as in lostColumns, $5 the workers to sweep,
// NULL for all. It does nothing if the clock is more than $7 ahead of $6, which may be NULL.
//
// For each lost attempt it returns when that started, although the update clears it, because
// the subquery reads the statement's snapshot.
//
// It locks the workers concerned, then their silent builds; the count makes it lock all the
// workers first. It skips rows that another transaction has locked. A build that gets a heartbeat
// meanwhile is not taken, because the conditions are checked again on the locked row.
const sqlSweep = `/* sweep */
WITH clock AS MATERIALIZED (
	SELECT coalesce(clock_timestamp() - $6::timestamptz > $7::interval, false) AS step
), w AS MATERIALIZED (
	SELECT id, status FROM workers WHERE NOT (SELECT step FROM clock) AND ($5::text[] IS NULL OR id = ANY ($5)) AND (id IN (
		SELECT worker_id FROM builds
		WHERE state IN ('assigned', 'building') AND coalesce(last_seen_at, started_at) < now() - $1::interval
	) OR status <> 'offline' AND last_seen_at < now() - $2::interval)
	FOR NO KEY UPDATE SKIP LOCKED
), silent AS MATERIALIZED (
	SELECT seq FROM builds
	WHERE (SELECT count(*) FROM w) > 0
		AND state IN ('assigned', 'building') AND coalesce(last_seen_at, started_at) < now() - $1::interval
		AND worker_id IN (SELECT id FROM w)
	FOR NO KEY UPDATE SKIP LOCKED
), b AS (
	UPDATE builds SET` + lostColumns + `
	WHERE seq IN (SELECT seq FROM silent)
		AND state IN ('assigned', 'building') AND coalesce(last_seen_at, started_at) < now() - $1::interval
	RETURNING seq, id, platform, class, position, state, attempt, last_worker_id AS worker, submitted_at, log_lines,
		(SELECT started_at FROM builds was WHERE was.seq = builds.seq) AS started
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, CASE state WHEN 'pending' THEN 'warn' ELSE 'error' END, CASE state
		WHEN 'pending' THEN 'No sign of life from worker ' || worker || ': attempt ' || attempt || ' is lost, build is pending again'
		ELSE $4 END, CASE state WHEN 'pending' THEN 'requeued' ELSE 'failed' END,
		worker, attempt, '{"reason": "silent"}'
	FROM b
), u AS (
	UPDATE workers SET
		held = held - n.lost,
		status = CASE WHEN last_seen_at < now() - $2::interval THEN 'offline'
			WHEN held > n.lost THEN 'building' WHEN workers.status = 'offline' THEN 'offline' ELSE 'idle' END
	FROM (SELECT w.id, w.status, count(b.seq)::int AS lost FROM w LEFT JOIN b ON b.worker = w.id GROUP BY w.id, w.status) n
	WHERE workers.id = n.id
	RETURNING workers.id, workers.status, n.status AS was
)
SELECT state, id, platform, worker, attempt, submitted_at, started, position, class FROM b
UNION ALL
SELECT 'offline', id, '', '', 0, now(), now(), 0, 0 FROM u WHERE status = 'offline' AND was <> 'offline'
UNION ALL
SELECT 'clock', '', '', '', 0, now(), now(), 0, 0 FROM clock WHERE step
ORDER BY position, id`

// Sweep takes builds that had no heartbeat for Timeouts.BuildTimeout from their workers, and takes
// workers offline that were silent for Timeouts.WorkerTimeout. The build's attempt is lost.
// While attempts remain, the build is pending again at its old position; otherwise it
// fails. One controller sweeps at a time; the others get Skipped.
//
// Workers and builds whose rows another transaction has locked are left for the next
// sweep. Sweep fails with Unavailable if it takes longer than Sweep.Patience to begin,
// because workers could not send heartbeats meanwhile. It does nothing if the database's clock
// was set forward by more than store.MaxClockStep since Sweep.Clock was read. If the clock
// was set back, no build is taken either, and silence is noticed later by as much.
//
// If the database refuses to change a worker or its builds, these stay as they are and the
// error says so. The result then still has what was done for the others.
func (q *Queue) Sweep(ctx context.Context, s store.Sweep) (result store.SweepResult, err error) {
	var refused error
	asked := time.Now().Round(0) // wall clock only, because it goes on while the machine is suspended
	err = q.db.write("sweeping").requeue(ctx, func(ctx context.Context, tx pgx.Tx) (_ []store.BuildRef, err error) {
		var mine bool
		result, refused = store.SweepResult{}, nil
		if err := tx.QueryRow(ctx, sqlTrySweep, int64(sweepKey)).Scan(&mine); err != nil {
			return nil, err
		}
		if !mine {
			result.Skipped = true
			return nil, nil
		}
		// The statement judges by now(), which is the beginning of the transaction.
		if took := time.Now().Round(0).Sub(asked); took > s.Patience {
			return nil, store.NewUnavailable("The database is too slow to tell who is silent", nil)
		}
		result, err = sweep(ctx, tx, s, nil)
		if isDataError(err) {
			result, refused, err = sweepApart(ctx, tx, s)
		}
		return result.Requeued, err
	})
	if err != nil {
		return store.SweepResult{}, err
	}
	return result, refused
}

// sweep sweeps workers, or all of them if that is nil, in a savepoint of tx.
func sweep(ctx context.Context, tx pgx.Tx, s store.Sweep, workers []string) (result store.SweepResult, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		var expected time.Time
		if !s.Clock.At.IsZero() {
			expected = s.Clock.Then(time.Now())
		}
		rows, _ := tx.Query(ctx, sqlSweep, s.Timeouts.BuildTimeout, s.Timeouts.WorkerTimeout, max(s.Rule.MaxAttempts, 1),
			store.MessageTimeout, workers, orNull(expected), store.MaxClockStep) // its error is that of the rows
		result, err = scanSweep(rows)
		return err
	})
	return result, err
}

const sqlSweepable = `/* sweepable */ SELECT id FROM workers WHERE status <> 'offline' OR held > 0 ORDER BY id`

// sweepApart sweeps the workers one by one, so that a row that the database refuses does not
// prevent the sweep of others. refused joins the errors of those refused.
func sweepApart(ctx context.Context, tx pgx.Tx, s store.Sweep) (result store.SweepResult, refused, err error) {
	ids, err := collect(ctx, tx, pgx.RowTo[string], sqlSweepable)
	if err != nil {
		return result, nil, err
	}
	for _, id := range ids {
		r, err := sweep(ctx, tx, s, []string{id})
		switch {
		case isDataError(err):
			refused = errors.Join(refused, fmt.Errorf("sweeping worker %s: %w", id, err))
		case err != nil:
			return result, nil, err
		}
		result.Requeued = append(result.Requeued, r.Requeued...)
		result.Failed = append(result.Failed, r.Failed...)
		result.Offline = append(result.Offline, r.Offline...)
	}
	return result, refused, nil
}

// scanSweep reads the rows of sqlSweep and sqlLoseUnlisted.
func scanSweep(rows pgx.Rows) (r store.SweepResult, err error) {
	var what string
	var b store.BuildRef
	_, err = pgx.ForEachRow(rows, []any{&what, &b.ID, &b.Platform, &b.WorkerID, &b.Attempt, &b.SubmittedAt, &b.StartedAt, &b.Position, &b.ClassID}, func() error {
		switch what {
		case string(store.Pending):
			r.Requeued = append(r.Requeued, b)
		case string(store.Failed):
			r.Failed = append(r.Failed, b)
		case "clock":
			r.ClockStep = true
		default:
			r.Offline = append(r.Offline, b.ID)
		}
		return nil
	})
	return r, err
}
