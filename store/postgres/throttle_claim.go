package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlLockOwnQueues locks queues of a portal. Their budgets are spent only under these locks.
const sqlLockOwnQueues = `/* lock_own_queues */
SELECT seq FROM throttle_queues WHERE id = ANY ($1) AND portal_id = $2 ORDER BY id FOR NO KEY UPDATE`

// sqlClaim claims actions and spends the budgets of their queues. It runs under the queues'
// locks, as a separate statement, so that it sees what was committed before the locks were
// taken. Its clock is the start of the statement. It claims at most @most actions, in claims
// of at most @call, for @lease seconds. It reads about @each actions per queue, and spends
// budget up to @ahead seconds before that is available. Its steps:
//
//	t       reads the queues with their rates
//	room    computes what is left of each budget, now (free) and soon (soon). Spent budget
//	        is available again one period after its window has ended
//	head    reads the first due actions of each queue, expired ones last
//	gone    ends the expired ones, also in paused queues
//	pick    chooses the actions to claim, from all queues in turn, so that a long queue
//	        delays no other. Actions that must wait for budget (later) get claims of their
//	        own
//	number  numbers the claims; each is one call to HubSpot
//	claimed claims the actions
//	spent   counts them by claim and queue
//	taken   records what is spent, in windows that end with the lease unless a result
//	        ends them earlier
//	waits   computes until when a claim must wait for its budget
//	freed   deletes windows whose budget is available again
//
// While the locks are held, only a result that arrives after its lease also writes due
// actions. Rows are found by ctid, and finished_at IS NULL replaces the condition on the
// state, because no plan may read all waiting actions: the index of waiting actions does
// not match that condition.
const sqlClaim = `/* claim */
WITH t AS MATERIALIZED (
	SELECT q.seq, q.id, o.nr, c.max_throughput AS most, q.paused_at IS NOT NULL AS paused, p.period, statement_timestamp() - p.period AS since
	FROM unnest(@queues::text[]) WITH ORDINALITY AS o(id, nr) JOIN throttle_queues q ON q.id = o.id
		JOIN throttle_configs c ON c.portal_id = q.portal_id AND c.action_id = q.action_id
		CROSS JOIN LATERAL make_interval(secs => ` + periodSeconds + `) AS p(period)
), room AS MATERIALIZED (
	SELECT t.seq, t.most - coalesce(w.spent, 0) AS free, t.most - coalesce(w.still, 0) AS soon
	FROM t CROSS JOIN LATERAL (
		SELECT sum(w.n) AS spent, sum(w.n) FILTER (WHERE w.ended_at > t.since + make_interval(secs => @ahead)) AS still
		FROM throttle_windows w WHERE w.queue = t.seq AND w.ended_at > t.since
	) w
), head AS MATERIALIZED (
	SELECT t.seq, t.nr, h.*, row_number() OVER (PARTITION BY t.seq ORDER BY h.late, h.due_at) AS position
	FROM t JOIN room r ON r.seq = t.seq CROSS JOIN LATERAL (
		SELECT a.ctid AS row, a.due_at, a.expires_at <= statement_timestamp() AS late
		FROM action_executions a
		WHERE a.queue = t.seq AND a.state = 'waiting' AND a.due_at <= statement_timestamp()
		ORDER BY a.due_at LIMIT 100 + greatest(least(r.soon, @each::bigint), 0)
	) h
	WHERE h.late OR NOT t.paused
), gone AS (
	UPDATE action_executions a SET state = 'expired', finished_at = now(), claim = 0
	FROM head h WHERE h.late AND a.ctid = h.row AND a.finished_at IS NULL RETURNING 1
), pick AS MATERIALIZED (
	SELECT p.seq, p.row, p.position, p.later, (row_number() OVER (PARTITION BY p.later ORDER BY p.position, p.nr) - 1) / @call::bigint AS call
	FROM (
		SELECT h.seq, h.row, h.position, h.nr, h.position > r.free AS later FROM head h JOIN room r ON r.seq = h.seq
		WHERE NOT h.late AND h.position <= r.soon
		ORDER BY later, h.position, h.nr LIMIT @most
	) p
), number AS MATERIALIZED (
	SELECT d.later, d.call, nextval('throttle_claims') AS claim FROM (SELECT DISTINCT later, call FROM pick ORDER BY later, call) d
), claimed AS (
	UPDATE action_executions a SET claim = n.claim, due_at = statement_timestamp() + make_interval(secs => @lease)
	FROM pick p JOIN number n ON n.later = p.later AND n.call = p.call WHERE a.ctid = p.row AND a.finished_at IS NULL
	RETURNING a.queue, a.claim, a.callback_id, a.giving_up
), spent AS MATERIALIZED (
	SELECT p.seq, n.claim, count(*) AS n, max(p.position) AS position
	FROM pick p JOIN number n ON n.later = p.later AND n.call = p.call GROUP BY p.seq, n.claim
), taken AS (
	INSERT INTO throttle_windows (queue, claim, n, taken_at, ended_at)
	SELECT s.seq, s.claim, s.n, statement_timestamp(), statement_timestamp() + make_interval(secs => @lease) FROM spent s
), waits AS MATERIALIZED (
	SELECT s.claim, max(w.back) AS until FROM spent s JOIN t ON t.seq = s.seq JOIN room r ON r.seq = s.seq CROSS JOIN LATERAL (
		SELECT min(x.ended_at) FILTER (WHERE x.sum >= s.position - r.free) + t.period AS back FROM (
			SELECT w.ended_at, sum(w.n) OVER (ORDER BY w.ended_at, w.id) FROM throttle_windows w
			WHERE w.queue = s.seq AND w.ended_at > t.since AND w.ended_at <= t.since + make_interval(secs => @ahead)
		) x
	) w
	WHERE s.position > r.free GROUP BY s.claim
), freed AS (
	DELETE FROM throttle_windows w USING t WHERE w.queue = t.seq AND w.ended_at <= t.since
)
SELECT (SELECT count(*) FROM gone), coalesce(c.claim, 0), coalesce(extract(epoch FROM c.until - clock_timestamp()), 0)::float8,
	coalesce(c.name, ''), coalesce(c.callback_id, ''), coalesce(c.giving_up, false)
FROM (VALUES (1)) one LEFT JOIN (
	SELECT c.*, t.id AS name, w.until FROM claimed c JOIN t ON t.seq = c.queue LEFT JOIN waits w ON w.claim = c.claim
) c ON true
ORDER BY c.claim, c.callback_id`

// sqlDues returns for each of the queues $1 when actions can be claimed from it next. $2 is
// the most actions of one claim. If budget becomes available in small parts, the time is up
// to $3 seconds later, so that more actions can be claimed together. $4 is how many seconds
// early budget may be claimed. The spent budget may exceed the whole budget, because it
// includes both early claims and the budget that these wait for.
const sqlDues = `/* dues */
WITH t AS MATERIALIZED (
	SELECT q.seq, q.id, c.max_throughput AS most, q.paused_at IS NOT NULL AS paused,
		` + periodSeconds + ` AS period
	FROM throttle_queues q JOIN throttle_configs c ON c.portal_id = q.portal_id AND c.action_id = q.action_id
	WHERE q.id = ANY ($1)
)
SELECT t.id, f.due_at IS NOT NULL AND (f.late OR NOT t.paused), t.period, w.used >= t.most,
	coalesce(extract(epoch FROM greatest(f.due_at, CASE WHEN w.used >= t.most AND NOT t.paused THEN w.back - make_interval(secs => $4) END)
		- statement_timestamp()), 0)::float8
FROM t LEFT JOIN LATERAL (
	SELECT a.due_at, a.expires_at <= statement_timestamp() AS late
	FROM action_executions a WHERE a.queue = t.seq AND a.state = 'waiting' ORDER BY a.due_at LIMIT 1
) f ON true
LEFT JOIN LATERAL (
	SELECT count(*) AS n FROM (SELECT FROM action_executions a
		WHERE a.queue = t.seq AND a.state = 'waiting' AND a.due_at <= statement_timestamp() LIMIT $2) d
) d ON true
LEFT JOIN LATERAL (
	SELECT coalesce(max(x.used), 0) AS used, make_interval(secs => t.period) + least(
		min(x.ended_at) FILTER (WHERE x.sum > x.used - t.most) + make_interval(secs => least($3, t.period / 100)),
		min(x.ended_at) FILTER (WHERE x.sum >= x.used - t.most + least($2, t.most, greatest(d.n, 1)))) AS back
	FROM (
		SELECT w.ended_at, sum(w.n) OVER (ORDER BY w.ended_at, w.id), sum(w.n) OVER () AS used FROM throttle_windows w
		WHERE w.queue = t.seq AND w.ended_at > statement_timestamp() - make_interval(secs => t.period)
	) x
) w ON true`

// roundUp is added to each wait, so that no call is too early because the clocks of database
// and controller round differently.
const roundUp = time.Millisecond

// Claim claims actions that may be completed now, or up to r.Ahead later (at the claim's
// NotBefore), as many as the budgets of their queues allow, and spends that budget. No other
// method spends budget. Actions that have expired are ended.
func (t *Throttle) Claim(ctx context.Context, r store.ClaimRequest) (claims store.Claims, err error) {
	if r.Batch <= 0 {
		r.Batch = max(r.Limit, 1)
	}
	err = t.db.write(fmt.Sprintf("claiming actions of portal %d", r.PortalID)).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		claims = store.Claims{}
		if _, err := tx.Exec(ctx, sqlLockOwnQueues, r.Queues, r.PortalID); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue(sqlClaim, pgx.NamedArgs{
			"queues": r.Queues, "most": r.Limit, "lease": r.Lease.Seconds(), "call": r.Batch,
			"each": max(r.Batch, r.Limit/max(len(r.Queues), 1)), "ahead": r.Ahead.Seconds(),
		}).Query(func(rows pgx.Rows) error { return scanClaims(rows, &claims) })
		batch.Queue(sqlDues, r.Queues, r.Batch, r.MaxLinger.Seconds(), r.Ahead.Seconds()).Query(func(rows pgx.Rows) error {
			var q store.QueueDue
			var period, in float64
			_, err := pgx.ForEachRow(rows, []any{&q.Queue, &q.Waiting, &period, &q.Blocked, &in}, func() error {
				// time.Now is later than the statement's clock, so no claim is early.
				q.Period, q.At = seconds(period), time.Now().Add(max(seconds(in), 0))
				claims.Queues = append(claims.Queues, q)
				return nil
			})
			return err
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return store.Claims{}, err
	}
	return claims, nil
}

// scanClaims reads the result of sqlClaim. Its waits count from before the result arrived,
// so adding them to time.Now is never early.
func scanClaims(rows pgx.Rows, claims *store.Claims) error {
	var number int64
	var a store.ClaimedAction
	var wait float64
	_, err := pgx.ForEachRow(rows, []any{&claims.Expired, &number, &wait, &a.Queue, &a.CallbackID, &a.GivingUp}, func() error {
		if number == 0 {
			return nil
		}
		if n := len(claims.Claims); n == 0 || claims.Claims[n-1].Number != number {
			c := store.Claim{Number: number}
			if wait > 0 {
				c.NotBefore = time.Now().Add(seconds(wait) + roundUp)
			}
			claims.Claims = append(claims.Claims, c)
		}
		c := &claims.Claims[len(claims.Claims)-1]
		c.Actions = append(c.Actions, a)
		return nil
	})
	return err
}

// whereHeld selects the actions of a portal among @callbacks that still belong to the claim.
// It looks up each action by itself, whatever the plan.
const whereHeld = `
ctid = ANY (ARRAY(SELECT a.ctid FROM unnest(@callbacks::text[]) AS u(callback) CROSS JOIN LATERAL (
	SELECT ctid FROM action_executions WHERE portal_id = @portal AND callback_id = u.callback OFFSET 0
) a)) AND claim = @claim AND finished_at IS NULL`

const sqlConfirm = `/* confirm */
SELECT callback_id, extract(epoch FROM due_at - clock_timestamp())::float8 FROM action_executions
WHERE due_at > clock_timestamp() AND ` + whereHeld

// Confirm returns which of a portal's actions still belong to the claim, and for how long
// all of these still do. A caller that was delayed after the claim uses it before it calls
// HubSpot.
func (t *Throttle) Confirm(ctx context.Context, claim, portal int64, callbacks []string) (held []string, left time.Duration, err error) {
	var id string
	var secs float64
	err = t.db.read(fmt.Sprintf("confirming claim %d", claim)).each(ctx, []any{&id, &secs}, func() error {
		if d := seconds(secs); len(held) == 0 || d < left {
			left = d
		}
		held = append(held, id)
		return nil
	}, sqlConfirm, pgx.NamedArgs{"claim": claim, "portal": portal, "callbacks": callbacks})
	return held, left, err
}

const (
	// sqlComplete ends actions that HubSpot has acknowledged, and counts the completed ones by
	// queue. It clears giving_up, which an action that was given up keeps only if HubSpot
	// could not be told so.
	sqlComplete = `/* complete */
WITH ended AS (
	UPDATE action_executions SET state = CASE WHEN giving_up THEN 'given_up' ELSE 'completed' END, giving_up = false, finished_at = now(), claim = 0
	WHERE ` + whereHeld + `
	RETURNING queue, state
), counted AS (
	INSERT INTO throttle_totals AS t (queue, completed)
	SELECT queue, count(*) FROM ended WHERE state = 'completed' GROUP BY queue ORDER BY queue
	ON CONFLICT (queue) DO UPDATE SET completed = t.completed + excluded.completed
)
SELECT count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'given_up') FROM ended`

	// sqlFail records a failure of each action. The next try is @retry seconds later, doubled
	// by each further failure. After every @hold_every failures the action is held for @hold
	// seconds. After @give_up failures it is to be given up, by completing it with
	// FAIL_CONTINUE; if that fails as well, it is given up without.
	sqlFail = `/* fail */
WITH failed AS (
	UPDATE action_executions SET failures = failures + 1, last_error = @error, claim = 0,
		state = CASE WHEN giving_up THEN 'given_up' ELSE state END,
		finished_at = CASE WHEN giving_up THEN now() END,
		giving_up = giving_up OR failures + 1 >= @give_up,
		due_at = now() + make_interval(secs => CASE
			WHEN failures + 1 >= @give_up THEN 0
			WHEN (failures + 1) % @hold_every = 0 THEN @hold
			ELSE @retry * power(2, failures % @hold_every) END::float8)
	WHERE ` + whereHeld + `
	RETURNING state, failures % @hold_every = 0 AND NOT giving_up AS held
)
SELECT count(*), count(*) FILTER (WHERE held), count(*) FILTER (WHERE state = 'given_up') FROM failed`

	sqlRelease = `/* release */
UPDATE action_executions SET due_at = now() + make_interval(secs => @retry), claim = 0, last_error = nullif(@error, '')
WHERE ` + whereHeld

	// sqlEndWindows ends a claim's windows as of $2 seconds ago, unless they have ended
	// earlier. The budget is available again one period after that.
	sqlEndWindows = `/* end_windows */
UPDATE throttle_windows SET ended_at = now() - make_interval(secs => $2)
WHERE claim = $1 AND ended_at > now() - make_interval(secs => $2)`

	sqlRefund = `/* refund */ DELETE FROM throttle_windows WHERE claim = $1`

	// sqlQueueErrors records the last error of the actions' queues, for operators. It locks the
	// queues in order.
	sqlQueueErrors = `/* queue_errors */
WITH q AS MATERIALIZED (
	SELECT seq FROM throttle_queues WHERE seq = ANY (ARRAY(SELECT a.queue FROM unnest($2::text[]) AS u(callback) CROSS JOIN LATERAL (
		SELECT queue FROM action_executions WHERE portal_id = $1 AND callback_id = u.callback OFFSET 0
	) a)) ORDER BY id FOR NO KEY UPDATE
)
UPDATE throttle_queues t SET last_error = left($3, 1000) FROM q WHERE t.seq = q.seq`
)

// maxAgo is the greatest accepted age of a result. It is limited, because it is measured by
// the controller's clock, which may run faster than the database's.
const maxAgo = time.Second

// Record writes the results of a claim's actions. It does not change actions that no longer
// belong to the claim, so repeating it is harmless.
func (t *Throttle) Record(ctx context.Context, o store.Outcome) (r store.Recorded, err error) {
	err = t.db.write(fmt.Sprintf("recording claim %d", o.Claim)).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		r = store.Recorded{}
		return tx.SendBatch(ctx, recordBatch(o, &r)).Close()
	})
	if err != nil {
		return store.Recorded{}, err
	}
	return r, nil
}

// recordBatch returns the statements of Record, whose results go into r.
func recordBatch(o store.Outcome, r *store.Recorded) *pgx.Batch {
	text := store.ErrorText(o.Error)
	b := &pgx.Batch{}
	args := func(callbacks []string) pgx.NamedArgs {
		return pgx.NamedArgs{
			"claim": o.Claim, "portal": o.PortalID, "callbacks": callbacks, "retry": o.Retry.Seconds(), "error": text,
			"hold_every": o.Rule.HoldEvery, "hold": o.Rule.Hold.Seconds(), "give_up": o.Rule.GiveUp,
		}
	}
	if len(o.Done) > 0 {
		b.Queue(sqlComplete, args(o.Done)).QueryRow(func(row pgx.Row) error { return row.Scan(&r.Completed, &r.GivenUp) })
	}
	if len(o.Failed) > 0 {
		b.Queue(sqlFail, args(o.Failed)).QueryRow(func(row pgx.Row) error {
			var givenUp int
			err := row.Scan(&r.Failed, &r.Held, &givenUp)
			r.GivenUp += givenUp
			return err
		})
	}
	if len(o.Released) > 0 {
		b.Queue(sqlRelease, args(o.Released))
	}
	switch {
	case o.Refund:
		b.Queue(sqlRefund, o.Claim)
	case !o.Unanswered:
		b.Queue(sqlEndWindows, o.Claim, min(max(o.Ago, 0), maxAgo).Seconds())
	}
	if o.Error != "" {
		b.Queue(sqlQueueErrors, o.PortalID, slices.Concat(o.Failed, o.Released), text)
	}
	return b
}

const sqlNote = `/* note */
WITH q AS MATERIALIZED (SELECT seq FROM throttle_queues WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE)
UPDATE throttle_queues t SET last_error = left($2, 1000) FROM q WHERE t.seq = q.seq`

// Note records why these queues are not served, for operators.
func (t *Throttle) Note(ctx context.Context, queues []string, text string) error {
	_, err := t.db.write("noting an error").exec(ctx, sqlNote, queues, store.ErrorText(text))
	return err
}
