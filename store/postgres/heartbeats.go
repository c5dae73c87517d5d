package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// heartbeatInterval is the shortest time between two written heartbeats of one build, in seconds.
// It must be well below the build timeout (5 minutes by default).
const heartbeatInterval = 1.0

// relation is how a build and a worker relate to each other.
type relation struct {
	workerKnown bool
	rival       bool // another process holds the worker
	buildKnown  bool
	state       store.BuildState
	holder      string // worker_id
	lastHolder  string // last_worker_id
	attempt     int
	// began is true if this heartbeat changed the build from assigned to building. Only
	// sqlRecordBeat sets it.
	began bool
	// worker is the worker's number and the highest counter that it has used. Only
	// sqlRecordBeat sets it.
	worker store.WorkerToken
	// Only ends.lock sets the rest.
	givenBack int
	// retry is true if the build is a retry of another one.
	retry bool
}

// sqlRelation reads the relation of build $1 and worker $2. $3 is the id of the worker's
// process, empty if it has none.
const sqlRelation = `/* relation */
SELECT w.id IS NOT NULL, coalesce(w.instance <> nullif($3, ''), false), b.id IS NOT NULL, coalesce(b.state, ''), coalesce(b.worker_id, ''),
	coalesce(b.last_worker_id, ''), coalesce(b.attempt, 0)
FROM (SELECT) one LEFT JOIN builds b ON b.seq = (SELECT seq FROM build_ids WHERE id = $1) LEFT JOIN workers w ON w.id = $2`

func readRelation(ctx context.Context, q querier, s store.Heartbeat) (st relation, err error) {
	err = q.QueryRow(ctx, sqlRelation, s.BuildID, s.WorkerID, s.Instance).Scan(st.columns()...)
	if err != nil {
		return st, fmt.Errorf("reading build %s: %w", s.BuildID, err)
	}
	return st, nil
}

// columns returns the targets of sqlRelation, with which those of sqlRecordBeat begin.
func (st *relation) columns() []any {
	return []any{&st.workerKnown, &st.rival, &st.buildKnown, &st.state, &st.holder, &st.lastHolder, &st.attempt}
}

// errStale is the error for a worker whose attempt is over.
func errStale() error {
	return store.NewError(store.StaleAttempt, "A newer attempt of this build exists")
}

// errNotAssigned is the error for a worker that does not hold the build.
func errNotAssigned() error {
	return store.NewError(store.NotAssigned, "Build not assigned to this worker")
}

// access checks that worker may work on the build in this attempt. Attempt 0 means that
// the worker named none.
func (st relation) access(worker string, attempt int) error {
	switch {
	case !st.workerKnown:
		return store.NewError(store.Forbidden, "Unknown worker")
	case !st.buildKnown:
		return errNoBuild()
	case st.rival:
		return store.ErrDuplicateWorker()
	case attempt > 0 && attempt < st.attempt:
		return errStale()
	case st.holder != worker:
		return errNotAssigned()
	}
	return nil
}

// Held returns the build if the worker holds it now. It changes nothing. Errors:
// Forbidden for an unknown worker, NotFound, DuplicateWorker, NotAssigned, StaleAttempt.
func (b *Builds) Held(ctx context.Context, s store.Heartbeat) (build store.Build, err error) {
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
		found, err := findBuilds(ctx, c, []string{s.BuildID})
		if err == nil && len(found) == 0 {
			err = errNoBuild()
		}
		build = append(found, store.Build{})[0]
		return err
	})
	return build, err
}

// sqlRecordBeat writes a heartbeat and its log lines in one statement, and returns the relation as
// it was before. Its steps:
//
//	r       reads the relation. due says whether to write a heartbeat, lines whether to write
//	        log lines; both are false for a worker that may not send this heartbeat
//	w       updates the worker, which is locked before the build
//	a       locks the build and reads whether it is still assigned, because only one of
//	        several heartbeats that arrive together may begin the build
//	b       updates the build, if the worker still has it in this attempt. Its lock makes
//	        the lines visible in the order of their numbers, so that a reader who continues
//	        after the last line misses none. The lines get the numbers after numbered.
//	        log_bytes counts all lines. A build that has ended only takes late lines, up to
//	        store.MaxBuildLog bytes
//	logged  inserts the lines, until the log has store.MaxLogHead bytes
//	reached inserts a line that says so
//	kept    inserts later lines apart while the build runs; a trigger moves them to the end
//	        of the log when the attempt ends
//	cut     removes lines kept apart that begin more than store.MaxLogTail bytes before
//	        the end
//
// The eighth value is true if r expected to update the build, but another transaction took
// it away meanwhile.
const sqlRecordBeat = `/* record_beat */
WITH r AS MATERIALIZED (
	SELECT s.*, s.may AND NOT s.rival AND (s.state = 'assigned' OR s.build_seen IS NULL OR s.offline
			OR least(s.build_seen, s.worker_seen) < now() - make_interval(secs => @interval)) AS due,
		s.may AND NOT s.rival AND @bytes::bigint > 0 AND (s.state IN ('assigned', 'building') OR s.log_bytes < @limit) AS lines
	FROM (
		SELECT w.id AS worker, w.number, w.used, b.seq, b.id AS build, b.state, b.worker_id, b.last_worker_id, b.attempt, b.log_bytes,
			b.last_seen_at AS build_seen, w.last_seen_at AS worker_seen, w.status = 'offline' AS offline,
			coalesce(w.instance <> nullif(@instance, ''), false) AS rival,
			b.worker_id = w.id AND (@attempt = 0 OR @attempt >= b.attempt)
				AND NOT (@heartbeat AND b.state IN ('failed', 'cancelled')) AS may
		FROM (SELECT) one LEFT JOIN builds b ON b.seq = (SELECT seq FROM build_ids WHERE id = @build) LEFT JOIN workers w ON w.id = @worker
	) s
), w AS (
	UPDATE workers SET last_seen_at = now(), status = CASE WHEN held > 0 THEN 'building' ELSE status END
	WHERE id = (SELECT worker FROM r WHERE due)
	RETURNING id
), a AS MATERIALIZED (
	SELECT state = 'assigned' AS begins FROM builds
	WHERE (SELECT count(*) FROM w) > 0 AND seq = (SELECT seq FROM r WHERE due AND state = 'assigned') FOR NO KEY UPDATE
), b AS (
	UPDATE builds SET
		state = CASE state WHEN 'assigned' THEN 'building' ELSE state END,
		updated_at = CASE state WHEN 'assigned' THEN now() ELSE updated_at END,
		last_seen_at = CASE WHEN state IN ('assigned', 'building') THEN now() ELSE last_seen_at END,
		log_bytes = log_bytes + CASE WHEN (SELECT lines FROM r) THEN @bytes::bigint ELSE 0 END,
		log_lines = log_lines + CASE WHEN (SELECT lines FROM r)
			THEN cardinality(@levels::text[]) + (state IN ('assigned', 'building') AND log_bytes <= @head AND log_bytes + @bytes::bigint > @head)::int ELSE 0 END
	WHERE seq = (SELECT seq FROM r WHERE lines OR due AND state IN ('assigned', 'building'))
		AND worker_id = coalesce((SELECT id FROM w), @worker) AND attempt = (SELECT attempt FROM r)
		AND (SELECT count(*) FROM a) >= 0
	RETURNING seq, log_bytes, log_bytes - @bytes::bigint AS begins, log_lines - cardinality(@levels::text[]) AS numbered,
		state IN ('assigned', 'building') AND log_bytes > @head AS apart
), logged AS (
	INSERT INTO build_logs (build, number, level, message, by_worker, kind, facts)
	SELECT b.seq, b.numbered + l.nr, l.level, l.message, true, @kind::text, @facts::jsonb
	FROM b, unnest(@levels::text[], @messages::text[]) WITH ORDINALITY AS l(level, message, nr)
	WHERE (SELECT lines FROM r) AND NOT b.apart AND b.log_bytes <= @limit ORDER BY l.nr
), reached AS (
	INSERT INTO build_logs (build, number, level, message, kind)
	SELECT seq, numbered, 'warn', @reached, 'log_limit' FROM b WHERE (SELECT lines FROM r) AND apart AND begins <= @head
), kept AS (
	INSERT INTO build_log_tails (build, begins, number, levels, messages, kind, facts)
	SELECT seq, begins, numbered + 1, @levels::text[], @messages::text[], @kind::text, @facts::jsonb FROM b WHERE (SELECT lines FROM r) AND apart
), cut AS (
	DELETE FROM build_log_tails t USING b WHERE b.apart AND t.build = b.seq AND t.begins < b.log_bytes - @tail
)
SELECT worker IS NOT NULL, rival, build IS NOT NULL, coalesce(state, ''), coalesce(worker_id, ''), coalesce(last_worker_id, ''), coalesce(attempt, 0),
	coalesce(lines OR due AND state IN ('assigned', 'building'), false) AND NOT EXISTS (SELECT FROM b),
	coalesce((SELECT begins FROM a), false) AND EXISTS (SELECT FROM b), coalesce(number, 0), coalesce(used, 0)
FROM r`

// record writes a heartbeat if it is permitted, and returns the relation as it was before.
func (b *Builds) record(ctx context.Context, q querier, s store.Heartbeat, heartbeat bool) (st relation, err error) {
	levels, messages, bytes := make([]string, len(s.Logs)), make([]string, len(s.Logs)), int64(0)
	for i, l := range s.Logs {
		levels[i], messages[i] = string(l.Level), store.Text(l.Message)
		bytes += int64(len(messages[i])) + store.LogLineCost
	}
	var kind, facts any
	if s.Kind != "" {
		kind, facts = string(s.Kind), s.Facts
	}
	args := b.beating.args(map[string]any{
		"build": s.BuildID, "worker": s.WorkerID, "attempt": s.Attempt, "instance": s.Instance, "heartbeat": heartbeat, "interval": heartbeatInterval,
		"levels": levels, "messages": messages, "bytes": bytes, "kind": kind, "facts": facts,
		"head": store.MaxLogHead, "tail": store.MaxLogTail, "limit": store.MaxBuildLog, "reached": store.MessageLogLimit,
	})
	for range 2 { // again if the build was taken away meanwhile, to judge it as it is now
		lost := false
		if err = q.QueryRow(ctx, b.beating.sql, args...).Scan(append(st.columns(), &lost, &st.began, &st.worker.Worker, &st.worker.Counter)...); err != nil {
			return st, fmt.Errorf("touching build %s: %w", s.BuildID, err)
		}
		if !lost {
			return st, nil
		}
	}
	return st, errNotAssigned()
}

// RecordHeartbeat records a heartbeat. It acknowledges an assigned build, which is building from then
// on, writes the time of the last heartbeat of build and worker (at most once a second), and
// appends s.Logs. A build that its worker has ended accepts late log lines but does not
// change otherwise. Its errors are those of Held.
func (b *Builds) RecordHeartbeat(ctx context.Context, s store.Heartbeat) (reply store.HeartbeatReply, err error) {
	err = b.db.write("recording a heartbeat").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		reply, err = b.touch(ctx, c, s)
		return err
	})
	return reply, err
}

func (b *Builds) touch(ctx context.Context, q querier, s store.Heartbeat) (store.HeartbeatReply, error) {
	st, err := b.record(ctx, q, s, false)
	if err == nil {
		err = st.access(s.WorkerID, s.Attempt)
	}
	return store.HeartbeatReply{Began: err == nil && st.began, Attempt: st.attempt}, err
}

// Heartbeat records a heartbeat as RecordHeartbeat does, for a worker that asks whether to go on.
// Cancelled makes the worker stop, because the build was cancelled, has failed for
// good, or belongs to another worker. A build that is pending after a lost attempt is
// not cancelled, because its result is still accepted. Errors: NotFound, DuplicateWorker,
// NotAssigned, StaleAttempt.
func (b *Builds) Heartbeat(ctx context.Context, s store.Heartbeat) (reply store.HeartbeatReply, err error) {
	err = b.db.write("recording a heartbeat").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		st, err := b.record(ctx, c, s, true)
		if err != nil {
			return err
		}
		reply.Began, reply.Attempt, reply.Used = st.began, st.attempt, st.worker
		reply.Cancelled, err = st.heartbeat(s)
		return err
	})
	return reply, err
}

// heartbeat judges a heartbeat. cancelled is true if the worker held the build and must
// stop. Without an error it is false if the worker holds the build, or if it was the last
// holder and the build is pending.
func (st relation) heartbeat(s store.Heartbeat) (cancelled bool, err error) {
	switch {
	case !st.buildKnown:
		return false, errNoBuild()
	case st.rival:
		return false, store.ErrDuplicateWorker()
	case s.Attempt > 0 && s.Attempt < st.attempt:
		return false, errStale()
	case !st.workerKnown || st.holder != s.WorkerID && st.lastHolder != s.WorkerID:
		return false, errNotAssigned()
	case st.state == store.Cancelled, st.state == store.Failed:
		return true, nil
	case st.holder == s.WorkerID:
		return false, nil
	}
	return st.state != store.Pending, nil
}

// sqlTelemetry keeps the previous value of each figure that a report leaves out.
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

// Telemetry records a heartbeat as RecordHeartbeat does, and the figures of the worker's machine.
// Its errors are those of Held.
func (b *Builds) Telemetry(ctx context.Context, s store.Heartbeat, t store.Telemetry) (reply store.HeartbeatReply, err error) {
	err = b.db.write("recording telemetry").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		if err := st.access(s.WorkerID, s.Attempt); err != nil {
			return err
		}
		// The telemetry row comes first, because Workers.Delete locks the identity, this
		// row, the worker and its builds, in this order. touch follows it too.
		_, err = tx.Exec(ctx, sqlTelemetry, pgx.NamedArgs{
			"worker": s.WorkerID, "build": s.BuildID, "type": store.Text(t.Type), "stage": store.Text(t.Stage),
			"cpu": t.CPUPercent, "memory": t.MemoryMB, "disk": t.DiskPercent, "processes": t.Processes, "uptime": t.UptimeSeconds,
		})
		if err != nil {
			return fmt.Errorf("keeping telemetry of worker %s: %w", s.WorkerID, err)
		}
		reply, err = b.touch(ctx, tx, s)
		return err
	})
	return reply, err
}
