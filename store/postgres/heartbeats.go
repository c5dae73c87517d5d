package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/batching"
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
	// began is true if this was the first heartbeat of the attempt. Only sqlRecordBeat sets it.
	began bool
	// worker is the worker's number and the highest counter that it has used. Only
	// sqlRecordBeat sets it.
	worker store.WorkerToken
	// Only ends.lock sets the rest.
	givenBack int
	// lost are its lost attempts, most is how many it may have; 0 leaves that to the controller.
	lost, most int
	// retryOn are the exit codes after which it is tried again. If it is pending, ended says how its
	// last attempt ended with one of these; "" if that was lost.
	retryOn []int
	ended   store.Ended
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

// columns returns the targets of sqlRelation, which sqlRecordBeat has, too.
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

// sqlRecordBeat writes heartbeats of different builds and their log lines in one statement, and
// returns the relations as they were before. Its steps:
//
//	r       reads the relations. due says whether to write a heartbeat, lines whether to write
//	        log lines; both are false for a worker that may not send this heartbeat
//	w       updates the workers, which are locked before the builds
//	a       locks the builds that a heartbeat changes, if its worker still has the build in this
//	        attempt, and reads whether there was none before, because only one of several
//	        heartbeats that arrive together may begin a build
//	b       updates the builds. Their locks make the lines of each visible in the order of their
//	        numbers, so that a reader who continues after the last line misses none. The lines
//	        get the numbers after numbered. log_bytes counts all lines. A build that has ended
//	        only takes late lines, up to store.MaxBuildLog bytes
//	logged  inserts the lines, until the log has store.MaxLogHead bytes
//	reached inserts a line that says so
//	kept    inserts later lines apart while the build runs; a trigger moves them to the end
//	        of the log when the attempt ends
//	cut     removes lines kept apart that begin more than store.MaxLogTail bytes before
//	        the end
//
// It passes over rows that another transaction has locked, so that one slow transaction does not
// hold up all whose heartbeats share the statement. The ninth value is true if a heartbeat was
// expected to update the build, but another transaction had locked it or the worker, or had
// taken it away.
const sqlRecordBeat = `/* record_beat */
WITH r AS MATERIALIZED (
	SELECT s.*, coalesce(s.may AND NOT s.rival AND (s.state = 'assigned' OR s.build_seen IS NULL OR s.offline
			OR least(s.build_seen, s.worker_seen) < now() - make_interval(secs => @interval)), false) AS due,
		coalesce(s.may AND NOT s.rival AND s.bytes > 0 AND (s.state IN ('assigned', 'building') OR s.log_bytes < @limit), false) AS lines
	FROM (
		SELECT i.nr, i.bytes, i.count, i.kind, i.facts, w.id AS worker, w.number, w.used, b.seq, b.state, b.worker_id, b.last_worker_id, b.attempt, b.log_bytes,
			b.last_seen_at AS build_seen, w.last_seen_at AS worker_seen, w.status = 'offline' AS offline,
			coalesce(w.instance <> nullif(i.instance, ''), false) AS rival,
			b.worker_id = w.id AND (i.attempt = 0 OR i.attempt >= b.attempt)
				AND NOT (i.asks AND b.state IN ('failed', 'cancelled')) AS may
		FROM unnest(@builds::text[], @workers::text[], @attempts::int[], @instances::text[], @asks::bool[], @bytes::bigint[], @counts::int[], @kinds::text[], @facts::jsonb[])
			WITH ORDINALITY AS i(build, worker, attempt, instance, asks, bytes, count, kind, facts, nr)
		LEFT JOIN builds b ON b.seq = (SELECT seq FROM build_ids WHERE id = i.build) LEFT JOIN workers w ON w.id = i.worker
	) s
), lw AS MATERIALIZED (
	SELECT id FROM workers WHERE id = ANY (ARRAY(SELECT worker FROM r WHERE due)) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), w AS (
	UPDATE workers SET last_seen_at = now(), status = CASE WHEN held > 0 THEN 'building' ELSE status END
	WHERE id = ANY (ARRAY(SELECT id FROM lw))
	RETURNING id
), a AS MATERIALIZED (
	SELECT b.seq, b.state = 'assigned' OR b.state = 'building' AND b.last_seen_at IS NULL AS begins FROM r JOIN builds b USING (seq)
	WHERE (r.lines OR r.due AND r.state IN ('assigned', 'building')) AND (NOT r.due OR r.worker = ANY (ARRAY(SELECT id FROM w)))
		AND b.worker_id = r.worker AND b.attempt = r.attempt
	ORDER BY b.seq FOR NO KEY UPDATE OF b SKIP LOCKED
), b AS (
	UPDATE builds SET
		state = CASE builds.state WHEN 'assigned' THEN 'building' ELSE builds.state END,
		updated_at = CASE WHEN builds.state = 'assigned' OR builds.state = 'building' AND builds.last_seen_at IS NULL THEN now() ELSE updated_at END,
		last_seen_at = CASE WHEN builds.state IN ('assigned', 'building') THEN now() ELSE last_seen_at END,
		sign_gap = CASE WHEN last_seen_at IS NULL THEN NULL ELSE least(75, greatest(sign_gap, ceil(extract(epoch FROM now() - last_seen_at)))) END,
		log_bytes = builds.log_bytes + CASE WHEN lines THEN bytes ELSE 0 END,
		log_lines = log_lines + CASE WHEN lines
			THEN count + (builds.state IN ('assigned', 'building') AND builds.log_bytes <= @head AND builds.log_bytes + bytes > @head)::int ELSE 0 END
	FROM r WHERE builds.seq = r.seq AND r.seq = ANY (ARRAY(SELECT seq FROM a))
	RETURNING r.nr, r.lines, r.kind, r.facts, builds.seq, builds.log_bytes, builds.log_bytes - bytes AS begins, log_lines - count AS numbered,
		builds.state IN ('assigned', 'building') AND builds.log_bytes > @head AS apart
), l AS MATERIALIZED (
	SELECT * FROM unnest(@items::int[], @numbers::int[], @levels::text[], @messages::text[]) AS l(item, number, level, message)
), logged AS (
	INSERT INTO build_logs (build, number, level, message, by_worker, kind, facts)
	SELECT b.seq, b.numbered + l.number, l.level, l.message, true, b.kind, b.facts
	FROM b JOIN l ON l.item = b.nr WHERE b.lines AND NOT b.apart AND b.log_bytes <= @limit ORDER BY b.nr, l.number
), reached AS (
	INSERT INTO build_logs (build, number, level, message, kind)
	SELECT seq, numbered, 'warn', @reached, 'log_limit' FROM b WHERE lines AND apart AND begins <= @head
), kept AS (
	INSERT INTO build_log_tails (build, begins, number, levels, messages, kind, facts)
	SELECT seq, begins, numbered + 1, array(SELECT level FROM l WHERE item = b.nr ORDER BY number),
		array(SELECT message FROM l WHERE item = b.nr ORDER BY number), kind, facts FROM b WHERE lines AND apart
), cut AS (
	DELETE FROM build_log_tails t USING b WHERE b.apart AND t.build = b.seq AND t.begins < b.log_bytes - @tail
)
SELECT r.nr - 1, worker IS NOT NULL, rival, r.seq IS NOT NULL, coalesce(state, ''), coalesce(worker_id, ''), coalesce(last_worker_id, ''), coalesce(attempt, 0),
	(r.lines OR due AND state IN ('assigned', 'building')) AND b.nr IS NULL,
	coalesce(a.begins, false) AND b.nr IS NOT NULL, coalesce(r.number, 0), coalesce(used, 0)
FROM r LEFT JOIN b USING (nr) LEFT JOIN a ON a.seq = r.seq`

// beat is a heartbeat while it is recorded.
type beat struct {
	store.Heartbeat
	// asks is true if the worker asks whether to go on.
	asks bool
	st   relation // as it was before
	// lost is true if the build was not updated although it should have been.
	lost    bool
	request trace.SpanContext
}

// beatsAtOnce is how statements record heartbeats: each those of many workers.
var beatsAtOnce = batching.Pace{Parallel: 2, Most: 96, Few: 4, Alone: 96, Linger: 5 * time.Millisecond, Return: time.Millisecond}

// arguments returns the arguments of sqlRecordBeat.
func arguments(some []*beat) map[string]any {
	n := len(some)
	builds, workers, attempts, instances, asks := make([]string, n), make([]string, n), make([]int, n), make([]string, n), make([]bool, n)
	bytes, counts, kinds, facts := make([]int64, n), make([]int, n), make([]*string, n), make([]any, n)
	var items, numbers []int
	var levels, messages []string
	for i, s := range some {
		builds[i], workers[i], attempts[i], instances[i], asks[i] = s.BuildID, s.WorkerID, s.Attempt, s.Instance, s.asks
		if counts[i] = len(s.Logs); s.Kind != "" {
			kind := string(s.Kind)
			kinds[i], facts[i] = &kind, s.Facts
		}
		for j, l := range s.Logs {
			message := store.Text(l.Message)
			items, numbers, levels, messages = append(items, i+1), append(numbers, j+1), append(levels, string(l.Level)), append(messages, message)
			bytes[i] += int64(len(message)) + store.LogLineCost
		}
	}
	return map[string]any{
		"builds": builds, "workers": workers, "attempts": attempts, "instances": instances, "asks": asks, "bytes": bytes, "counts": counts, "kinds": kinds, "facts": facts,
		"items": items, "numbers": numbers, "levels": levels, "messages": messages, "interval": heartbeatInterval,
		"head": store.MaxLogHead, "tail": store.MaxLogTail, "limit": store.MaxBuildLog, "reached": store.MessageLogLimit,
	}
}

// recordBeats writes heartbeats that are permitted, and sets the relations as they were before.
func recordBeats(ctx context.Context, q querier, statement numbered, some []*beat) error {
	var nr int
	var st relation
	var lost bool
	rows, _ := q.Query(ctx, statement.sql, statement.args(arguments(some))...) // its error is that of the rows
	_, err := pgx.ForEachRow(rows, append(append([]any{&nr}, st.columns()...), &lost, &st.began, &st.worker.Worker, &st.worker.Counter), func() error {
		some[nr].st, some[nr].lost = st, lost
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording %d heartbeats: %w", len(some), err)
	}
	return nil
}

// manyLines and manyBytes are more lines than share a statement, because a large one takes long.
const manyLines, manyBytes = 1000, 256 << 10

func sizeOf(lines []store.LogLine) (n int) {
	for _, l := range lines {
		n += len(l.Message)
	}
	return n
}

// beatTogether records heartbeats in one statement.
func (b *Builds) beatTogether(some []*beat) error {
	return together("heartbeat batch", some, func(s *beat) trace.SpanContext { return s.request }, func(ctx context.Context) error {
		return b.db.write("recording heartbeats").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
			return recordBeats(ctx, c, b.beating, some)
		})
	})
}

// record writes a heartbeat if it is permitted, together with others that arrive now, and
// returns the relation as it was before. Those of one build are recorded one after the other.
func (b *Builds) record(ctx context.Context, op operation, s *beat) (relation, error) {
	free, err := b.heard.take(ctx, s.BuildID)
	if err != nil {
		return relation{}, op.shared(ctx, err)
	}
	defer free()
	s.request = trace.SpanContextFromContext(ctx)
	if s.lost = len(s.Logs) > manyLines || sizeOf(s.Logs) > manyBytes; !s.lost {
		err = op.shared(ctx, b.beats.Do(ctx, s))
	}
	if err == nil && s.lost {
		err = op.run(ctx, func(ctx context.Context, c *pgx.Conn) error { return b.recordAlone(ctx, c, s) })
	}
	if err != nil { // s may still be in a batch
		return relation{}, err
	}
	return s.st, nil
}

// recordAlone writes one heartbeat if it is permitted. It waits for locks.
func (b *Builds) recordAlone(ctx context.Context, q querier, s *beat) error {
	for range 2 { // again if the build was taken away meanwhile, to judge it as it is now
		if err := recordBeats(ctx, q, b.beatingAlone, []*beat{s}); err != nil || !s.lost {
			return err
		}
	}
	return errNotAssigned()
}

// RecordHeartbeat records a heartbeat. It acknowledges an assigned build, which is building from then
// on, writes the time of the last heartbeat of build and worker (at most once a second), and
// appends s.Logs. A build that its worker has ended accepts late log lines but does not
// change otherwise. Its errors are those of Held.
func (b *Builds) RecordHeartbeat(ctx context.Context, s store.Heartbeat) (reply store.HeartbeatReply, err error) {
	op := b.db.write("recording a heartbeat")
	st, err := b.record(ctx, op, &beat{Heartbeat: s})
	if err != nil {
		return reply, err
	}
	reply, err = st.reply(s)
	return reply, op.failure(err)
}

// reply judges a heartbeat that was recorded if it was permitted.
func (st relation) reply(s store.Heartbeat) (store.HeartbeatReply, error) {
	err := st.access(s.WorkerID, s.Attempt)
	return store.HeartbeatReply{Began: err == nil && st.began, Attempt: st.attempt, Over: st.state == store.Cancelled || st.state == store.Failed}, err
}

// Heartbeat records a heartbeat as RecordHeartbeat does, for a worker that asks whether to go on.
// Cancelled makes the worker stop, because the build was cancelled, has failed for
// good, or belongs to another worker. A build that is pending after a lost attempt is
// not cancelled, because its result is still accepted. Errors: NotFound, DuplicateWorker,
// NotAssigned, StaleAttempt.
func (b *Builds) Heartbeat(ctx context.Context, s store.Heartbeat) (reply store.HeartbeatReply, err error) {
	op := b.db.write("recording a heartbeat")
	st, err := b.record(ctx, op, &beat{Heartbeat: s, asks: true})
	if err != nil {
		return reply, err
	}
	reply.Began, reply.Attempt, reply.Used = st.began, st.attempt, st.worker
	reply.Cancelled, err = st.heartbeat(s)
	return reply, op.failure(err)
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
		// row, the worker and its builds, in this order. recordAlone follows it too.
		_, err = tx.Exec(ctx, sqlTelemetry, pgx.NamedArgs{
			"worker": s.WorkerID, "build": s.BuildID, "type": store.Text(t.Type), "stage": store.Text(t.Stage),
			"cpu": t.CPUPercent, "memory": t.MemoryMB, "disk": t.DiskPercent, "processes": t.Processes, "uptime": t.UptimeSeconds,
		})
		if err != nil {
			return fmt.Errorf("keeping telemetry of worker %s: %w", s.WorkerID, err)
		}
		told := &beat{Heartbeat: s}
		if err := b.recordAlone(ctx, tx, told); err != nil {
			return err
		}
		reply, err = told.st.reply(s)
		return err
	})
	return reply, err
}
