package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// sqlServe is the group commit of polls. Its steps:
//
//	found   the polls with their workers: at the place where the row is thought to
//	        be ($17, see spots), else by token family or by id
//	me      those workers, locked in the order of their ids: whoever locks
//	        workers does it in this order, so two batches can't deadlock. Of several
//	        polls of one worker the last counts. One that is to get no builds ($19: also
//	        if it is critical) has no free slot; with its only slot taken it still has
//	        one, so that a lost hand-out is repeated
//	judged  which token was shown: current, previous, none (id) or a wrong one;
//	        a poll that parked earlier counts only if poll_seq has not moved. A row
//	        that moved between snapshot and lock is not judged: from here on rows
//	        are found by their place, which is the one in the snapshot
//	again   polls that get a build again whose hand-out may have been lost. held
//	        counts the worker's builds and is exact under its lock, while builds
//	        are read as they were when the statement began: hence the lock on the
//	        row found. The count makes it wait until all workers are locked
//	want    polls that get a new build, numbered per kind of worker
//	i, a, x the oldest builds for workers of one platform, then for those that take
//	        all. The inner LIMIT is a constant, so that the planner takes the index
//	        in its order; the outer stops the scan, and the locking with it, after
//	        exactly as many rows as are wanted. The scan starts at the low mark
//	        ($14 to $16); what lies below it comes last, if at all ($18)
//	claimed the hand-outs: the n-th poll of a kind gets the n-th build. Rows are
//	        found by their place in the heap; one that moved between snapshot and
//	        lock is left for the next batch
//	turn    all polls that are served, with or without a build
//	served  the workers' rows: presence, tokens, slots. A woken poll that finds
//	        nothing writes nothing
//
// Steps hand their rows on whole and pair them by array, because joins of them
// would cost the square of the batch: the planner expects one row from each.
// Modes as in store.PollMode: 0 answer, 1 park, 2 resume, 3 expire.
const sqlServe = `
WITH found AS MATERIALIZED (
	SELECT p.*, w.*, row_number() OVER (PARTITION BY w.id ORDER BY p.nr DESC) AS nth
	FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[], $6::smallint[], $7::bigint[], $8::bool[], $17::tid[])
		WITH ORDINALITY AS p(family, token, worker, next_family, next, mode, seq, reconcile, hint, nr)
	CROSS JOIN LATERAL (
		SELECT h.id, h.ctid AS at FROM workers h WHERE h.ctid = p.hint
			AND CASE WHEN p.family IS NULL THEN h.id = p.worker ELSE h.current_family = p.family AND h.current_hash = p.token END
		UNION ALL
		SELECT c.id, c.ctid FROM workers c WHERE c.current_family = p.family AND c.current_hash = p.token
		UNION ALL
		SELECT o.id, o.ctid FROM workers o WHERE o.previous_family = p.family AND o.previous_hash = p.token
		UNION ALL
		SELECT n.id, n.ctid FROM workers n WHERE p.family IS NULL AND n.id = p.worker
		LIMIT 1
	) w
), me AS MATERIALIZED (
	SELECT f.nr, f.id, f.at, f.token, f.next_family, f.next, f.mode, f.seq, f.reconcile, w.ctid AS now_at,
		w.current_hash, w.current_expires, w.previous_hash, w.previous_expires, w.poll_seq, w.held, w.platforms,
		CASE WHEN NOT (w.draining OR w.critical AND $19) THEN w.slots WHEN w.slots = 1 AND w.held > 0 THEN 1 ELSE 0 END AS slots
	FROM found f JOIN workers w ON w.ctid = f.at
	WHERE f.nth = 1
	ORDER BY f.id FOR NO KEY UPDATE OF w
), judged AS MATERIALIZED (
	SELECT nr, id, at, next_family, next, mode, reconcile, poll_seq, held, slots, platforms, CASE
			WHEN mode >= 2 AND poll_seq <> seq THEN 'old'
			WHEN token IS NULL THEN 'id'
			WHEN token = current_hash AND (mode >= 2 OR current_expires > now()) THEN 'current'
			WHEN token = previous_hash AND (mode >= 2 OR previous_expires > now()) THEN 'previous'
			WHEN mode >= 2 THEN 'old'
			ELSE 'wrong'
		END AS shown,
		coalesce(previous_expires, '-infinity') <= now() AS alone,
		CASE
			WHEN platforms = '{}' OR platforms @> '{ios,android}' THEN 'x'
			WHEN 'ios' = ANY (platforms) THEN 'i'
			WHEN 'android' = ANY (platforms) THEN 'a'
		END AS kind
	FROM me WHERE now_at = at
), listed AS MATERIALIZED (
	SELECT * FROM unnest($9::bigint[], $10::text[]) AS l(nr, build)
), again AS MATERIALIZED (
	SELECT j.*, b.build, b.platform, b.attempt, b.has_certs, b.submitted_at
	FROM judged j CROSS JOIN LATERAL (
		SELECT b.seq, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at
		FROM builds b
		WHERE b.worker_id = j.id AND b.state = 'assigned'
			AND NOT EXISTS (SELECT FROM listed l WHERE l.nr = j.nr AND l.build = b.id)
		ORDER BY b.started_at DESC, b.seq DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
	) b
	WHERE (SELECT count(*) FROM me) > 0
		AND j.held > 0 AND j.shown IN ('current', 'previous', 'id') AND (j.reconcile OR j.shown <> 'current' OR j.slots = 1)
), want AS MATERIALIZED (
	SELECT *, (row_number() OVER (PARTITION BY kind ORDER BY nr))::int AS n FROM judged
	WHERE $13 AND held < slots AND kind IS NOT NULL AND shown IN ('current', 'previous', 'id') AND nr NOT IN (SELECT nr FROM again)
), i AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND place >= $15 AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND place < CASE WHEN $18 THEN $15 ELSE 0 END AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'i')
), a AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND place >= $16 AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND place < CASE WHEN $18 THEN $16 ELSE 0 END AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'a')
), x AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place >= $14 AND seq <> ALL ($11::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place < CASE WHEN $18 THEN $14 ELSE 0 END AND seq <> ALL ($11::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'x')
), claimed AS (
	UPDATE builds b SET state = 'assigned', worker_id = c.id, attempt = b.attempt + 1,
		started_at = now(), last_seen_at = NULL, updated_at = now()
	FROM (
		SELECT *, CASE kind
			WHEN 'x' THEN (ARRAY(SELECT tid FROM x))[n]
			WHEN 'i' THEN (ARRAY(SELECT tid FROM i))[n]
			WHEN 'a' THEN (ARRAY(SELECT tid FROM a))[n]
		END AS tid FROM want
	) c
	WHERE b.ctid = c.tid AND b.state = 'pending'
	RETURNING c.*, b.seq, b.place, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at
), logged AS (
	INSERT INTO build_logs (build, message)
	SELECT seq, 'Assigned to worker ' || id || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END
	FROM claimed
), turn AS MATERIALIZED (
	SELECT *, shown = 'current' OR shown = 'id' AND alone AS used, build IS NOT NULL OR mode IN (0, 3) AS answered,
		(place IS NOT NULL)::int AS new
	FROM (
		SELECT nr, id, at, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
			build, platform, attempt, has_certs, submitted_at, place FROM claimed
		UNION ALL
		SELECT nr, id, at, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
			build, platform, attempt, has_certs, submitted_at, NULL FROM again
		UNION ALL
		SELECT nr, id, at, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
			NULL, NULL, NULL, NULL, NULL, NULL FROM judged
		WHERE shown IN ('current', 'previous', 'id') AND nr NOT IN (SELECT nr FROM claimed) AND nr NOT IN (SELECT nr FROM again)
	) t
), served AS (
	UPDATE workers w SET
		poll_seq = w.poll_seq + 1,
		last_seen_at = now(),
		held = w.held + t.new,
		status = CASE WHEN w.held + t.new > 0 THEN 'building' ELSE 'idle' END,
		previous_family  = CASE WHEN t.answered AND t.used THEN w.current_family ELSE w.previous_family END,
		previous_hash    = CASE WHEN t.answered AND t.used THEN w.current_hash ELSE w.previous_hash END,
		previous_expires = CASE WHEN t.answered AND t.used THEN w.current_expires ELSE w.previous_expires END,
		current_family   = CASE WHEN t.answered THEN t.next_family ELSE w.current_family END,
		current_hash     = CASE WHEN t.answered THEN t.next ELSE w.current_hash END,
		current_expires  = CASE WHEN t.answered THEN now() + $12::interval ELSE w.current_expires END
	FROM turn t
	WHERE w.ctid = t.at AND (t.mode <> 2 OR t.answered)
	RETURNING t.*, w.ctid AS now_at
)
SELECT nr, id, CASE WHEN answered THEN 0 ELSE 1 END, poll_seq + 1,
	nullif(platforms, '{}'), held + new < slots, build, platform, attempt, has_certs, submitted_at, coalesce(place, 0), now_at
FROM served
UNION ALL
SELECT nr, id, 1, poll_seq, nullif(platforms, '{}'), held < slots, NULL, NULL, NULL, NULL, NULL, 0, at
FROM turn WHERE mode = 2 AND NOT answered
UNION ALL
SELECT nr, id, CASE shown WHEN 'wrong' THEN 3 ELSE 2 END, poll_seq, NULL, false, NULL, NULL, NULL, NULL, NULL, 0, NULL
FROM judged WHERE shown IN ('old', 'wrong')
UNION ALL
SELECT nr, id, CASE nth WHEN 1 THEN 9 ELSE 2 END, 0, NULL, false, NULL, NULL, NULL, NULL, NULL, 0, NULL
FROM found WHERE nth > 1 OR nr NOT IN (SELECT nr FROM judged)`

// batchArgs are the arguments of sqlServe. A nil family makes it look for the
// worker by id, as parked polls do: they know it, and their token's place in the
// row is judged all the same.
func batchArgs(polls []store.Poll, cfg QueueConfig, skip []int64, head scan, at []pgtype.TID) []any {
	n := len(polls)
	families, nextFamilies := make([]*int64, n), make([]int64, n)
	tokens, nexts := make([][]byte, n), make([][]byte, n)
	workers, modes, seqs, reconcile := make([]string, n), make([]int16, n), make([]int64, n), make([]bool, n)
	listedNr, listed := []int64{}, []string{}
	for i := range polls {
		p := &polls[i]
		parked := p.Mode == store.Resume || p.Mode == store.Expire
		if !p.Token.IsZero() {
			tokens[i] = p.Token[:]
			if family := p.Token.Family(); !parked || p.WorkerID == "" {
				families[i] = &family
			}
		}
		workers[i], modes[i], seqs[i], reconcile[i] = p.WorkerID, int16(p.Mode), p.Seq, p.Reconcile
		nextFamilies[i], nexts[i] = p.Next.Family(), p.Next[:]
		if p.Reconcile {
			for _, id := range p.Active {
				listedNr, listed = append(listedNr, int64(i+1)), append(listed, id)
			}
		}
	}
	return []any{
		families, tokens, workers, nextFamilies, nexts, modes, seqs, reconcile,
		listedNr, listed, skip, cfg.TokenTTL, true, head.from[laneAll], head.from[laneIOS], head.from[laneAndroid], at, head.below, cfg.SpareCritical,
	}
}

// batch is what sqlServe answered.
type batch struct {
	results []store.PollResult
	at      []pgtype.TID // where the workers' rows are now
	moved   []int        // polls to be served anew
	first   marks        // the first place that was claimed in each lane
}

// outcomeMoved is sqlServe's word for a worker whose row another transaction has
// changed between the statement's snapshot and its lock.
const outcomeMoved = 9

// scanPolls reads the answers. A poll without one has no worker.
func scanPolls(rows pgx.Rows, polls []store.Poll) (b batch, err error) {
	defer rows.Close()
	b.results, b.at = make([]store.PollResult, len(polls)), make([]pgtype.TID, len(polls))
	for i := range polls {
		b.results[i].Outcome = store.PollUnknownToken
		if polls[i].Token.IsZero() {
			b.results[i].Outcome = store.PollUnknownWorker
		}
	}
	for rows.Next() {
		if err := b.scan(rows); err != nil {
			return b, err
		}
	}
	return b, rows.Err()
}

// scan reads one answer.
func (b *batch) scan(rows pgx.Rows) error {
	var nr, place int64
	var r store.PollResult
	var outcome uint8
	var platforms []string
	var build *string
	var platform *store.Platform
	var attempt *int
	var certs *bool
	var submitted *time.Time
	var at pgtype.TID
	err := rows.Scan(&nr, &r.WorkerID, &outcome, &r.Seq, &platforms, &r.Free,
		&build, &platform, &attempt, &certs, &submitted, &place, &at)
	if err != nil {
		return err
	}
	i := int(nr - 1)
	if outcome == outcomeMoved {
		b.moved = append(b.moved, i)
		return nil
	}
	r.Outcome, r.Platforms = store.PollOutcome(outcome), toPlatforms(platforms)
	if build != nil {
		r.Job = &store.Job{
			BuildID: *build, Platform: *platform, Attempt: *attempt,
			HasCerts: *certs, SubmittedAt: submitted.UTC(),
		}
		r.Redelivered = place == 0
	}
	b.results[i], b.at[i] = r, at
	if place > 0 {
		if l := laneOf(r.Platforms); b.first[l] == 0 || place < b.first[l] {
			b.first[l] = place
		}
	}
	return nil
}
