package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// beatInterval is the shortest time between two written beats of one build, in seconds.
// It is a tenth of the shortest sensible time-out.
const beatInterval = 1.0

// relation is how a build and a worker relate to each other.
type relation struct {
	workerKnown bool
	buildKnown  bool
	state       store.BuildState
	holder      string // worker_id
	lastHolder  string // last_worker_id
	attempt     int
	// due is true when a beat has to be written.
	due bool
}

// sqlRelation: $1 build, $2 worker, $3 beatInterval.
const sqlRelation = `/* relation */
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

// errStale is the answer to a worker whose attempt is over.
func errStale() error {
	return store.NewError(store.StaleAttempt, "A newer attempt of this build exists")
}

// errNotAssigned is the answer to a worker that does not hold the build.
func errNotAssigned() error {
	return store.NewError(store.NotAssigned, "Build not assigned to this worker")
}

// access checks that worker may work on the build in this attempt; attempt 0 means that
// the worker did not name one.
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

// Held returns the build if the worker holds it now. It writes nothing. Errors:
// Forbidden for an unknown worker, NotFound, NotAssigned, StaleAttempt.
func (b *Builds) Held(ctx context.Context, s store.Beat) (build store.Build, err error) {
	err = b.db.read("reading a held build").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
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

// Touch records a beat. It acknowledges an assigned build, which is building from then
// on, refreshes build and worker (at most once a second) and writes s.Logs. A build
// that its worker has ended accepts late logs but does not change otherwise. Errors as
// Held.
func (b *Builds) Touch(ctx context.Context, s store.Beat) (store.BeatReply, error) {
	return b.beat(ctx, s, func(context.Context, pgx.Tx) error { return nil })
}

// beat records a permitted beat after keep has written in the same transaction.
func (b *Builds) beat(ctx context.Context, s store.Beat, keep func(context.Context, pgx.Tx) error) (reply store.BeatReply, err error) {
	err = b.db.write("recording a beat").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		if err := st.access(s.WorkerID, s.Attempt); err != nil {
			return err
		}
		if err := keep(ctx, tx); err != nil {
			return err
		}
		reply.Began = st.state == store.Assigned
		return touch(ctx, tx, st, s)
	})
	return reply, err
}

// touch writes what a permitted beat brings.
func touch(ctx context.Context, tx pgx.Tx, st relation, s store.Beat) error {
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

// sqlRefresh locks the worker, then the build, because the look-up of w stands in the
// condition of the second update. It returns whether the worker still has the build in
// attempt $3. If so, the build is refreshed unless its state is final.
const sqlRefresh = `/* refresh */
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

// refresh records a beat of a build in the given attempt. It fails with NotAssigned if
// the worker lost the build after the caller read the relation.
func refresh(ctx context.Context, tx pgx.Tx, s store.Beat, attempt int) error {
	var n int
	if err := tx.QueryRow(ctx, sqlRefresh, s.BuildID, s.WorkerID, attempt).Scan(&n); err != nil {
		return fmt.Errorf("touching build %s: %w", s.BuildID, err)
	}
	if n == 1 {
		return nil
	}
	// A final build is not refreshed and need not be; in any other state the worker has
	// lost it.
	st, err := readRelation(ctx, tx, s)
	if err != nil {
		return err
	}
	return st.access(s.WorkerID, s.Attempt)
}

// Heartbeat records a beat as Touch does, for a worker that asks whether to go on.
// Cancelled makes the worker stop, because the build was cancelled, has failed for
// good, or belongs to another worker. A build that is pending after a lost attempt is
// not cancelled, because its result is still accepted. Errors: NotFound, NotAssigned,
// StaleAttempt.
func (b *Builds) Heartbeat(ctx context.Context, s store.Beat) (reply store.BeatReply, err error) {
	err = b.db.write("recording a heartbeat").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		holds := false
		if holds, reply.Cancelled, err = st.heartbeat(s); err != nil || !holds {
			return err
		}
		reply.Began = st.state == store.Assigned
		return touch(ctx, tx, st, s)
	})
	return reply, err
}

// heartbeat judges a heartbeat. holds: the worker holds the build. cancelled: it did
// and never will again. Neither: it did, and the build is pending.
func (st relation) heartbeat(s store.Beat) (holds, cancelled bool, err error) {
	switch {
	case !st.buildKnown:
		return false, false, errNoBuild()
	case s.Attempt > 0 && s.Attempt < st.attempt:
		return false, false, errStale()
	case !st.workerKnown || st.holder != s.WorkerID && st.lastHolder != s.WorkerID:
		return false, false, errNotAssigned()
	case st.state == store.Cancelled, st.state == store.Failed:
		return false, true, nil
	case st.holder == s.WorkerID:
		return true, false, nil
	}
	return false, st.state != store.Pending, nil
}

// sqlTelemetry keeps the last figures that made sense.
const sqlTelemetry = `/* telemetry */
INSERT INTO worker_telemetry AS t (worker_id, build_id, type, stage, cpu_percent, memory_mb, disk_percent, processes,
	uptime_seconds, cpu_sum, cpu_count)
VALUES (@worker, @build, @type, nullif(@stage, ''), @cpu, @memory, @disk, @processes, @uptime, coalesce(@cpu::float8, 0), (@cpu::float8 IS NOT NULL)::int)
ON CONFLICT (worker_id) DO UPDATE SET
	build_id = excluded.build_id, at = now(), type = excluded.type,
	stage = coalesce(excluded.stage, t.stage),
	cpu_percent = coalesce(excluded.cpu_percent, t.cpu_percent), memory_mb = coalesce(excluded.memory_mb, t.memory_mb),
	disk_percent = coalesce(excluded.disk_percent, t.disk_percent), processes = coalesce(excluded.processes, t.processes),
	uptime_seconds = coalesce(excluded.uptime_seconds, t.uptime_seconds),
	cpu_sum = t.cpu_sum + excluded.cpu_sum, cpu_count = t.cpu_count + excluded.cpu_count`

// Telemetry records a beat as Touch does, and the figures of the worker's machine.
// Errors as Held.
func (b *Builds) Telemetry(ctx context.Context, s store.Beat, t store.Telemetry) (store.BeatReply, error) {
	return b.beat(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		// The telemetry row comes first, because deleting a worker locks its identity,
		// then this row, then the worker and its builds. touch locks in the same order.
		_, err := tx.Exec(ctx, sqlTelemetry, pgx.NamedArgs{
			"worker": s.WorkerID, "build": s.BuildID, "type": store.Text(t.Type), "stage": store.Text(t.Stage),
			"cpu": t.CPUPercent, "memory": t.MemoryMB, "disk": t.DiskPercent, "processes": t.Processes, "uptime": t.UptimeSeconds,
		})
		if err != nil {
			return fmt.Errorf("keeping telemetry of worker %s: %w", s.WorkerID, err)
		}
		return nil
	})
}
