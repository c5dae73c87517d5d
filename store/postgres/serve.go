package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlServe is the group commit of polls. Its steps:
//
//	p       the polls, numbered as they came
//	found   their workers, by token family or by id; of several polls of one
//	        worker the last counts
//	me      those workers, locked in the order of their ids: whoever locks
//	        workers does it in this order, so two batches can't deadlock. What is
//	        read from here on is the newest version of the row
//	judged  which token was shown: current, previous, none (id) or a wrong one;
//	        a poll that parked earlier counts only if poll_seq has not moved
//	again   builds whose hand-out may have been lost. held counts the worker's
//	        builds and is exact under its lock, while builds are read as they were
//	        when the statement began: hence the lock on the row found
//	want    polls that get a new build, numbered per kind of worker
//	a, i, x the oldest builds for workers of one platform and then for those that
//	        take all. The inner LIMIT is a constant, so that the planner takes the
//	        index in its order; the outer stops the scan, and the locking with it,
//	        after exactly as many rows as are wanted
//	claimed the hand-outs. Rows are found by their place in the heap; one that
//	        moved between snapshot and lock is left for the next batch
//	served  the workers' rows: presence, tokens, slots. A woken poll that finds
//	        nothing writes nothing
//
// Modes as in store.PollMode: 0 answer, 1 park, 2 resume, 3 expire.
const sqlServe = `
WITH p AS MATERIALIZED (
	SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bytea[], $6::smallint[], $7::bigint[], $8::bool[])
		WITH ORDINALITY AS p(family, token, worker, next_family, next, mode, seq, reconcile, nr)
), found AS MATERIALIZED (
	SELECT p.*, w.id, row_number() OVER (PARTITION BY w.id ORDER BY p.nr DESC) AS nth
	FROM p CROSS JOIN LATERAL (
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
	SELECT *, CASE
			WHEN mode >= 2 AND poll_seq <> seq THEN 'old'
			WHEN token IS NULL THEN 'id'
			WHEN token = current_hash AND (mode >= 2 OR current_expires > now()) THEN 'current'
			WHEN token = previous_hash AND (mode >= 2 OR previous_expires > now()) THEN 'previous'
			WHEN mode >= 2 THEN 'old'
			ELSE 'wrong'
		END AS shown,
		CASE
			WHEN platforms = '{}' OR platforms @> '{ios,android}' THEN 'x'
			WHEN 'ios' = ANY (platforms) THEN 'i'
			WHEN 'android' = ANY (platforms) THEN 'a'
		END AS kind
	FROM me
), listed AS MATERIALIZED (
	SELECT * FROM unnest($9::bigint[], $10::text[]) AS l(nr, build)
), again AS MATERIALIZED (
	SELECT j.nr, b.* FROM judged j CROSS JOIN LATERAL (
		SELECT b.seq, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at
		FROM builds b
		WHERE b.worker_id = j.id AND b.state = 'assigned' AND CASE WHEN j.reconcile
			THEN NOT EXISTS (SELECT FROM listed l WHERE l.nr = j.nr AND l.build = b.id)
			ELSE j.shown <> 'current' OR j.slots = 1 END
		ORDER BY b.started_at DESC, b.seq DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
	) b
	WHERE j.held > 0 AND j.shown IN ('current', 'previous', 'id')
), want AS MATERIALIZED (
	SELECT nr, kind, row_number() OVER (PARTITION BY kind ORDER BY nr) AS n FROM judged
	WHERE $13 AND held < slots AND kind IS NOT NULL AND shown IN ('current', 'previous', 'id') AND nr NOT IN (SELECT nr FROM again)
), i AS MATERIALIZED (
	SELECT 'i' AS kind, tid, row_number() OVER () AS n FROM (SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED
	) c LIMIT (SELECT count(*) FROM want WHERE kind = 'i')) c
), a AS MATERIALIZED (
	SELECT 'a' AS kind, tid, row_number() OVER () AS n FROM (SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND seq <> ALL ($11::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED
	) c LIMIT (SELECT count(*) FROM want WHERE kind = 'a')) c
), x AS MATERIALIZED (
	SELECT 'x' AS kind, tid, row_number() OVER () AS n FROM (SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND seq <> ALL ($11::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED
	) c LIMIT (SELECT count(*) FROM want WHERE kind = 'x')) c
), claimed AS (
	UPDATE builds b SET state = 'assigned', worker_id = c.id, attempt = b.attempt + 1,
		started_at = now(), last_seen_at = NULL, updated_at = now()
	FROM (
		SELECT want.nr, judged.id, t.tid
		FROM (SELECT * FROM x UNION ALL SELECT * FROM i UNION ALL SELECT * FROM a) t
			JOIN want ON want.kind = t.kind AND want.n = t.n JOIN judged ON judged.nr = want.nr
	) c
	WHERE b.ctid = c.tid AND b.state = 'pending'
	RETURNING c.nr, c.id AS worker, b.seq, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at
), logged AS (
	INSERT INTO build_logs (build, message)
	SELECT seq, 'Assigned to worker ' || worker || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END
	FROM claimed
), job AS (
	SELECT nr, build, platform, attempt, has_certs, submitted_at, 1 AS new FROM claimed
	UNION ALL
	SELECT nr, build, platform, attempt, has_certs, submitted_at, 0 FROM again
), turn AS MATERIALIZED (
	SELECT j.*, job.build, job.platform, job.attempt, job.has_certs, job.submitted_at, coalesce(job.new, 0) AS new,
		j.mode IN (0, 3) OR job.nr IS NOT NULL AS answered,
		j.shown = 'current' OR j.shown = 'id' AND (j.previous_hash IS NULL OR j.previous_expires <= now()) AS used
	FROM judged j LEFT JOIN job ON job.nr = j.nr
	WHERE j.shown IN ('current', 'previous', 'id')
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
SELECT f.nr, f.id, CASE
		WHEN t.answered THEN 0
		WHEN t.nr IS NOT NULL THEN 1
		WHEN j.shown = 'wrong' THEN 3
		ELSE 2
	END,
	coalesce(j.poll_seq + CASE WHEN t.mode <> 2 OR t.answered THEN 1 ELSE 0 END, 0),
	nullif(j.platforms, '{}'), coalesce(j.held + t.new < j.slots, false),
	t.build, t.platform, t.attempt, t.has_certs, t.submitted_at, t.new = 0
FROM found f LEFT JOIN judged j ON j.nr = f.nr LEFT JOIN turn t ON t.nr = f.nr`

// batchArgs are the arguments of sqlServe. A nil family makes it look for the
// worker by id, as parked polls do: they know it, and their token's place in the
// row is judged all the same.
func batchArgs(polls []store.Poll, ttl time.Duration, skip []int64) []any {
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
		listedNr, listed, skip, ttl, true,
	}
}

// scanPolls reads the answers. A poll without one has no worker.
func scanPolls(rows pgx.Rows, polls []store.Poll) ([]store.PollResult, error) {
	defer rows.Close()
	results := make([]store.PollResult, len(polls))
	for i, p := range polls {
		results[i].Outcome = store.PollUnknownToken
		if p.Token.IsZero() {
			results[i].Outcome = store.PollUnknownWorker
		}
	}
	for rows.Next() {
		var nr int64
		var r store.PollResult
		var outcome int16
		var platforms []string
		var build *string
		var platform *store.Platform
		var attempt *int
		var certs, redelivered *bool
		var submitted *time.Time
		err := rows.Scan(&nr, &r.WorkerID, &outcome, &r.Seq, &platforms, &r.Free,
			&build, &platform, &attempt, &certs, &submitted, &redelivered)
		if err != nil {
			return nil, err
		}
		r.Outcome, r.Platforms = store.PollOutcome(outcome), toPlatforms(platforms) //nolint:gosec // 0 to 3
		if build != nil {
			r.Job = &store.Job{
				BuildID: *build, Platform: *platform, Attempt: *attempt,
				HasCerts: *certs, SubmittedAt: submitted.UTC(),
			}
			r.Redelivered = *redelivered
		}
		results[nr-1] = r
	}
	return results, rows.Err()
}
