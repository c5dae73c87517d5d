package postgres

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// queueStatus selects the columns that scanQueue reads, for the queues p.
const queueStatus = `
SELECT q.id, q.portal_id, q.workflow_id, q.action_id, c.max_throughput, c.time_period, c.time_unit,
	coalesce(a.depth, 0), coalesce(a.held, 0), coalesce(a.inflight, 0), coalesce(n.completed, 0), a.oldest, least(coalesce(w.used, 0), c.max_throughput),
	CASE WHEN a.depth > 0 AND q.paused_at IS NULL THEN greatest(a.due, CASE WHEN w.used >= c.max_throughput THEN w.back END, now()) END,
	coalesce(q.last_error, ''), q.paused_at IS NOT NULL, q.runner_at, q.key
FROM p q JOIN throttle_configs c ON c.portal_id = q.portal_id AND c.action_id = q.action_id
LEFT JOIN throttle_totals n ON n.queue = q.seq
LEFT JOIN LATERAL (
	SELECT count(*) AS depth, min(received_at) AS oldest, min(due_at) AS due, count(*) FILTER (WHERE claim > 0 AND due_at > now()) AS inflight,
		count(*) FILTER (WHERE claim = 0 AND due_at > now()) AS held
	FROM action_executions WHERE queue = q.seq AND state = 'waiting'
) a ON true
LEFT JOIN LATERAL (
	SELECT sum(n) AS used, min(ended_at) + p.period AS back FROM throttle_windows,
		make_interval(secs => ` + periodSeconds + `) AS p(period)
	WHERE queue = q.seq AND ended_at > now() - p.period GROUP BY p.period
) w ON true`

const (
	// sqlQueues has two orders. With @oldest, it orders queues by their oldest waiting action,
	// then queues without any by when they last became busy, newest first. Otherwise, which
	// costs less, queues with waiting actions come first, each group by id.
	sqlQueues = `/* queues */
WITH p AS MATERIALIZED (
	SELECT * FROM (
		SELECT q.*, CASE WHEN @oldest THEN coalesce((SELECT (extract(epoch FROM min(received_at)) * 1000000)::bigint FROM action_executions WHERE queue = q.seq AND state = 'waiting'),
				9e18::bigint - (extract(epoch FROM received_at) * 1000000)::bigint)
			ELSE (NOT EXISTS (SELECT FROM action_executions WHERE queue = q.seq AND state = 'waiting'))::int END AS key
		FROM throttle_queues q WHERE @portal::bigint = 0 OR portal_id = @portal
	) q WHERE (key, id) > (@after, @after_id) AND (key, id) <= (@until, @until_id)
	ORDER BY key, id OFFSET @skip::int LIMIT @limit::int
)` + queueStatus + ` ORDER BY q.key, q.id`

	sqlQueue = `/* queue */ WITH p AS (SELECT *, 0::bigint AS key FROM throttle_queues WHERE id = $1)` + queueStatus
)

// Queues returns a page of the queues of a portal, or of all portals if portal is 0. Queues
// with waiting actions come first; with oldest, those whose actions have waited longest.
func (t *Throttle) Queues(ctx context.Context, portal int64, oldest bool, p store.Page) ([]store.QueueStatus, store.Cursor, error) {
	list := "queues"
	if oldest {
		list = "queues by age"
	}
	after, until := int64(math.MinInt64), int64(math.MaxInt64)
	var afterID, untilID string
	if err := errors.Join(p.After.Keys(list, &after, &afterID), p.Until.Keys(list, &until, &untilID)); err != nil {
		return nil, "", err
	}
	args := pgx.NamedArgs{"portal": portal, "oldest": oldest, "after": after, "after_id": afterID, "until": until, "until_id": untilID}
	return pageOf(ctx, t.db.read("listing throttle queues"), scanQueue,
		func(q store.QueueStatus) store.Cursor { return store.NewCursor(list, q.Key, q.ID) }, sqlQueues, p, args)
}

// Queue returns one queue. Error: NotFound.
func (t *Throttle) Queue(ctx context.Context, id string) (store.QueueStatus, error) {
	return rowOf(ctx, t.db.read("reading a throttle queue"), errNoQueue, scanQueue, sqlQueue, id)
}

func errNoQueue() error { return store.NewError(store.NotFound, "Queue not found") }

func scanQueue(row pgx.CollectableRow) (q store.QueueStatus, err error) {
	err = row.Scan(&q.ID, &q.PortalID, &q.WorkflowID, &q.ActionID, &q.Config.MaxThroughput, &q.Config.TimePeriod, &q.Config.TimeUnit,
		&q.Depth, &q.Held, &q.InFlight, &q.Completed, &q.Oldest, &q.RateUsed, &q.NextDue, &q.LastError, &q.Paused, &q.RunnerAt, &q.Key)
	q.Config.PortalID, q.Config.ActionID = q.PortalID, q.ActionID
	return q, err
}

const (
	sqlPause = `/* pause */
WITH q AS (
	UPDATE throttle_queues SET paused_at = CASE WHEN $2 THEN coalesce(paused_at, now()) END WHERE id = $1 RETURNING id
)
SELECT pg_notify('takt', 'throttle:queue ' || id) FROM q`

	// sqlRedrive makes failed actions due now, and revives actions that were given up
	// because HubSpot could not be told so.
	sqlRedrive = `/* redrive */
UPDATE action_executions a SET due_at = now(), failures = 0, giving_up = false, state = 'waiting', finished_at = NULL
FROM throttle_queues q
WHERE q.id = $1 AND a.queue = q.seq AND a.claim = 0 AND a.expires_at > now()
	AND (a.state = 'waiting' AND (a.due_at > now() OR a.failures > 0) OR a.state = 'given_up' AND a.giving_up)`

	sqlTellQueue = `/* tell_queue */ SELECT pg_notify('takt', 'throttle:queue ' || $1::text)`
)

// Pause stops a queue from sending, or with false lets it continue. Error: NotFound.
func (t *Throttle) Pause(ctx context.Context, id string, paused bool) error {
	return t.db.write("pausing queue "+id).change(ctx, errNoQueue, sqlPause, id, paused)
}

// Redrive makes all failed actions of a queue due now, with their failures reset, and
// returns how many. If there are any, the queue has a live job afterwards. Error: NotFound.
func (t *Throttle) Redrive(ctx context.Context, id string) (n int, err error) {
	err = t.db.write("redriving queue "+id).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		locked, err := collect(ctx, tx, pgx.RowToStructByPos[store.QueueKey], sqlLockQueues, []string{id})
		if err != nil {
			return err
		}
		if len(locked) == 0 {
			return errNoQueue()
		}
		tag, err := tx.Exec(ctx, sqlRedrive, id)
		if err != nil {
			return err
		}
		if n = int(tag.RowsAffected()); n > 0 {
			if _, err := t.giveJobs(ctx, tx, locked); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, sqlTellQueue, id)
		return err
	})
	return n, err
}

const sqlBusyQueues = `/* busy_queues */ SELECT ` + keyColumns + ` FROM throttle_queues q
WHERE EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND ($1::bigint = 0 OR q.portal_id = $1) AND ($2::bigint = 0 OR q.action_id = $2)
ORDER BY q.received_at LIMIT $3`

// BusyQueues returns up to limit queues in which actions wait, those first that have been
// busy for longest. A portal or action of 0 means all.
func (t *Throttle) BusyQueues(ctx context.Context, portal, action int64, limit int) ([]store.QueueKey, error) {
	return rowsOf(ctx, t.db.read("listing busy queues"), pgx.RowToStructByPos[store.QueueKey], sqlBusyQueues, portal, action, limit)
}

const sqlBeat = `/* beat */
WITH q AS MATERIALIZED (SELECT seq FROM throttle_queues WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE)
UPDATE throttle_queues t SET runner_at = now() FROM q WHERE t.seq = q.seq`

// Heartbeat records that a runner serves these queues now.
func (t *Throttle) Heartbeat(ctx context.Context, queues []string) error {
	_, err := t.db.write("writing a runner's heartbeat").exec(ctx, sqlBeat, queues)
	return err
}

const sqlBacklog = `/* backlog */
SELECT count(*), coalesce(extract(epoch FROM now() - min(received_at)), 0)::float8 FROM action_executions WHERE state = 'waiting'`

// Backlog returns how many actions wait, and for how long the oldest has.
func (t *Throttle) Backlog(ctx context.Context) (n int, oldest time.Duration, err error) {
	var secs float64
	err = t.db.read("counting what waits").scan(ctx, nil, []any{&n, &secs}, sqlBacklog)
	return n, seconds(secs), err
}
