package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlServe is the group commit of polls. Its steps:
//
//	found   the polls with their workers, by token family or by id
//	me      those workers, locked in the order of their ids: whoever locks
//	        workers does it in this order, so two batches can't deadlock. Their
//	        columns are those of the newest version of the row. Of several polls of
//	        one worker the last counts
//	judged  which token was shown: current, previous, none (id) or a wrong one;
//	        a poll that parked earlier counts only if poll_seq has not moved
//	again   polls that get a build again whose hand-out may have been lost. held
//	        counts the worker's builds and is exact under its lock, while builds
//	        are read as they were when the statement began: hence the lock on the
//	        row found. The count makes it wait until all workers are locked
//	want    polls that get a new build, numbered per kind of worker
//	i, a, x the oldest builds for workers of one platform, then for those that take
//	        all. The inner LIMIT is a constant, so that the planner takes the index
//	        in its order; the outer stops the scan, and the locking with it, after
//	        exactly as many rows as are wanted. The scan starts at the low mark
//	        ($14 to $16); what lies below it comes last
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
	SELECT p.*, w.id, row_number() OVER (PARTITION BY w.id ORDER BY p.nr DESC) AS nth
	FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[], $6::smallint[], $7::bigint[], $8::bool[])
		WITH ORDINALITY AS p(family, token, worker, next_family, next, mode, seq, reconcile, nr)
	CROSS JOIN LATERAL (
		SELECT c.id FROM workers c WHERE c.current_family = p.family AND c.current_hash = p.token
		UNION ALL
		SELECT o.id FROM workers o WHERE o.previous_family = p.family AND o.previous_hash = p.token
		UNION ALL
		SELECT n.id FROM workers n WHERE p.family IS NULL AND n.id = p.worker
		LIMIT 1
	) w
), me AS MATERIALIZED (
	SELECT f.nr, f.id, f.token, f.next_family, f.next, f.mode, f.seq, f.reconcile,
		w.current_hash, w.current_expires, w.previous_hash, w.previous_expires, w.poll_seq, w.held, w.slots, w.platforms
	FROM found f JOIN workers w ON w.id = f.id
	WHERE f.nth = 1
	ORDER BY f.id FOR NO KEY UPDATE OF w
), judged AS MATERIALIZED (
	SELECT nr, id, next_family, next, mode, reconcile, poll_seq, held, slots, platforms, CASE
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
	FROM me
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
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND place < $15 AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'i')
), a AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND place >= $16 AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND place < $16 AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'a')
), x AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place >= $14 AND seq <> ALL ($11::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place < $14 AND seq <> ALL ($11::bigint[])
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
		SELECT nr, id, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
			build, platform, attempt, has_certs, submitted_at, place FROM claimed
		UNION ALL
		SELECT nr, id, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
			build, platform, attempt, has_certs, submitted_at, NULL FROM again
		UNION ALL
		SELECT nr, id, next_family, next, mode, poll_seq, held, slots, platforms, shown, alone,
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
	WHERE w.id = t.id AND (t.mode <> 2 OR t.answered)
)
SELECT nr, id, CASE WHEN answered THEN 0 ELSE 1 END, poll_seq + CASE WHEN mode <> 2 OR answered THEN 1 ELSE 0 END,
	nullif(platforms, '{}'), held + new < slots, build, platform, attempt, has_certs, submitted_at, coalesce(place, 0)
FROM turn
UNION ALL
SELECT nr, id, CASE shown WHEN 'wrong' THEN 3 ELSE 2 END, poll_seq, NULL, false, NULL, NULL, NULL, NULL, NULL, 0
FROM judged WHERE shown IN ('old', 'wrong')
UNION ALL
SELECT nr, id, 2, 0, NULL, false, NULL, NULL, NULL, NULL, NULL, 0 FROM found WHERE nth > 1`

// batchArgs are the arguments of sqlServe. A nil family makes it look for the
// worker by id, as parked polls do: they know it, and their token's place in the
// row is judged all the same.
func batchArgs(polls []store.Poll, ttl time.Duration, skip []int64, from marks) []any {
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
		listedNr, listed, skip, ttl, true, from[laneAll], from[laneIOS], from[laneAndroid],
	}
}

// scanPolls reads the answers, and the first place that was claimed in each lane.
// A poll without an answer has no worker.
func scanPolls(rows pgx.Rows, polls []store.Poll) (results []store.PollResult, first marks, err error) {
	defer rows.Close()
	results = make([]store.PollResult, len(polls))
	for i, p := range polls {
		results[i].Outcome = store.PollUnknownToken
		if p.Token.IsZero() {
			results[i].Outcome = store.PollUnknownWorker
		}
	}
	for rows.Next() {
		nr, place, r, err := scanPoll(rows)
		if err != nil {
			return nil, first, err
		}
		results[nr-1] = r
		if place > 0 {
			l := laneOf(r.Platforms)
			if first[l] == 0 || place < first[l] {
				first[l] = place
			}
		}
	}
	return results, first, rows.Err()
}

// scanPoll reads one answer, the number of its poll, and the place of the build
// that was claimed for it, 0 if none was.
func scanPoll(rows pgx.Rows) (nr, place int64, r store.PollResult, err error) {
	var outcome uint8
	var platforms []string
	var build *string
	var platform *store.Platform
	var attempt *int
	var certs *bool
	var submitted *time.Time
	err = rows.Scan(&nr, &r.WorkerID, &outcome, &r.Seq, &platforms, &r.Free,
		&build, &platform, &attempt, &certs, &submitted, &place)
	if err != nil {
		return 0, 0, r, err
	}
	r.Outcome, r.Platforms = store.PollOutcome(outcome), toPlatforms(platforms)
	if build != nil {
		r.Job = &store.Job{
			BuildID: *build, Platform: *platform, Attempt: *attempt,
			HasCerts: *certs, SubmittedAt: submitted.UTC(),
		}
		r.Redelivered = place == 0
	}
	return nr, place, r, nil
}
