package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// beatInterval is how often beats of one build are written at most, in
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
	// due is true when a beat has to be written.
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

// Touch records a beat: it acknowledges an assigned build, which is
// building from then on, refreshes build and worker (at most once a second) and
// writes s.Logs. A build that its worker has ended takes late logs and changes no
// more. Errors as Held.
func (b *Builds) Touch(ctx context.Context, s store.Beat) (store.BeatReply, error) {
	return b.beat(ctx, s, func(context.Context, pgx.Tx) error { return nil })
}

// beat records a permitted beat, and what keep keeps of it before.
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

// refresh records a beat of a build in the given attempt. It is NotAssigned
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

// Heartbeat records a beat as Touch does, for a worker that asks whether
// to go on. Cancelled tells it to stop: the build was cancelled, given up or
// given to somebody else. A build that waits again after its attempt was lost is
// not cancelled: its result is still welcome. Errors: NotFound, NotAssigned,
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

// heartbeat judges a heartbeat: the worker holds the build, or it did and never
// will again (cancelled), or it did and the build waits for anybody (neither).
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
const sqlTelemetry = `
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

// Telemetry records a beat as Touch does, and what it says of the
// worker's machine. Errors as Held.
func (b *Builds) Telemetry(ctx context.Context, s store.Beat, t store.Telemetry) (store.BeatReply, error) {
	return b.beat(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
		// First: who deletes a worker locks its identity, then this row, and then
		// the worker and its builds, which touch locks in the same order.
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
