package postgres

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// sqlServeIdle is what a batch costs while nothing is pending: presence and
// tokens in one update, at half the price of sqlServe. It takes a poll only if
// it shows its worker's current token, the worker holds no build, and no build
// at all is pending; every other poll it leaves as it was, and sqlServe takes it.
// So nothing is decided on a hint: which statement comes first only saves time.
//
// Workers are updated in the order of their ids, as everywhere. Who changed a
// row meanwhile is seen, because the conditions are on the row itself; rows are
// found by their place, as in sqlServe ($8), and some versions of PostgreSQL then
// leave one that has moved. Parked
// polls ($5 is 1) keep their token; those whose time is up (3) count only if
// poll_seq has not moved. What is pending is looked for as in sqlServe: from the
// lowest of the marks on ($9), and below it if that is affordable ($10).
const sqlServeIdle = `
WITH found AS MATERIALIZED (
	SELECT p.*, c.*
	FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::smallint[], $6::bigint[], $8::tid[])
		WITH ORDINALITY AS p(family, token, next_family, next, mode, seq, hint, nr)
	CROSS JOIN LATERAL (
		SELECT h.id, h.ctid AS at FROM workers h
		WHERE h.ctid = p.hint AND h.current_family = p.family AND h.current_hash = p.token
		UNION ALL
		SELECT i.id, i.ctid FROM workers i WHERE i.current_family = p.family AND i.current_hash = p.token
		LIMIT 1
	) c
	ORDER BY c.id
)
UPDATE workers w SET
	poll_seq = w.poll_seq + 1,
	last_seen_at = now(),
	status = 'idle',
	previous_family  = CASE mode WHEN 1 THEN w.previous_family ELSE w.current_family END,
	previous_hash    = CASE mode WHEN 1 THEN w.previous_hash ELSE w.current_hash END,
	previous_expires = CASE mode WHEN 1 THEN w.previous_expires ELSE w.current_expires END,
	current_family   = CASE mode WHEN 1 THEN w.current_family ELSE next_family END,
	current_hash     = CASE mode WHEN 1 THEN w.current_hash ELSE next END,
	current_expires  = CASE mode WHEN 1 THEN w.current_expires ELSE now() + $7::interval END
FROM found f
WHERE w.ctid = f.at AND w.current_hash = f.token AND w.held = 0
	AND CASE mode WHEN 3 THEN w.poll_seq = f.seq ELSE w.current_expires > now() END
	AND NOT EXISTS (SELECT FROM builds WHERE state = 'pending' AND place >= $9)
	AND NOT EXISTS (SELECT FROM builds WHERE state = 'pending' AND place < CASE WHEN $10 THEN $9 ELSE 0 END)
RETURNING nr, w.id, w.poll_seq, nullif(w.platforms, '{}'), w.ctid, NOT (w.draining OR w.critical AND $11)`

// idle remembers whether sqlServeIdle is worth trying. Safe for concurrent use.
type idle struct {
	// dry is whether the last batch of sqlServe left a free worker without a build.
	dry atomic.Bool
	// again is when a try may follow one that was in vain, in Unix nanoseconds.
	again atomic.Int64
}

// pauseInVain is how long sqlServe is used alone after sqlServeIdle was in vain:
// with builds of one platform pending and free workers of the other it would be
// so each time.
const pauseInVain = 250 * time.Millisecond

func (i *idle) worthTrying(now time.Time) bool {
	return i.dry.Load() && now.UnixNano() >= i.again.Load()
}

func (i *idle) inVain(now time.Time) { i.again.Store(now.Add(pauseInVain).UnixNano()) }

// learn takes note of what sqlServe found.
func (i *idle) learn(results []store.PollResult) {
	for k := range results {
		if r := &results[k]; r.Free && r.Job == nil {
			i.dry.Store(true)
			return
		}
	}
	i.dry.Store(false)
}

// serveIdle tries to serve polls while nothing is pending. left are the indices
// of those that it did not take; their results are not set. Without results it
// took none, and nothing was written.
func (q *Queue) serveIdle(ctx context.Context, polls []store.Poll) (results []store.PollResult, left []int, err error) {
	results = make([]store.PollResult, len(polls))
	taken := make([]pgtype.TID, len(polls))
	args, at := idleArgs(polls, q.cfg, q.db.head.begin(), q.spots.of(polls))
	if 2*len(at) < len(polls) {
		return nil, nil, nil
	}
	n := 0
	err = q.db.run(ctx, serveTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlServeIdle, args...)
		if err == nil {
			n, err = scanIdle(rows, polls, at, results, taken)
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return nil, nil, err
	}
	if 2*n < len(at) {
		q.idle.inVain(time.Now())
	}
	if n == 0 {
		return nil, nil, nil
	}
	q.spots.learn(polls, results, taken)
	for i := range taken {
		if !taken[i].Valid {
			left = append(left, i)
		}
	}
	return results, left, nil
}

// idleArgs are the arguments of sqlServeIdle for the polls that it may take, and
// the indices of these.
func idleArgs(polls []store.Poll, cfg QueueConfig, head scan, spots []pgtype.TID) (args []any, at []int) {
	n := len(polls)
	families, tokens := make([]int64, 0, n), make([][]byte, 0, n)
	nextFamilies, nexts := make([]int64, 0, n), make([][]byte, 0, n)
	modes, seqs, hints := make([]int16, 0, n), make([]int64, 0, n), make([]pgtype.TID, 0, n)
	for i := range polls {
		p := &polls[i]
		if p.Token.IsZero() || p.Mode == store.Resume {
			continue
		}
		at = append(at, i)
		families, tokens = append(families, p.Token.Family()), append(tokens, p.Token[:])
		nextFamilies, nexts = append(nextFamilies, p.Next.Family()), append(nexts, p.Next[:])
		modes, seqs, hints = append(modes, int16(p.Mode)), append(seqs, p.Seq), append(hints, spots[i])
	}
	return []any{families, tokens, nextFamilies, nexts, modes, seqs, cfg.TokenTTL, hints, slices.Min(head.from[:]), head.below, cfg.SpareCritical}, at
}

// scanIdle reads the answers to the polls at the indices at, and where their
// workers' rows are now, and counts them.
func scanIdle(rows pgx.Rows, polls []store.Poll, at []int, results []store.PollResult, taken []pgtype.TID) (n int, err error) {
	defer rows.Close()
	for rows.Next() {
		var nr int64
		var platforms []string
		var place pgtype.TID
		r := store.PollResult{Outcome: store.PollAnswered}
		if err := rows.Scan(&nr, &r.WorkerID, &r.Seq, &platforms, &place, &r.Free); err != nil {
			return n, err
		}
		i := at[nr-1]
		if polls[i].Mode == store.Park {
			r.Outcome = store.PollParked
		}
		r.Platforms = toPlatforms(platforms)
		results[i], taken[i] = r, place
		n++
	}
	return n, rows.Err()
}
