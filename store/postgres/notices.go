package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Notices stores subscriptions of notices. The notices themselves are jobs of River, which
// it reads. Safe for concurrent use.
type Notices struct{ db *DB }

// NewNotices returns the notices of db.
func NewNotices(db *DB) *Notices { return &Notices{db: db} }

func noSubscription() error { return store.NewError(store.NotFound, "Subscription not found") }

const (
	waitingNotice    = `j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')`
	deadNotice       = `j.state IN ('discarded', 'cancelled')`
	sqlSubscriptions = `/* subscriptions */
SELECT s.id, s.url, s.version, s.events, s.platforms, s.labels, s.github, s.secrets, coalesce(s.disabled, ''), s.created_by, s.created_at,
	coalesce(j.waiting, 0), coalesce(j.dead, 0), coalesce(j.oldest, 'epoch')
FROM notice_subscriptions s LEFT JOIN (
	SELECT args->>'subscription' AS subscription, count(*) FILTER (WHERE ` + waitingNotice + `) AS waiting, count(*) FILTER (WHERE ` + deadNotice + `) AS dead,
		min(created_at) FILTER (WHERE ` + waitingNotice + `) AS oldest
	FROM river_job j WHERE kind = 'notice' AND state <> 'completed' AND ($1 = '' OR args->>'subscription' = $1) GROUP BY 1
) j ON j.subscription = s.id
WHERE $1 = '' OR s.id = $1 ORDER BY s.created_at, s.id LIMIT 1000`
)

func scanSubscription(row pgx.CollectableRow) (s store.Subscription, err error) {
	err = row.Scan(&s.ID, &s.URL, &s.Version, &s.Events, &s.Platforms, &s.Labels, &s.GitHub, &s.Secrets, &s.Disabled, &s.CreatedBy, &s.CreatedAt, &s.Waiting, &s.Dead, &s.Oldest)
	return s, err
}

// List returns the subscriptions, oldest first.
func (n *Notices) List(ctx context.Context) ([]store.Subscription, error) {
	return rowsOf(ctx, n.db.read("listing subscriptions"), scanSubscription, sqlSubscriptions, "")
}

// Find returns a subscription. Error: NotFound.
func (n *Notices) Find(ctx context.Context, id string) (store.Subscription, error) {
	return rowOf(ctx, n.db.read("reading subscription "+id), noSubscription, scanSubscription, sqlSubscriptions, id)
}

const sqlReceiver = `/* receiver */ SELECT id, url, version, github, secrets, coalesce(disabled, '') FROM notice_subscriptions WHERE id = $1`

// Receiver returns only the fields of a subscription that sending a notice needs: ID, URL,
// Version, GitHub, Secrets and Disabled. It is cheaper than Find, which also counts notices. Error:
// NotFound.
func (n *Notices) Receiver(ctx context.Context, id string) (store.Subscription, error) {
	return rowOf(ctx, n.db.read("reading the receiver of "+id), noSubscription, func(row pgx.CollectableRow) (s store.Subscription, err error) {
		return s, row.Scan(&s.ID, &s.URL, &s.Version, &s.GitHub, &s.Secrets, &s.Disabled)
	}, sqlReceiver, id)
}

// sqlCreateSubscription also notifies every controller, because notices now have to be sent.
const sqlCreateSubscription = `/* create_subscription */
WITH made AS (
	INSERT INTO notice_subscriptions (id, url, events, platforms, labels, github, secrets, created_by)
	SELECT @id, @url, @events, @platforms, @labels, @github, @secrets, @by WHERE (SELECT count(*) FROM notice_subscriptions) < @most
	RETURNING id
)
SELECT pg_notify('takt', 'settings:changed notices') FROM made`

// Create adds a subscription. Error: Conflict if there are 100 already.
func (n *Notices) Create(ctx context.Context, s store.Subscription) error {
	full := func() error { return store.NewError(store.Conflict, "There are 100 subscriptions already: delete one") }
	return n.db.write("creating a subscription").change(ctx, full, sqlCreateSubscription, subscriptionArgs(s))
}

func subscriptionArgs(s store.Subscription) pgx.NamedArgs {
	platforms := make([]string, len(s.Platforms))
	for i, p := range s.Platforms {
		platforms[i] = string(p)
	}
	return pgx.NamedArgs{
		"id": s.ID, "url": s.URL, "events": append([]string{}, s.Events...), "platforms": platforms, "labels": s.Labels, "github": s.GitHub,
		"most": store.MaxSubscriptions, "secrets": s.Secrets, "by": store.Text(s.CreatedBy), "disabled": orNullText(s.Disabled),
	}
}

func orNullText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

const (
	sqlLockSubscription   = `/* lock_subscription */ SELECT id FROM notice_subscriptions WHERE id = $1 FOR UPDATE`
	sqlUpdateSubscription = `/* update_subscription */
UPDATE notice_subscriptions SET url = @url, version = version + (url <> @url)::int, events = @events, platforms = @platforms, labels = @labels, secrets = @secrets, disabled = @disabled WHERE id = @id`
	sqlDropNotices = `/* drop_notices */ DELETE FROM river_job WHERE kind = 'notice' AND args->>'subscription' = $1 AND state NOT IN ('running', 'completed')`
)

// Update reads a subscription under a lock, calls change with it, and stores and returns the
// result. If its URL changes, its notices that wait or were given up are deleted, and those
// that are being sent become of an earlier version. change may be called more than once; its
// error is returned. Error: NotFound.
func (n *Notices) Update(ctx context.Context, id string, change func(*store.Subscription) error) (s store.Subscription, err error) {
	err = n.db.write("changing subscription "+id).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := orNone(tx.QueryRow(ctx, sqlLockSubscription, id).Scan(&id), noSubscription); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, sqlSubscriptions, id) // its error is that of the rows
		if s, err = pgx.CollectOneRow(rows, scanSubscription); err != nil {
			return err
		}
		last := s.URL
		if err = change(&s); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, sqlUpdateSubscription, subscriptionArgs(s)); err == nil && s.URL != last {
			s.Version++
			_, err = tx.Exec(ctx, sqlDropNotices, id)
			s.Waiting, s.Dead = 0, 0
		}
		return err
	})
	return s, err
}

const (
	sqlDeleteSubscription = `/* delete_subscription */ DELETE FROM notice_subscriptions WHERE id = $1`
	sqlDeleteNotices      = `/* delete_notices */ DELETE FROM river_job WHERE kind = 'notice' AND args->>'subscription' = $1 AND state <> 'running'`
)

// Delete deletes a subscription and its notices, but for those being sent now. Error:
// NotFound.
func (n *Notices) Delete(ctx context.Context, id string) error {
	return n.db.write("deleting subscription "+id).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlDeleteSubscription, id)
		if err == nil && tag.RowsAffected() == 0 {
			return noSubscription()
		}
		if err == nil {
			_, err = tx.Exec(ctx, sqlDeleteNotices, id)
		}
		return err
	})
}

const sqlDeliveries = `/* deliveries */
SELECT j.id, args->>'subscription', coalesce(args->>'id', ''), coalesce(args->'body'->>'type', ''),
	CASE WHEN ` + deadNotice + ` THEN 'dead' WHEN state = 'completed' THEN 'delivered' WHEN state = 'running' THEN 'sending' ELSE 'waiting' END,
	attempt, coalesce(errors[cardinality(errors)]->>'error', ''), created_at, scheduled_at, coalesce(finalized_at, 'epoch')
FROM river_job j WHERE kind = 'notice' AND ($1 = '' AND state <> 'completed' OR args->>'subscription' = $1) ORDER BY j.id DESC LIMIT $2`

// Deliveries returns the last notices of a subscription, newest first; if id is "", the last
// undelivered ones of all subscriptions.
func (n *Notices) Deliveries(ctx context.Context, id string, limit int) ([]store.Delivery, error) {
	return rowsOf(ctx, n.db.read("reading deliveries of "+id), pgx.RowToStructByPos[store.Delivery], sqlDeliveries, id, limit)
}

const sqlRedriveNotices = `/* redrive_notices */
UPDATE river_job j SET state = 'available', scheduled_at = now(), finalized_at = NULL, attempt = 0
WHERE kind = 'notice' AND args->>'subscription' = $1 AND ` + deadNotice + ` AND ($2 = 0 OR id = $2)`

// Redrive makes a dead notice of a subscription available for sending again, with new tries,
// or all of them if number is 0. It returns how many.
func (n *Notices) Redrive(ctx context.Context, id string, number int64) (int, error) {
	rows, err := n.db.write("redriving notices of "+id).exec(ctx, sqlRedriveNotices, id, number)
	return int(rows), err
}

const sqlTestNotice = `/* test_notice */
INSERT INTO river_job (kind, queue, max_attempts, args)
SELECT 'notice', 'notices', 1, jsonb_build_object('subscription', id, 'version', version, 'id', 'msg_' || replace(gen_random_uuid()::text, '-', ''),
	'body', jsonb_build_object('type', 'test', 'timestamp', to_jsonb(now()), 'data', jsonb_build_object('subscription', id)))
FROM notice_subscriptions WHERE id = $1 AND disabled IS NULL AND NOT github`

// Test adds a notice of type test, which is sent once and not retried. Error: NotFound, also
// if the subscription is disabled or one of GitHub statuses.
func (n *Notices) Test(ctx context.Context, id string) error {
	none := func() error {
		return store.NewError(store.NotFound, "There is no enabled subscription of a webhook with this id")
	}
	return n.db.write("testing subscription "+id).change(ctx, none, sqlTestNotice, id)
}

const sqlCommitState = `/* commit_state */
SELECT b.id, b.state, coalesce(b.ended, ''), CASE WHEN b.has_inputs THEN (SELECT row_to_json(i)::text FROM build_inputs i WHERE i.build = b.seq) END
FROM build_labels l JOIN builds b ON b.seq = l.build
WHERE l.labels ? 'github' AND l.labels->>'github' = $1 AND b.platform = $2 ORDER BY l.build DESC LIMIT 1`

// Commit returns the newest build of a commit for a platform: its id, its state, how it ended and
// its inputs. commit is a value of store.GitHubLabel. Error: NotFound.
func (n *Notices) Commit(ctx context.Context, commit string, platform store.Platform) (b store.Build, err error) {
	none := func() error { return store.NewError(store.NotFound, "There is no build of this commit") }
	err = n.db.read("reading the build of a commit").scan(ctx, none, []any{&b.ID, &b.State, &b.Ended, &b.Inputs}, sqlCommitState, commit, platform)
	return b, err
}

const sqlTakeNotices = `/* take_notices */
WITH RECURSIVE waiting AS (
	(SELECT args->>'subscription' AS subscription FROM river_job WHERE kind = 'notice' AND state = 'available' ORDER BY 1 LIMIT 1)
	UNION ALL
	SELECT (
		SELECT args->>'subscription' FROM river_job
		WHERE kind = 'notice' AND state = 'available' AND args->>'subscription' > w.subscription ORDER BY 1 LIMIT 1
	) FROM waiting w WHERE w.subscription IS NOT NULL
), held AS (
	SELECT args->>'subscription' AS subscription, count(*) AS places FROM river_job
	WHERE kind = 'notice' AND queue = 'notices' AND state = 'running' AND attempted_by[cardinality(attempted_by)] = @client GROUP BY 1
), next AS (
	SELECT j.id, coalesce(h.places, 0) + row_number() OVER (PARTITION BY w.subscription ORDER BY j.scheduled_at, j.id) AS place
	FROM waiting w LEFT JOIN held h USING (subscription) CROSS JOIN LATERAL (
		SELECT id, scheduled_at FROM river_job
		WHERE kind = 'notice' AND state = 'available' AND args->>'subscription' = w.subscription AND scheduled_at <= now()
		ORDER BY scheduled_at, id LIMIT greatest(@each - coalesce(h.places, 0), 0) FOR UPDATE SKIP LOCKED
	) j
), chosen AS (
	SELECT id, place FROM next WHERE place = 1
	UNION ALL
	(SELECT id, place FROM next WHERE place > 1 ORDER BY place, id LIMIT greatest(@shared - (SELECT coalesce(sum(places - 1), 0) FROM held), 0))
)
UPDATE river_job j SET state = 'running', attempt = j.attempt + 1, attempted_at = now(),
	attempted_by = array_append(j.attempted_by[greatest(cardinality(j.attempted_by) - 8, 1):], @client)
FROM (SELECT id FROM chosen ORDER BY place, id LIMIT @free) c WHERE j.id = c.id RETURNING j.id`

// Take marks notices that are due as being sent by a client of River, and returns their
// numbers. Each subscription may hold a place of the client's, at most each places, and all
// together at most shared places beside their first ones. It takes at most free.
func (n *Notices) Take(ctx context.Context, client string, free, each, shared int) (numbers []int64, err error) {
	return rowsOf(ctx, n.db.write("taking notices"), pgx.RowTo[int64], sqlTakeNotices, pgx.NamedArgs{"client": client, "free": free, "each": each, "shared": shared})
}

const sqlNoticesNeeded = `/* notices_needed */
SELECT EXISTS (SELECT FROM notice_subscriptions) OR EXISTS (SELECT FROM river_job j WHERE kind = 'notice' AND ` + waitingNotice + `)`

// Needed reports whether there are subscriptions or notices to send.
func (n *Notices) Needed(ctx context.Context) (bool, error) {
	return valueOf[bool](ctx, n.db.read("looking for subscriptions"), sqlNoticesNeeded)
}

const sqlNoticeBacklog = `/* notice_backlog */
SELECT count(*) FILTER (WHERE ` + waitingNotice + `), count(*) FILTER (WHERE ` + deadNotice + `),
	coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE ` + waitingNotice + `)), 0)::float8
FROM river_job j WHERE kind = 'notice' AND state <> 'completed'`

// Backlog counts the undelivered notices.
func (n *Notices) Backlog(ctx context.Context) (b store.NoticeBacklog, err error) {
	var seconds float64
	err = n.db.read("counting notices").scan(ctx, nil, []any{&b.Waiting, &b.Dead, &seconds}, sqlNoticeBacklog)
	b.Oldest = time.Duration(seconds * float64(time.Second))
	return b, err
}
