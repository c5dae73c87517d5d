package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// sqlServePlain is sqlServe for the polls that most loads are made of, with a
// third of its steps: a poll that shows its worker's current token, of a worker
// that takes all platforms, is found where it was last seen, and cannot be owed a
// build whose hand-out was lost. Whatever else it meets it leaves as it was, and
// sqlServe takes it.
//
// The steps are named as there. Where PostgreSQL follows a row that has moved
// between snapshot and lock, its place is not the hint, and it is left too.
const sqlServePlain = `
WITH me AS MATERIALIZED (
	SELECT p.nr, p.hint, p.next_family, p.next, p.mode, w.ctid AS at, w.id, w.held, w.slots, w.platforms
	FROM unnest($1::tid[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::smallint[])
		WITH ORDINALITY AS p(hint, family, token, next_family, next, mode, nr)
	JOIN workers w ON w.ctid = p.hint
	WHERE w.current_family = p.family AND w.current_hash = p.token AND w.current_expires > now()
		AND (w.held = 0 OR w.slots > 1) AND w.held < w.slots AND NOT w.draining AND NOT w.critical
		AND (w.platforms = '{}' OR w.platforms @> '{ios,android}')
	ORDER BY w.id FOR NO KEY UPDATE OF w
), want AS MATERIALIZED (
	SELECT *, (row_number() OVER (ORDER BY nr))::int AS n FROM me WHERE at = hint
), x AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place >= $8 AND seq <> ALL ($7::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND place < CASE WHEN $9 THEN $8 ELSE 0 END AND seq <> ALL ($7::bigint[])
		ORDER BY place LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want)
), claimed AS (
	UPDATE builds b SET state = 'assigned', worker_id = c.id, attempt = b.attempt + 1,
		started_at = now(), last_seen_at = NULL, updated_at = now()
	FROM (SELECT *, (ARRAY(SELECT tid FROM x))[n] AS tid FROM want) c
	WHERE b.ctid = c.tid AND b.state = 'pending'
	RETURNING c.*, b.seq, b.place, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at
), logged AS (
	INSERT INTO build_logs (build, message)
	SELECT seq, 'Assigned to worker ' || id || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END
	FROM claimed
), turn AS (
	SELECT nr, id, at, next_family, next, slots, platforms, true AS answered, 1 AS new,
		build, platform, attempt, has_certs, submitted_at, place FROM claimed
	UNION ALL
	SELECT nr, id, at, next_family, next, slots, platforms, mode = 0, 0,
		NULL, NULL, NULL, NULL, NULL, 0 FROM want WHERE nr NOT IN (SELECT nr FROM claimed)
)
UPDATE workers w SET
	poll_seq = w.poll_seq + 1,
	last_seen_at = now(),
	held = w.held + t.new,
	status = CASE WHEN w.held + t.new > 0 THEN 'building' ELSE 'idle' END,
	previous_family  = CASE WHEN t.answered THEN w.current_family ELSE w.previous_family END,
	previous_hash    = CASE WHEN t.answered THEN w.current_hash ELSE w.previous_hash END,
	previous_expires = CASE WHEN t.answered THEN w.current_expires ELSE w.previous_expires END,
	current_family   = CASE WHEN t.answered THEN t.next_family ELSE w.current_family END,
	current_hash     = CASE WHEN t.answered THEN t.next ELSE w.current_hash END,
	current_expires  = CASE WHEN t.answered THEN now() + $10::interval ELSE w.current_expires END
FROM turn t
WHERE w.ctid = t.at
RETURNING t.nr, w.id, CASE WHEN t.answered THEN 0 ELSE 1 END, w.poll_seq, nullif(w.platforms, '{}'), w.held < w.slots,
	t.build, t.platform, t.attempt, t.has_certs, t.submitted_at, t.place, w.ctid`

// servePlain tries to serve polls with sqlServePlain, if all of them look as if
// it would take them. left are the indices of those that it did not take; without
// results it took none, and nothing was written.
func (q *Queue) servePlain(ctx context.Context, polls []store.Poll) (results []store.PollResult, left []int, err error) {
	places := q.spots.plain(polls)
	if places == nil {
		return nil, nil, nil
	}
	head := q.db.head.begin()
	var b batch
	args := plainArgs(polls, q.cfg, q.skip.list(), head, places)
	err = q.db.run(ctx, serveTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlServePlain, args...)
		if err == nil {
			b, err = scanPolls(rows, polls)
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		q.db.head.undo(head)
		return nil, nil, err
	}
	q.db.head.end(head, b.first)
	q.spots.learn(polls, b.results, b.at)
	for i := range b.at {
		if !b.at[i].Valid {
			left = append(left, i)
		}
	}
	if len(left) == len(polls) {
		return nil, nil, nil
	}
	return b.results, left, nil
}

func plainArgs(polls []store.Poll, cfg QueueConfig, skip []int64, head scan, places []pgtype.TID) []any {
	n := len(polls)
	families, nextFamilies := make([]int64, n), make([]int64, n)
	tokens, nexts, modes := make([][]byte, n), make([][]byte, n), make([]int16, n)
	for i := range polls {
		p := &polls[i]
		families[i], tokens[i] = p.Token.Family(), p.Token[:]
		nextFamilies[i], nexts[i], modes[i] = p.Next.Family(), p.Next[:], int16(p.Mode)
	}
	return []any{
		places, families, tokens, nextFamilies, nexts, modes, skip, head.from[laneAll], head.below, cfg.TokenTTL,
	}
}
