package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlSetPriority moves a pending build within the queue, writes a line to its log, and
// notifies every controller.
const sqlSetPriority = `/* set_priority */
WITH was AS MATERIALIZED (
	SELECT seq, priority FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state = 'pending' FOR NO KEY UPDATE
), b AS (
	UPDATE builds b SET priority = $2, position = CASE WHEN b.priority = $2 THEN position ELSE queue_position(b.platform, $2, coalesce(submitter, ''), ARRAY[` + homeClass + `]) END, updated_at = now(), log_lines = log_lines + 1 FROM was WHERE b.seq = was.seq
	RETURNING b.seq, b.platform, b.class, b.position, b.priority, was.priority AS was, b.log_lines
), l AS (
	INSERT INTO build_logs (build, number, message, kind, facts)
	SELECT seq, log_lines, 'Priority changed from ' || was || ' to ' || priority, 'priority', jsonb_build_object('from', was, 'to', priority) FROM b
)
SELECT platform, class, position, pg_backend_pid(), pg_notify('takt', 'queue:position ' || position), pg_notify('takt', 'job:available ' || platform || CASE WHEN class > 2 THEN ' ' || class ELSE '' END) FROM b`

// priorityAt returns the priority of a build, which the high bits of its position encode.
func priorityAt(position int64) int { return store.MaxPriority - int(position>>55) }

// SetPriority changes the priority of a pending build. The build gets the position that it
// would get if it were submitted now, unless it has this priority already. Errors: NotFound,
// Conflict if it is not pending, InvalidArgument.
func (b *Builds) SetPriority(ctx context.Context, id string, priority int) (store.BuildRef, error) {
	ref := store.BuildRef{ID: id}
	err := b.db.write("changing the priority of build "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, sqlSetPriority, id, priority).Scan(&ref.Platform, &ref.ClassID, &ref.Position, &ref.Sender, nil, nil)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, err := buildState(ctx, c, id); err != nil {
			return err
		}
		return store.NewError(store.Conflict, "Build is not pending")
	})
	if err == nil { // it may now be below the low-water marks; other controllers are notified
		b.db.requeued([]store.BuildRef{ref})
	}
	return ref, err
}
