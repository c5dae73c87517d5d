package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// beatInterval is how often signs of life of one build are written at most, in
// seconds: a tenth of the shortest sensible time-out.
const beatInterval = 1.0

// relation is where a build and a worker stand to each other.
type relation struct {
	workerKnown bool
	buildKnown  bool
	state       store.BuildState
	holder      string // worker_id
	lastHolder  string // last_worker_id
	attempt     int
	// due is true when a sign of life has to be written.
	due bool
}

// sqlRelation: $1 build, $2 worker, $3 beatInterval.
const sqlRelation = `
SELECT w.id IS NOT NULL, b.id IS NOT NULL, coalesce(b.state, ''), coalesce(b.worker_id, ''),
	coalesce(b.last_worker_id, ''), coalesce(b.attempt, 0),
	coalesce(b.state = 'assigned' OR b.last_seen_at IS NULL OR w.status = 'offline'
		OR least(b.last_seen_at, w.last_seen_at) < now() - make_interval(secs => $3), true)
FROM (SELECT) one LEFT JOIN builds b ON b.seq = (SELECT seq FROM build_ids WHERE id = $1) LEFT JOIN workers w ON w.id = $2`

func readRelation(ctx context.Context, q querier, s store.Beat) (st relation, err error) {
	err = q.QueryRow(ctx, sqlRelation, s.BuildID, s.WorkerID, beatInterval).Scan(
		&st.workerKnown, &st.buildKnown, &st.state, &st.holder, &st.lastHolder, &st.attempt, &st.due)
	if err != nil {
		return st, fmt.Errorf("reading build %s: %w", s.BuildID, err)
	}
	return st, nil
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// errStale is the answer to a worker whose attempt is over.
func errStale() error {
	return store.NewError(store.StaleAttempt, "A newer attempt of this build exists")
}

// errNotAssigned is the answer to a worker that does not hold the build.
func errNotAssigned() error {
	return store.NewError(store.NotAssigned, "Build not assigned to this worker")
}

// access checks the worker access rule of a build that attempt of worker works
// on; attempt 0 means that it did not say.
func (st relation) access(worker string, attempt int) error {
	switch {
	case !st.workerKnown:
		return store.NewError(store.Forbidden, "Unknown worker")
	case !st.buildKnown:
		return errNoBuild()
	case attempt > 0 && attempt < st.attempt:
		return errStale()
	case st.holder != worker:
		return errNotAssigned()
	}
	return nil
}

// Held returns the build if the worker holds it at this moment, without leaving
// a trace. Errors: Forbidden for an unknown worker, NotFound, NotAssigned,
// StaleAttempt.
func (b *Builds) Held(ctx context.Context, s store.Beat) (build store.Build, err error) {
	err = b.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		st, err := readRelation(ctx, c, s)
		if err != nil {
			return err
		}
		if err := st.access(s.WorkerID, s.Attempt); err != nil {
			return err
		}
		if !st.state.Held() {
			return errNotAssigned()
		}
		build, err = findBuild(ctx, c, s.BuildID)
		return err
	})
	return build, err
}

// Touch records a sign of life: it acknowledges an assigned build, which is
// building from then on, refreshes build and worker (at most once a second) and
// writes s.Logs. A build that its worker has ended takes late logs and changes no
// more. Errors as Held.
func (b *Builds) Touch(ctx context.Context, s store.Beat) (reply store.BeatReply, err error) {
	err = b.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		if err := st.access(s.WorkerID, s.Attempt); err != nil {
			return err
		}
		reply.Began = st.state == store.Assigned
		return b.touch(ctx, tx, st, s)
	})
	return reply, err
}

// touch writes what a permitted sign brings.
func (b *Builds) touch(ctx context.Context, tx pgx.Tx, st relation, s store.Beat) error {
	if st.due {
		if err := refresh(ctx, tx, s, st.attempt); err != nil {
			return err
		}
	}
	if len(s.Logs) == 0 {
		return nil
	}
	return appendLogs(ctx, tx, s.BuildID, s.WorkerID, s.Logs)
}

// sqlRefresh locks the worker, then the build: the look-up of w stands in the
// condition of the second update. It returns whether the worker still has the
// build in attempt $3; then it is refreshed, unless its state is final.
const sqlRefresh = `
WITH w AS (
	UPDATE workers SET last_seen_at = now(), status = CASE WHEN held > 0 THEN 'building' ELSE status END
	WHERE id = $2 RETURNING id
), b AS (
	UPDATE builds SET
		state = CASE state WHEN 'assigned' THEN 'building' ELSE state END,
		updated_at = CASE state WHEN 'assigned' THEN now() ELSE updated_at END,
		last_seen_at = now()
	WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND worker_id = (SELECT id FROM w) AND attempt = $3 AND state IN ('assigned', 'building')
	RETURNING 1
)
SELECT count(*) FROM b`

// refresh records a sign of life of a build in the given attempt. It is NotAssigned
// when the build was taken from the worker since the caller looked.
func refresh(ctx context.Context, tx pgx.Tx, s store.Beat, attempt int) error {
	var n int
	if err := tx.QueryRow(ctx, sqlRefresh, s.BuildID, s.WorkerID, attempt).Scan(&n); err != nil {
		return fmt.Errorf("touching build %s: %w", s.BuildID, err)
	}
	if n == 1 {
		return nil
	}
	// A final build is not refreshed and need not be; anything else is a loss.
	st, err := readRelation(ctx, tx, s)
	if err != nil {
		return err
	}
	return st.access(s.WorkerID, s.Attempt)
}

// Heartbeat records a sign of life as Touch does, for a worker that asks whether
// to go on. Cancelled tells it to stop: the build was cancelled, given up or
// given to somebody else. A build that waits again after its attempt was lost is
// not cancelled: its result is still welcome. Errors: NotFound, NotAssigned,
// StaleAttempt.
func (b *Builds) Heartbeat(ctx context.Context, s store.Beat) (reply store.BeatReply, err error) {
	err = b.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		means, err := st.heartbeat(s)
		if err != nil || means != verdictHolds {
			reply.Cancelled = means == verdictStop
			return err
		}
		reply.Began = st.state == store.Assigned
		return b.touch(ctx, tx, st, s)
	})
	return reply, err
}

// verdict is what a heartbeat means.
type verdict uint8

const (
	verdictHolds verdict = iota // the build is this worker's: refresh it
	verdictStop                 // it was, and never will be again
	verdictWaits                // it was, and waits for anybody
)

func (st relation) heartbeat(s store.Beat) (verdict, error) {
	was := st.holder == s.WorkerID || st.lastHolder == s.WorkerID
	switch {
	case !st.buildKnown:
		return 0, errNoBuild()
	case s.Attempt > 0 && s.Attempt < st.attempt:
		return 0, errStale()
	case !st.workerKnown || !was:
		return 0, errNotAssigned()
	case st.state == store.Cancelled, st.state == store.Failed:
		return verdictStop, nil
	case st.holder == s.WorkerID:
		return verdictHolds, nil
	case st.state == store.Pending:
		return verdictWaits, nil
	}
	return verdictStop, nil
}
