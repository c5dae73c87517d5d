package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Dashboard reads what the pages show. A list continues after the last row of the
// previous page, so that every page costs the same as the first.
type Dashboard struct{ db *DB }

// NewDashboard returns the pages of db.
func NewDashboard(db *DB) *Dashboard { return &Dashboard{db: db} }

// fleetState is the reason why a worker gets no builds, or else its status.
const fleetState = `CASE WHEN w.status = 'offline' THEN 'offline' WHEN w.draining THEN 'draining'
	WHEN w.quarantine IS NOT NULL THEN 'quarantined' WHEN w.critical THEN 'critical' ELSE w.status END`

// fleetFilter selects the workers w that match the filter.
const fleetFilter = `
	(@state::text = '' OR ` + fleetState + ` = @state)
	AND (@platform::text = '' OR w.platforms = '{}' OR @platform = ANY (w.platforms))`

// fleetColumns are read only for the rows of one page.
const fleetColumns = `
SELECT ` + workerColumns + `, w.state, w.key::text
FROM p w ` + workerJoins + `
ORDER BY w.key, w.id`

const (
	// sqlFleetByName reads names in index order and stops at the end of the page.
	sqlFleetByName = `/* fleet_by_name */
WITH p AS MATERIALIZED (
	SELECT w.*, ` + fleetState + ` AS state, lower(d.name) COLLATE "C" AS key
	FROM worker_details d JOIN workers w ON w.id = d.worker_id
	WHERE (lower(d.name) COLLATE "C", d.worker_id) > (@after::text, @after_id::text)
		AND (@name::text = '' OR d.worker_id = @name OR strpos(lower(d.name), lower(@name)) > 0) AND ` + fleetFilter + `
	ORDER BY lower(d.name) COLLATE "C", d.worker_id LIMIT @limit::int
)` + fleetColumns

	sqlFleetByNumber = `/* fleet_by_number */
WITH p AS MATERIALIZED (
	SELECT * FROM (SELECT w.*, ` + fleetState + ` AS state, CASE @sort::text
		WHEN 'seen' THEN -extract(epoch FROM w.last_seen_at)::float8
		WHEN 'used' THEN -w.held::float8 / w.slots
		WHEN 'success' THEN coalesce(w.completed::float8 / nullif(w.completed + w.failed, 0), 2)
		ELSE CASE ` + fleetState + ` WHEN 'critical' THEN 0 WHEN 'quarantined' THEN 1 WHEN 'offline' THEN 2 WHEN 'draining' THEN 3 WHEN 'building' THEN 4 ELSE 5 END
	END AS key
	FROM workers w WHERE ` + fleetFilter + ` AND (@name::text = '' OR w.id = @name
		OR w.id = ANY (ARRAY(SELECT worker_id FROM worker_details WHERE strpos(lower(name), lower(@name)) > 0)))
	) f WHERE @after_id::text = '' OR (key, id) > (@after::float8, @after_id)
	ORDER BY key, id LIMIT @limit::int
)` + fleetColumns
)

// Fleet returns a page of workers, and how many workers there are by their state, both
// as of one moment.
func (d *Dashboard) Fleet(ctx context.Context, f store.FleetFilter) (rows []store.FleetRow, states map[string]int, err error) {
	query, after := sqlFleetByName, any(f.AfterKey)
	if f.Sort != "" && f.Sort != "name" {
		number, _ := strconv.ParseFloat(f.AfterKey, 64) // an invalid key means the first page
		query, after = sqlFleetByNumber, number
	}
	args := pgx.NamedArgs{
		"name": store.Text(f.Name), "state": store.Text(f.State), "platform": string(f.Platform), "sort": f.Sort,
		"after": after, "after_id": store.Text(f.AfterID), "limit": f.Limit,
	}
	oneMoment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = d.db.read("reading workers for a page").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, oneMoment, func(tx pgx.Tx) error {
			if rows, err = collect(ctx, tx, scanFleetRow, query, args); err != nil {
				return err
			}
			states, err = fleetStates(ctx, tx)
			return err
		})
	})
	return rows, states, err
}

// FleetStates returns how many workers there are by their state.
func (d *Dashboard) FleetStates(ctx context.Context) (states map[string]int, err error) {
	err = d.db.read("counting workers by state").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		states, err = fleetStates(ctx, c)
		return err
	})
	return states, err
}

func fleetStates(ctx context.Context, q querier) (map[string]int, error) {
	states := map[string]int{}
	var state string
	var n int
	rows, _ := q.Query(ctx, sqlFleetStates) // its error is that of the rows
	_, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error {
		states[state] = n
		return nil
	})
	return states, err
}

const sqlFleetStates = `/* fleet_states */ SELECT ` + fleetState + `, count(*)::int FROM workers w GROUP BY 1`

const sqlFleetWorker = `/* fleet_worker */ WITH p AS (SELECT w.*, ` + fleetState + ` AS state, '' AS key FROM workers w WHERE w.id = $1)` + fleetColumns

// Worker returns one worker as Fleet does. Error: NotFound.
func (d *Dashboard) Worker(ctx context.Context, id string) (store.FleetRow, error) {
	return rowOf(ctx, d.db.read("reading a worker for a page"), errNoWorker, scanFleetRow, sqlFleetWorker, id)
}

func scanFleetRow(row pgx.CollectableRow) (r store.FleetRow, err error) {
	r.WorkerDetail, err = scanWorker(wider{row, []any{&r.State, &r.Key}})
	return r, err
}

// wider is a row with more columns than its scanner knows.
type wider struct {
	pgx.CollectableRow
	more []any
}

func (w wider) Scan(dest ...any) error { return w.CollectableRow.Scan(append(dest, w.more...)...) }

const sqlFleetSummary = `/* fleet_summary */
SELECT p.platform, sum(n)::int, coalesce(sum(n) FILTER (WHERE state IN ('idle', 'building')), 0)::int,
	coalesce(sum(n) FILTER (WHERE state = 'draining'), 0)::int, coalesce(sum(n) FILTER (WHERE state = 'critical'), 0)::int,
	coalesce(sum(n) FILTER (WHERE state = 'quarantined'), 0)::int,
	coalesce(sum(slots) FILTER (WHERE state IN ('idle', 'building')), 0)::bigint,
	coalesce(sum(held) FILTER (WHERE state IN ('idle', 'building')), 0)::bigint
FROM (
	SELECT platforms, ` + fleetState + ` AS state, count(*) AS n, sum(slots) AS slots, sum(held) AS held FROM workers w GROUP BY 1, 2
) w CROSS JOIN (VALUES ('ios'), ('android')) AS p(platform)
WHERE w.platforms = '{}' OR p.platform = ANY (w.platforms)
GROUP BY 1 ORDER BY 1`

// FleetSummary counts workers by platform. A platform without workers has no row.
func (d *Dashboard) FleetSummary(ctx context.Context) ([]store.FleetSummary, error) {
	return rowsOf(ctx, d.db.read("counting the fleet for a page"), pgx.RowToStructByPos[store.FleetSummary], sqlFleetSummary)
}

// sqlWaitingBuilds counts what stands before the page once for each platform.
const sqlWaitingBuilds = `/* waiting_builds */
WITH before AS MATERIALIZED (
	SELECT platform, count(*)::int AS n FROM builds WHERE state = 'pending' AND position <= @after GROUP BY 1
)
SELECT b.id, b.platform, b.priority, (SELECT labels FROM build_labels WHERE build = b.seq), b.submitted_at, b.attempt, b.position,
	coalesce((SELECT n FROM before WHERE platform = b.platform), 0) + row_number() OVER (PARTITION BY b.platform ORDER BY b.position)::int
FROM (SELECT * FROM builds WHERE state = 'pending' AND position > @after ORDER BY position LIMIT @limit::int) b
ORDER BY b.position`

// Waiting returns pending builds behind the position after, in the order in which they
// are handed out.
func (d *Dashboard) Waiting(ctx context.Context, after int64, limit int) ([]store.PendingBuild, error) {
	return rowsOf(ctx, d.db.read("reading the queue for a page"), pgx.RowToStructByPos[store.PendingBuild], sqlWaitingBuilds,
		pgx.NamedArgs{"after": after, "limit": limit})
}

const sqlPlaceInQueue = `/* place_in_queue */
SELECT id, platform, priority, NULL::jsonb, submitted_at, attempt, position,
	(SELECT count(*) FROM builds a WHERE a.state = 'pending' AND a.platform = b.platform AND a.position <= b.position)::int
FROM builds b WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state = 'pending'`

// WaitingBuild returns one pending build, or nil if the build is not pending.
func (d *Dashboard) WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error) {
	return rowOf(ctx, d.db.read("reading a position in the queue for a page"), nil, pgx.RowToAddrOfStructByPos[store.PendingBuild], sqlPlaceInQueue, id)
}

// sqlRunning looks for the progress only among a build's last lines.
const sqlRunning = `/* running */
SELECT b.id, b.platform, b.state, b.priority, b.worker_id, coalesce(d.name, ''), b.started_at, coalesce(b.last_seen_at, b.started_at), b.attempt,
	(SELECT floor((l.facts->>'percent')::float8)::int FROM (
		SELECT seq, kind, facts FROM build_logs WHERE build = b.seq ORDER BY seq DESC LIMIT 30
	) l WHERE l.kind = 'progress' ORDER BY l.seq DESC LIMIT 1), b.seq
FROM (
	SELECT * FROM builds WHERE state IN ('assigned', 'building') AND (@before::bigint = 0 OR seq < @before) ORDER BY seq DESC LIMIT @limit::int
) b LEFT JOIN worker_details d ON d.worker_id = b.worker_id
ORDER BY b.seq DESC`

// Running returns builds that workers hold and whose number is below before, newest
// first.
func (d *Dashboard) Running(ctx context.Context, before int64, limit int) ([]store.RunningBuild, error) {
	return rowsOf(ctx, d.db.read("reading running builds for a page"), pgx.RowToStructByPos[store.RunningBuild], sqlRunning,
		pgx.NamedArgs{"before": before, "limit": limit})
}

// sqlDurations reads the most recent builds of the last day.
const sqlDurations = `/* durations */
SELECT platform, count(*)::int, percentile_disc(ARRAY[0.25, 0.5, 0.75, 0.9]) WITHIN GROUP (ORDER BY took)
FROM (
	SELECT platform, greatest(extract(epoch FROM completed_at - started_at), 0)::float8 AS took FROM builds
	WHERE completed_at > now() - interval '1 day' AND state = 'completed' ORDER BY completed_at DESC LIMIT 500
) b GROUP BY 1`

// Durations returns how long the builds of the last day took, by platform.
func (d *Dashboard) Durations(ctx context.Context) (map[store.Platform]store.Durations, error) {
	byPlatform := map[store.Platform]store.Durations{}
	var p store.Durations
	var q []float64
	err := d.db.read("reading durations for a page").each(ctx, []any{&p.Platform, &p.Count, &q}, func() error {
		for i, to := range []*time.Duration{&p.Quarter, &p.Median, &p.Most, &p.Ninth} {
			*to = seconds(q[i])
		}
		byPlatform[p.Platform] = p
		return nil
	}, sqlDurations)
	return byPlatform, err
}

// searchFilter selects the builds b that match the search; the inner list is the page.
const searchFilter = `
	(@platform::text = '' OR platform = @platform) AND (@before::text = '' OR seq < (SELECT seq FROM build_ids WHERE id = @before))
	AND (@since::timestamptz IS NULL OR submitted_at >= @since) AND (@until::timestamptz IS NULL OR submitted_at < @until)
	ORDER BY seq DESC LIMIT @limit::int) b` + buildJoins + ` ORDER BY b.seq DESC`

const (
	sqlSearchAll     = `/* search_all */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE (@states::text[] IS NULL OR state = ANY (@states)) AND ` + searchFilter
	sqlSearchPending = `/* search_pending */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE state = 'pending' AND @states::text[] IS NOT NULL AND ` + searchFilter
	// sqlSearchEnded uses an index of builds that failed or were cancelled.
	sqlSearchEnded = `/* search_ended */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE state IN ('failed', 'cancelled') AND state = ANY (@states::text[]) AND ` + searchFilter
	// sqlSearchLabel reads labels only until the page is full.
	sqlSearchLabel = `/* search_label */ SELECT ` + buildColumns + ` FROM (SELECT b.* FROM build_labels l JOIN builds b ON b.seq = l.build
	WHERE l.labels @> @label::jsonb AND (@states::text[] IS NULL OR state = ANY (@states))
	AND (@before::text = '' OR l.build < (SELECT seq FROM build_ids WHERE id = @before)) AND (@platform::text = '' OR platform = @platform)
	AND (@since::timestamptz IS NULL OR submitted_at >= @since) AND (@until::timestamptz IS NULL OR submitted_at < @until)
	ORDER BY l.build DESC LIMIT @limit::int) b` + buildJoins + ` ORDER BY b.seq DESC`
	sqlSearchHeld = `/* search_held */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE state IN ('assigned', 'building') AND state = ANY (@states::text[]) AND ` + searchFilter
)

// Builds returns a page of builds, newest first.
func (d *Dashboard) Builds(ctx context.Context, f store.BuildSearch) (builds []store.Build, err error) {
	query := sqlSearchAll
	switch {
	case f.Label != "":
		query = sqlSearchLabel
	case only(f.States, store.Failed, store.Cancelled):
		query = sqlSearchEnded
	case only(f.States, store.Assigned, store.Building):
		query = sqlSearchHeld
	case only(f.States, store.Pending):
		query = sqlSearchPending
	}
	args := pgx.NamedArgs{
		"states": nil, "platform": string(f.Platform), "before": store.Text(f.Before), "since": nil, "until": nil, "label": nil, "limit": f.Limit,
	}
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		args["states"] = states
	}
	if !f.Since.IsZero() {
		args["since"] = f.Since
	}
	if !f.Until.IsZero() {
		args["until"] = f.Until
	}
	if f.Label != "" {
		args["label"] = store.Labels{store.Text(f.Label): store.Text(f.Value)}
	}
	err = d.db.read("reading builds for a page").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, query, args)
		if err == nil {
			builds, err = scanBuilds(rows)
		}
		return err
	})
	return builds, err
}

const sqlLogPage = `/* log_page */
SELECT seq, at, level, message FROM (
	SELECT * FROM build_logs WHERE build = (SELECT seq FROM build_ids WHERE id = $1) AND ($2::bigint = 0 OR seq < $2) ORDER BY seq DESC LIMIT $3
) l ORDER BY seq`

// LogPage returns the last limit lines of a build's log, or the last limit lines before
// a line, oldest first.
func (d *Dashboard) LogPage(ctx context.Context, id string, before int64, limit int) ([]store.LogLine, error) {
	return rowsOf(ctx, d.db.read("reading a log for a page"), pgx.RowToStructByPos[store.LogLine], sqlLogPage, id, before, limit)
}

// sqlMilestones selects the kinds that a timeline shows. The lines of a worker have none.
const sqlMilestones = `/* milestones */
SELECT l.at, l.kind, coalesce(l.worker, ''), coalesce(d.name, ''), coalesce(l.attempt, 0), coalesce(l.facts, '{}') FROM build_logs l
LEFT JOIN worker_details d ON d.worker_id = l.worker
WHERE l.build = (SELECT seq FROM build_ids WHERE id = $1) AND l.kind IN ('assigned', 'requeued', 'priority', 'retried')
ORDER BY l.seq LIMIT 100`

// Milestones returns what happened to a build between submission and end.
func (d *Dashboard) Milestones(ctx context.Context, id string) ([]store.Milestone, error) {
	return rowsOf(ctx, d.db.read("reading a timeline for a page"), pgx.RowToStructByPos[store.Milestone], sqlMilestones, id)
}

// sqlQueuePage lists the queues in which actions wait before the idle ones.
const sqlQueuePage = `/* queue_page */
WITH p AS MATERIALIZED (
	SELECT id FROM (
		SELECT id, NOT EXISTS (SELECT FROM action_executions WHERE queue = seq AND state = 'waiting') AS idle
		FROM throttle_queues WHERE @portal::bigint = 0 OR portal_id = @portal
	) q WHERE @after_id::text = '' OR (idle, id) > (@after::boolean, @after_id) ORDER BY idle, id LIMIT @limit::int
)` + queueStatus + `
WHERE q.id = ANY (ARRAY(SELECT id FROM p)) ORDER BY a.depth = 0, q.id`

// Queues returns up to limit throttle queues after one of the previous page: of one
// portal, or of all if portal is 0. Those in which actions wait come first.
func (d *Dashboard) Queues(ctx context.Context, portal int64, after store.QueueStatus, limit int) ([]store.QueueStatus, error) {
	return rowsOf(ctx, d.db.read("reading throttle queues for a page"), scanQueue, sqlQueuePage,
		pgx.NamedArgs{"portal": portal, "after": after.Depth == 0, "after_id": after.ID, "limit": limit})
}

const sqlDeploymentPage = `/* deployment_page */
SELECT ` + deploymentColumns + ` FROM deployments d WHERE @before::text = '' OR created_at <= (SELECT created_at FROM deployments WHERE id = @before)
	AND (created_at < (SELECT created_at FROM deployments WHERE id = @before) OR id > @before)
ORDER BY created_at DESC, id LIMIT @limit::int`

// Deployments returns up to limit deployments older than before, the newest first; ""
// is the first page.
func (d *Dashboard) Deployments(ctx context.Context, before string, limit int) ([]store.Deployment, error) {
	return rowsOf(ctx, d.db.read("reading deployments for a page"), scanDeployment, sqlDeploymentPage, pgx.NamedArgs{"before": before, "limit": limit})
}

// repoSteps is the order of a deployment's repositories on its page.
const repoSteps = `'{failed,creating,pushing,verifying,planned,done,skipped}'::text[]`

const sqlRepoPage = `/* repo_page */
SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = @id AND (@name::text = '' OR (array_position(` + repoSteps + `, step), name) > (array_position(` + repoSteps + `, @step::text), @name))
ORDER BY array_position(` + repoSteps + `, step), name LIMIT @limit::int`

// Repos returns up to limit repositories of a deployment after one of the previous page:
// those that failed first, then those in progress.
func (d *Dashboard) Repos(ctx context.Context, id string, after store.DeploymentRepo, limit int) ([]store.DeploymentRepo, error) {
	return rowsOf(ctx, d.db.read("reading repositories for a page"), scanRepo, sqlRepoPage,
		pgx.NamedArgs{"id": id, "step": string(after.Step), "name": after.Name, "limit": limit})
}

const sqlAuditPage = `/* audit_page */
SELECT id, at, actor, action, target, reason, detail, coalesce(outcome, '') FROM audit
WHERE ($1::bigint = 0 OR id < $1) AND ($2 = '' OR strpos(lower(actor || ' ' || action || ' ' || target), lower($2)) > 0)
ORDER BY id DESC LIMIT $3`

// Audit returns a page of what operators did, newest first.
func (d *Dashboard) Audit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error) {
	return rowsOf(ctx, d.db.read("reading the audit for a page"), pgx.RowToStructByPos[store.AuditEntry], sqlAuditPage, f.Before, store.Text(f.Text), f.Limit)
}

const sqlNamedWorkers = `/* named_workers */
SELECT worker_id, name FROM worker_details WHERE worker_id = $1 OR strpos(lower(name), lower($1)) > 0
ORDER BY lower(name) <> lower($1), name LIMIT $2`

// NamedWorkers returns workers with this id, or with text in their name; an exact name
// comes first.
func (d *Dashboard) NamedWorkers(ctx context.Context, text string, limit int) ([]store.Named, error) {
	return rowsOf(ctx, d.db.read("finding workers by name"), pgx.RowToStructByPos[store.Named], sqlNamedWorkers, store.Text(text), limit)
}

// sqlPulse counts starts among builds that are held or that ended after the previous
// pulse, because both sets have a small index.
const sqlPulse = `/* pulse */
WITH started AS MATERIALIZED (
	SELECT started_at - submitted_at AS waited FROM builds WHERE state IN ('assigned', 'building') AND started_at > $1
	UNION ALL
	SELECT started_at - submitted_at FROM builds WHERE completed_at > $1 AND started_at > $1
)
SELECT now(), (SELECT count(*) FROM builds WHERE state = 'pending' AND platform = 'ios')::int,
	(SELECT count(*) FROM builds WHERE state = 'pending' AND platform = 'android')::int,
	(SELECT count(*) FROM builds WHERE state IN ('assigned', 'building'))::int,
	coalesce((SELECT seq FROM builds ORDER BY seq DESC LIMIT 1), 0),
	(SELECT count(*) FROM started)::int, coalesce((SELECT extract(epoch FROM avg(waited)) FROM started), 0)::float8`

// Pulse returns how busy the queue is, and how many builds started since the previous
// pulse.
func (d *Dashboard) Pulse(ctx context.Context, since time.Time) (p store.Pulse, err error) {
	var waited float64
	err = d.db.read("reading the queue's pulse").scan(ctx, nil,
		[]any{&p.At, &p.PendingIOS, &p.PendingAndroid, &p.Running, &p.Submitted, &p.Started, &waited}, sqlPulse, since)
	p.Waited = seconds(waited)
	return p, err
}
