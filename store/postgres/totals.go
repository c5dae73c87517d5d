package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	// rollupLag is how long after its end a build is added to the totals by day. It must be
	// longer than any transaction takes, because a build's end time is when its transaction
	// began.
	rollupLag = 2 * time.Minute
	// rollupStep is about how many builds one statement adds.
	rollupStep = 50_000
	// rollupPasses is the most such statements of one call of Totals.
	rollupPasses = 20
)

// sqlRollup adds about $2 builds that ended more than $1 ago to the totals of their days, and
// returns whether more are left. It does nothing and returns no row while another controller
// does it, or if it was done within the last 30 s.
const sqlRollup = `/* rollup */
WITH mark AS MATERIALIZED (
	SELECT up_to FROM rollup WHERE up_to < now() - $1::interval - interval '30 s' FOR UPDATE SKIP LOCKED
), edge AS MATERIALIZED (
	SELECT up_to, coalesce((
		SELECT completed_at FROM builds WHERE completed_at > up_to AND completed_at <= now() - $1::interval
		ORDER BY completed_at OFFSET $2 LIMIT 1
	), now() - $1::interval) AS next FROM mark
), d AS (
	INSERT INTO build_days AS d (day, completed, failed, cancelled, build_ms)
	SELECT (completed_at AT TIME ZONE 'UTC')::date, ` + totalsColumns + `
	FROM builds WHERE completed_at > (SELECT up_to FROM edge) AND completed_at <= (SELECT next FROM edge)
	GROUP BY 1
	ON CONFLICT (day) DO UPDATE SET completed = d.completed + excluded.completed, failed = d.failed + excluded.failed,
		cancelled = d.cancelled + excluded.cancelled, build_ms = d.build_ms + excluded.build_ms
)
UPDATE rollup SET up_to = next FROM edge RETURNING next < now() - $1::interval`

// totalsColumns computes the columns completed, failed, cancelled and build_ms.
const totalsColumns = `count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'failed'),
	count(*) FILTER (WHERE state = 'cancelled'),
	coalesce(sum(extract(epoch FROM completed_at - started_at) * 1000) FILTER (WHERE state <> 'cancelled'), 0)::bigint`

// sqlTotals adds up the totals by day, which include the builds that ended until
// rollup.up_to, and those that ended later, both from one snapshot.
const sqlTotals = `/* totals */
WITH mark AS MATERIALIZED (SELECT * FROM rollup), recent AS MATERIALIZED (
	SELECT (completed_at AT TIME ZONE 'UTC')::date AS day, ` + totalsColumns + `
	FROM builds WHERE completed_at > (SELECT up_to FROM mark) GROUP BY 1
), all_days (day, completed, failed, cancelled, build_ms) AS (
	SELECT day, completed, failed, cancelled, build_ms FROM build_days UNION ALL SELECT * FROM recent
), cpu AS (
	SELECT sum(cpu_sum) AS total, sum(cpu_count) AS n FROM (
		SELECT cpu_sum, cpu_count FROM worker_telemetry UNION ALL SELECT cpu_sum, cpu_count FROM mark
	) c
)
SELECT (SELECT count(*) FROM builds WHERE state = 'pending'),
	(SELECT count(*) FROM builds WHERE state = 'assigned'),
	(SELECT count(*) FROM builds WHERE state = 'building'),
	coalesce(sum(completed), 0)::bigint, coalesce(sum(failed), 0)::bigint, coalesce(sum(cancelled), 0)::bigint,
	coalesce(sum(completed) FILTER (WHERE day = (now() AT TIME ZONE 'UTC')::date), 0)::bigint,
	make_interval(secs => coalesce(sum(build_ms), 0)::float8 / 1000),
	(SELECT count(*) FROM workers w WHERE ` + workerOnline + `),
	coalesce((SELECT total / n FROM cpu WHERE total > 1e-300), 0) -- a tinier one divided by n is an error
FROM all_days`

// Totals counts all builds ever submitted, by state, and the workers that are present. Its
// cost does not grow with the number of builds, because it also adds those that have ended
// to the totals by day.
func (b *Builds) Totals(ctx context.Context) (t store.Totals, err error) {
	err = b.db.read("counting all builds").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		for range rollupPasses {
			left, err := collect(ctx, c, pgx.RowTo[bool], sqlRollup, rollupLag, rollupStep)
			if err != nil {
				return err
			}
			if !slices.Contains(left, true) {
				break
			}
		}
		rows, _ := c.Query(ctx, sqlTotals) // its error is that of the rows
		t, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[store.Totals])
		return err
	})
	return t, err
}
