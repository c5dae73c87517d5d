package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// cancelTries is how often Cancel tries. It tries again if the build got another holder
// between the look-up and the lock.
const cancelTries = 10

var errChangesHands = errors.New("the build changes hands too often")

// Cancel cancels a build and frees the slot of its worker. by is who does it, why the reason that
// they give; both may be "". Errors: NotFound, InvalidState
// if the build has ended already, Unavailable if its holder changed cancelTries times.
func (b *Builds) Cancel(ctx context.Context, id, by, why string) error {
	return b.db.write("cancelling build "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		for range cancelTries {
			if done, err := cancel(ctx, c, id, by, why); done || err != nil {
				return err
			}
		}
		return unavailable(errChangesHands)
	})
}

// sqlCancel looks up which worker holds the build, locks that worker, and then updates
// the build unless its holder changed meanwhile ($2 is the message, $3 who cancels it and $4 why). The worker is
// locked first, because the condition of the update reads w.
const sqlCancel = `/* cancel */
WITH w AS MATERIALIZED (
	` + lockHolder + `
), b AS (
	UPDATE builds SET state = 'cancelled', error_message = $2, ended = 'cancelled', ended_by = nullif($3, ''), ended_why = nullif($4, ''), completed_at = now(), updated_at = now(), log_lines = log_lines + 1
	WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND (state = 'pending' AND NOT EXISTS (SELECT FROM w)
		OR state IN ('assigned', 'building') AND worker_id IN (SELECT id FROM w))
	RETURNING seq, worker_id, log_lines
), l AS (
	INSERT INTO build_logs (build, number, message, kind, facts)
	SELECT seq, log_lines, 'Build cancelled', 'cancelled', nullif(jsonb_strip_nulls(jsonb_build_object('by', nullif($3, ''), 'why', nullif($4, ''))), '{}') FROM b
), freed AS (
	UPDATE workers SET held = held - 1,
		status = CASE WHEN status = 'offline' THEN status WHEN held > 1 THEN 'building' ELSE 'idle' END
	FROM b WHERE workers.id = b.worker_id
)
SELECT count(*) FROM b`

// cancel returns false without an error if the build got another holder meanwhile; the
// caller may try again.
func cancel(ctx context.Context, c *pgx.Conn, id, by, why string) (done bool, err error) {
	var n int
	if err := c.QueryRow(ctx, sqlCancel, id, store.MessageCancelled, store.Text(by), store.Text(why)).Scan(&n); err != nil || n == 1 {
		return err == nil, err
	}
	state, err := buildState(ctx, c, id)
	if err == nil && state.Final() {
		err = store.NewError(store.InvalidState, "Build already finished")
	}
	return false, err
}
