package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
	"takt/store/batching"
)

// MaxBatch is how many polls Assign takes at once.
const MaxBatch = 256

// assignTimeout bounds an assignment transaction.
const assignTimeout = 5 * time.Second

// sqlFind finds the rows of polls whose address is not known. A poll without a token is
// found by its worker's id if it has no number or its number is gone.
const sqlFind = `/* find */
SELECT p.nr, w.number, w.ctid
FROM unnest(@numbers::bigint[], @ids::text[]) WITH ORDINALITY AS p(number, id, nr)
CROSS JOIN LATERAL (
	SELECT n.number, n.ctid FROM workers n WHERE n.number = p.number
	UNION ALL
	SELECT i.number, i.ctid FROM workers i WHERE i.id = p.id
	LIMIT 1
) w`

// workerDrained reports whether worker w gets no builds for now. A quarantined worker that
// does not rest gets one.
const workerDrained = `(w.draining OR w.critical AND @spare OR w.rests_until > now() OR w.quarantine IS NOT NULL AND w.held > 0)`

// sqlAssign is the group commit of polls. Its steps:
//
//	locked  locks the workers' rows at their addresses, without waiting, so that a
//	        row that is locked elsewhere delays no other poll. A row that has moved is
//	        not judged: its poll is served again
//	judged  tells whether another process holds the worker, whether the shown counter
//	        is superseded, and what kind of builds the worker takes
//	again   polls that get a build again because they have not acknowledged its
//	        hand-out. held counts the worker's builds and is exact under its lock,
//	        but builds are read as they were when the statement began: hence the
//	        lock on the row found. The count makes it wait until all workers are
//	        locked
//	want    polls that get a new build, numbered per kind
//	i, a, x the oldest builds for workers of iOS, of Android, and of all platforms.
//	        The inner LIMIT is a constant, so that the planner takes the index in
//	        its order; the outer stops the scan and the locking after exactly as
//	        many rows as are wanted. A scan starts at the low-water mark; builds
//	        below it come last, and only with @below
//	claimed the hand-outs: the n-th poll of a kind gets the n-th build. since is when
//	        it became pending: a subquery reads the row as it was before
//	turn    all polls that are served, with or without a build
//	written the workers' rows that have a hand-out or were offline. RecordPresence
//	        writes the beats of the others
//
// Steps pass their rows on whole and pair them by array, because a join would cost
// the square of the batch: the planner expects one row from each step.
const sqlAssign = `/* assign */
WITH locked AS MATERIALIZED (
	SELECT p.nr, p.shown, p.parked, p.reconcile, p.address AS at, w.ctid AS now_at, w.number, w.id, w.used, greatest(p.used, w.used) AS known,
		w.handed, w.held, w.slots, w.platforms, ` + workerDrained + ` AS drained, w.status = 'offline' AS due,
		w.instance <> nullif(p.instance, '') AS rival
	FROM unnest(@numbers::bigint[], @addresses::tid[], @shown::bigint[], @used::bigint[], @parked::bigint[], @reconcile::bool[], @instances::text[])
		WITH ORDINALITY AS p(number, address, shown, used, parked, reconcile, instance, nr)
	JOIN workers w ON w.ctid = p.address
	WHERE w.number = p.number
	FOR NO KEY UPDATE OF w SKIP LOCKED
), judged AS MATERIALIZED (
	SELECT nr, shown, reconcile, at, number, id, used, known, handed, held, slots, platforms, drained, due, CASE
			WHEN rival THEN 3
			WHEN parked IS NOT NULL AND (handed <> parked OR shown < used) THEN 1
			WHEN shown < used THEN 2
			ELSE 0
		END AS outcome,
		CASE
			WHEN platforms = '{}' OR platforms @> '{ios,android}' THEN 'x'
			WHEN 'ios' = ANY (platforms) THEN 'i'
			WHEN 'android' = ANY (platforms) THEN 'a'
		END AS kind
	FROM locked WHERE now_at = at
), again AS MATERIALIZED (
	SELECT j.*, b.*
	FROM judged j CROSS JOIN LATERAL (
		SELECT b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at, b.handed AS hand_out
		FROM builds b
		WHERE b.worker_id = j.id AND b.state = 'assigned'
			AND (j.shown IS NULL OR b.handed > j.shown OR j.reconcile OR j.slots = 1)
			AND (NOT j.reconcile OR j.nr || ' ' || b.id <> ALL (@listed::text[]))
		ORDER BY b.handed, b.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
	) b
	WHERE (SELECT count(*) FROM locked) > 0 AND j.outcome = 0 AND j.held > 0
		AND (j.shown IS NULL OR j.handed > j.shown OR j.reconcile OR j.slots = 1)
), want AS MATERIALIZED (
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, kind,
		(row_number() OVER (PARTITION BY kind ORDER BY nr))::int AS n
	FROM judged
	WHERE outcome = 0 AND NOT drained AND held < slots AND kind IS NOT NULL AND nr NOT IN (SELECT nr FROM again)
), i AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND position >= @from_ios AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND position < CASE WHEN @below THEN @from_ios ELSE 0 END AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'i')
), a AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND position >= @from_android AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND position < CASE WHEN @below THEN @from_android ELSE 0 END AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'a')
), x AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND position >= @from_all AND seq <> ALL (@skip::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND position < CASE WHEN @below THEN @from_all ELSE 0 END AND seq <> ALL (@skip::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'x')
), claimed AS (
	UPDATE builds b SET state = 'assigned', worker_id = c.id, attempt = b.attempt + 1, handed = c.hand_out,
		started_at = now(), last_seen_at = NULL, updated_at = now(), log_lines = b.log_lines + 1
	FROM (
		SELECT *, greatest(handed, known) + 1024 AS hand_out, CASE kind
			WHEN 'x' THEN (ARRAY(SELECT tid FROM x))[n]
			WHEN 'i' THEN (ARRAY(SELECT tid FROM i))[n]
			WHEN 'a' THEN (ARRAY(SELECT tid FROM a))[n]
		END AS tid FROM want
	) c
	WHERE b.ctid = c.tid AND b.state = 'pending'
	RETURNING c.nr, c.at, c.number, c.id, c.known, c.held, c.slots, c.platforms, c.drained, c.hand_out,
		b.seq, b.position, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at, b.log_lines,
		CASE WHEN b.attempt = 1 THEN b.submitted_at ELSE (SELECT was.updated_at FROM builds was WHERE was.ctid = c.tid) END AS since
), logged AS (
	INSERT INTO build_logs (build, number, message, kind, worker, attempt)
	SELECT seq, log_lines, 'Assigned to worker ' || id || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END,
		'assigned', id, attempt
	FROM claimed
), turn AS MATERIALIZED (
	SELECT nr, at, number, id, known, hand_out AS handed, held + 1 AS held, slots, platforms, drained, true AS write,
		build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM claimed
	UNION ALL
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, due,
		build, platform, attempt, has_certs, submitted_at, NULL, hand_out, 0 FROM again
	UNION ALL
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, due,
		NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0 FROM judged
	WHERE outcome = 0 AND nr NOT IN (SELECT nr FROM claimed) AND nr NOT IN (SELECT nr FROM again)
), written AS (
	UPDATE workers w SET used = t.known, handed = t.handed, held = t.held, last_seen_at = now(),
		status = CASE WHEN t.held > 0 THEN 'building' ELSE 'idle' END
	FROM turn t
	WHERE w.ctid = t.at AND t.write
	RETURNING t.*, w.ctid AS now_at
)
SELECT nr, 0, number, id, known, handed, held, slots, platforms, drained, now_at,
	build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM written
UNION ALL
SELECT nr, 0, number, id, known, handed, held, slots, platforms, drained, at,
	build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM turn WHERE NOT write
UNION ALL
SELECT nr, outcome, number, id, used, handed, held, slots, platforms, drained, at,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0 FROM judged WHERE outcome > 0`

// Assign serves up to MaxBatch polls in one statement, which is one round trip and one
// transaction. It judges their counters, repeats hand-outs whose reply may be lost,
// claims pending builds for free slots (by priority, then submission), and writes
// builds, workers and log. The answer to polls[i] is at i.
//
// After an error nothing has changed, unless the error wraps store.ErrOutcomeUnknown:
// then the workers' next polls, with the tokens they have, get what was assigned. A
// build that the database refuses to assign is quarantined, and a poll that it refuses
// to serve fails alone. A poll whose worker's row is locked by another transaction gets
// PollLocked.
func (q *Queue) Assign(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	if len(polls) > MaxBatch {
		return nil, fmt.Errorf("serving %d polls: more than %d", len(polls), MaxBatch)
	}
	results, turns, all := make([]store.PollResult, len(polls)), make([]turn, len(polls)), make([]*turn, len(polls))
	for i := range polls {
		turns[i] = turn{Poll: polls[i], result: &results[i]}
		all[i] = &turns[i]
	}
	err := batching.Isolate(all, isDataError, func(turns []*turn) error { return q.assignSettled(ctx, turns) },
		func(t *turn, cause error) error { return q.assignAlone(ctx, t, cause) })
	if err != nil {
		return nil, fmt.Errorf("serving %d polls: %w", len(polls), err)
	}
	return results, nil
}

// turn is a poll that is served.
type turn struct {
	store.Poll // its address changes
	result     *store.PollResult
	answered   bool
	tried      store.RowAddress // where the statement did not serve it
}

// fail makes err the result of turns.
func fail(turns []*turn, err error) {
	for _, t := range turns {
		*t.result = store.PollResult{Outcome: store.PollFailed, Err: err}
	}
}

// movedTries is how often polls are served again whose workers' rows moved.
const movedTries = 4

// assignSettled finds the workers and runs the statement. It repeats both for polls that
// were not served although their worker's row was found. If the row has another address
// by then, another transaction has changed it; otherwise one has locked it. The other
// polls are committed by then, so a later error concerns only the rest.
func (q *Queue) assignSettled(ctx context.Context, open []*turn) error {
	for try := range movedTries {
		found, err := q.find(ctx, open)
		if err == nil {
			open, err = q.assign(ctx, found)
		}
		switch {
		case err != nil && try == 0:
			return err
		case err != nil:
			fail(found, err)
			return nil
		case len(open) == 0:
			return nil
		}
		for _, t := range open {
			t.tried, t.Address = t.Address, store.RowAddress{}
		}
	}
	for _, t := range open {
		*t.result = store.PollResult{Outcome: store.PollLocked}
	}
	return nil
}

// find gives an address to turns that have none, and returns those that can be served
// now. If a worker has several polls, only the last one counts.
func (q *Queue) find(ctx context.Context, turns []*turn) (found []*turn, err error) {
	var lost []*turn
	for _, t := range turns {
		if t.Address.Offset == 0 || t.Worker == 0 {
			lost = append(lost, t)
		}
	}
	if len(lost) > 0 {
		if err := q.findLost(ctx, lost); err != nil {
			return turns, err
		}
	}
	last := make(map[uint32]*turn, len(turns))
	for _, t := range turns {
		if t.Address.Offset > 0 {
			last[t.Worker] = t
		}
	}
	found = make([]*turn, 0, len(turns))
	for _, t := range turns {
		switch {
		case t.Address.Offset > 0 && t.Address == t.tried:
			*t.result = store.PollResult{Outcome: store.PollLocked}
		case t.Address.Offset > 0 && last[t.Worker] == t:
			found = append(found, t)
		case t.Address.Offset > 0:
			*t.result = store.PollResult{Outcome: store.PollSuperseded}
		case t.Shown > 0:
			*t.result = store.PollResult{Outcome: store.PollInvalidToken}
		default:
			*t.result = store.PollResult{Outcome: store.PollUnknownWorker}
		}
	}
	return found, nil
}

// findLost finds the workers of turns without an address.
func (q *Queue) findLost(ctx context.Context, lost []*turn) error {
	numbers, ids := make([]int64, len(lost)), make([]*string, len(lost))
	for i, t := range lost {
		numbers[i] = int64(t.Worker)
		if t.Shown == 0 {
			ids[i] = &t.WorkerID
		}
		t.Address = store.RowAddress{}
	}
	var nr int
	var number uint32
	var at pgtype.TID
	return q.db.read("finding workers").each(ctx, []any{&nr, &number, &at}, func() error {
		lost[nr-1].Worker, lost[nr-1].Address = number, addressOf(at)
		return nil
	}, sqlFind, pgx.NamedArgs{"numbers": numbers, "ids": ids})
}

// assign runs the statement once. It returns the turns that it did not serve because
// their workers' rows had moved or are locked.
func (q *Queue) assign(ctx context.Context, turns []*turn) (unserved []*turn, err error) {
	if len(turns) == 0 {
		return nil, nil
	}
	pass := q.db.head.begin()
	var first marks
	args := q.assignArgs(turns, pass)
	assigning := operation{db: q.db, doing: "assigning", timeout: assignTimeout, writes: true}
	err = assigning.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		for _, t := range turns {
			t.answered = false
		}
		rows, err := c.Query(ctx, q.assigning.sql, args...)
		if err == nil {
			first, err = scanAssigned(rows, turns)
		}
		return err
	})
	if err != nil {
		q.db.head.undo(pass)
		return nil, err
	}
	q.db.head.end(pass, first)
	for _, t := range turns {
		if !t.answered {
			unserved = append(unserved, t)
		}
	}
	return unserved, nil
}

func (q *Queue) assignArgs(turns []*turn, pass pass) []any {
	n := len(turns)
	numbers, shown, parked, used := make([]int64, n), make([]*int64, n), make([]*int64, n), make([]int64, n)
	reconcile, addresses, listed, instances := make([]bool, n), make([]pgtype.TID, n), []string{}, make([]string, n)
	for i, t := range turns {
		numbers[i], addresses[i], used[i], reconcile[i], instances[i] = int64(t.Worker), tidOf(t.Address), int64(t.Used), t.Reconcile, t.Instance
		if t.Shown > 0 {
			shown[i] = pointer(t.Shown)
		}
		if t.Parked {
			parked[i] = pointer(t.Handed)
		}
		for _, id := range t.Active {
			listed = append(listed, strconv.Itoa(i+1)+" "+id)
		}
	}
	return q.assigning.args(map[string]any{
		"numbers": numbers, "addresses": addresses, "shown": shown, "used": used, "parked": parked, "reconcile": reconcile,
		"instances": instances, "listed": listed, "skip": q.skip.list(), "spare": q.cfg.SpareCritical,
		"from_all": pass.from[allPlatforms], "from_ios": pass.from[onlyIOS], "from_android": pass.from[onlyAndroid], "below": pass.below,
	})
}

func pointer(counter uint64) *int64 {
	v := int64(counter)
	return &v
}

func tidOf(a store.RowAddress) pgtype.TID {
	return pgtype.TID{BlockNumber: a.Block, OffsetNumber: a.Offset, Valid: a.Offset > 0}
}

// scanAssigned reads the results of turns, and the first position that each scan
// claimed.
func scanAssigned(rows pgx.Rows, turns []*turn) (first marks, err error) {
	var nr, position int64
	var r store.PollResult
	var address pgtype.TID
	var platforms []string
	var build *string
	var platform *store.Platform
	var attempt *int
	var certs *bool
	var submitted, since *time.Time
	var handOut *uint64
	s := &r.Session
	_, err = pgx.ForEachRow(rows, []any{
		&nr, &r.Outcome, &s.Number, &s.ID, &s.Used, &s.Handed, &s.Held, &s.Slots, &platforms, &s.Drained, &address,
		&build, &platform, &attempt, &certs, &submitted, &since, &handOut, &position,
	}, func() error {
		s.Platforms, s.Address = toPlatforms(platforms), addressOf(address)
		r.Job, r.Handed, r.Redelivered, r.PendingSince = nil, 0, false, time.Time{}
		if build != nil {
			r.Job = &store.Job{BuildID: *build, Platform: *platform, Attempt: *attempt, HasCerts: *certs, SubmittedAt: submitted.UTC()}
			r.Handed, r.Redelivered = *handOut, position == 0
			if !r.Redelivered {
				r.Job.Priority = priorityAt(position)
			}
			if since != nil {
				r.PendingSince = *since
			}
		}
		if position > 0 {
			if k := scanOf(s.Platforms); first[k] == 0 || position < first[k] {
				first[k] = position
			}
		}
		*turns[nr-1].result, turns[nr-1].answered = r, true
		return nil
	})
	return first, err
}
