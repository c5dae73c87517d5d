package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Dashboard reads what only the dashboard's pages show. Safe for concurrent use.
type Dashboard struct {
	db     *DB
	labels atomic.Pointer[map[string]store.Labels] // the labels of the last FleetSummary, by their JSON
}

// NewDashboard returns a Dashboard on db.
func NewDashboard(db *DB) *Dashboard { return &Dashboard{db: db} }

// Fleet returns a page of workers, and how many workers there are by their state, both
// as of one moment.
func (d *Dashboard) Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) (rows []store.WorkerDetail, next store.Cursor, states map[string]int, err error) {
	l, err := listWorkers(f, p)
	if err != nil {
		return nil, "", nil, err
	}
	oneMoment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = d.db.read("reading workers for a page").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, oneMoment, func(tx pgx.Tx) error {
			if rows, err = collect(ctx, tx, pgx.RowToStructByPos[store.WorkerDetail], l.sql, l.args); err != nil {
				return err
			}
			states, err = fleetStates(ctx, tx)
			return err
		})
	})
	rows, next = cut(rows, p, l.at)
	return rows, next, states, err
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

const (
	// sqlFleetGroups counts workers by the platforms and labels that they have and by state.
	// A sum of slots may be larger than an integer, which each of them is.
	sqlFleetGroups = `/* fleet_groups */
SELECT platforms, coalesce(labels::text, ''), ` + servedState + `, count(*)::int, sum(slots), sum(held),
	coalesce(sum(greatest(slots - held, 0)) FILTER (WHERE ` + workerPolls + `), 0),
	coalesce(min(d.name), ''), (count(*) FILTER (WHERE ` + workerOnline + `))::int
FROM workers w LEFT JOIN worker_details d ON d.worker_id = w.id GROUP BY platforms, labels, 3 ORDER BY 8, labels NULLS FIRST, platforms, 3`

	sqlPendingByClass = `/* pending_by_class */
SELECT k.id, k.platform, k.require, n.n FROM (
	SELECT class, sum(n)::int AS n FROM (
		SELECT ` + homeClass + ` AS class, count(*) AS n FROM builds b WHERE state = 'pending' GROUP BY 1 UNION ALL VALUES (1, 0), (2, 0)
	) b GROUP BY 1
) n JOIN build_classes k ON k.id = n.class ORDER BY 1`
)

// FleetSummary counts workers and pending builds. The first summary counts all of them; the others
// each count a class: the plain ones of ios and android, and those with pending builds.
func (d *Dashboard) FleetSummary(ctx context.Context) (fleet []store.FleetSummary, all *store.Fleet, err error) {
	err = d.db.read("counting the fleet for a page").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		fleet = []store.FleetSummary{{}}
		var f store.FleetSummary
		rows, _ := c.Query(ctx, sqlPendingByClass) // its error is that of the rows
		if _, err := pgx.ForEachRow(rows, []any{&f.Class.ID, &f.Class.Platform, &f.Class.Require, &f.Pending}, func() error {
			fleet[0].Pending += f.Pending
			fleet = append(fleet, f)
			return nil
		}); err != nil {
			return err
		}
		rows, _ = c.Query(ctx, sqlFleetGroups) // as above
		all, err = d.groups(rows)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range fleet {
		all.Count(&fleet[i])
	}
	return fleet, all, nil
}

// groups reads the rows of sqlFleetGroups. Workers seldom change their labels, and those of
// thousands take long to decode.
func (d *Dashboard) groups(rows pgx.Rows) (*store.Fleet, error) {
	known, now := d.labels.Load(), map[string]store.Labels{}
	var all []store.FleetGroup
	var g store.FleetGroup
	var text string
	_, err := pgx.ForEachRow(rows, []any{&g.Platforms, &text, &g.State, &g.N, &g.Slots, &g.Held, &g.Free, &g.Name, &g.Online}, func() error {
		var ok bool
		if known != nil {
			g.Labels, ok = (*known)[text]
		}
		if !ok {
			g.Labels = nil
			if err := json.Unmarshal([]byte(cmp.Or(text, "null")), &g.Labels); err != nil {
				return err
			}
		}
		now[text] = g.Labels
		all = append(all, g)
		g.Platforms = nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.labels.Store(&now)
	return store.NewFleet(all), nil
}

// sqlFigures reads at most $1 builds that ended within the hour, and $2 running builds.
const sqlFigures = `/* figures */
SELECT clock_timestamp(), (SELECT min(` + waitingSince + `) FROM builds b WHERE state = 'pending'), e.n, e.failed,
	coalesce(d.disk_percent, 0), coalesce(d.worker_id, ''), coalesce(d.name, ''),
	(SELECT count(*)::int FROM (SELECT FROM build_files WHERE copy_due IS NOT NULL LIMIT 1000) f),
	EXISTS (SELECT FROM throttle_queues), EXISTS (SELECT FROM deployments),
	(SELECT coalesce(jsonb_agg(jsonb_build_object('Platform', b.platform, 'Seconds', extract(epoch FROM now() - b.started_at),
		'Able', ` + servedState + ` IN ('idle', 'building'), 'Platforms', w.platforms, 'Labels', w.labels)), '[]')
	FROM (SELECT * FROM builds WHERE state IN ('assigned', 'building') LIMIT $2) b JOIN workers w ON w.id = b.worker_id)
FROM (
	SELECT (count(*) FILTER (WHERE state <> 'cancelled'))::int AS n, (count(*) FILTER (WHERE state = 'failed'))::int AS failed
	FROM (SELECT state FROM builds WHERE completed_at > now() - interval '1 hour' ORDER BY completed_at DESC LIMIT $1) b
) e LEFT JOIN (
	SELECT t.disk_percent, t.worker_id, n.name FROM worker_telemetry t JOIN worker_details n USING (worker_id)
	WHERE t.at > now() - interval '2 min' AND t.disk_percent IS NOT NULL ORDER BY 1 DESC LIMIT 1
) d ON true`

// Figures returns what the overview shows.
func (d *Dashboard) Figures(ctx context.Context) (store.Figures, error) {
	return rowOf(ctx, d.db.read("reading figures for a page"), nil, pgx.RowToStructByPos[store.Figures], sqlFigures, store.MaxEnded, store.MaxRunning)
}

// waitColumns are until when a build b waits for its retry, and why.
const waitColumns = `CASE WHEN b.class = 0 THEN (SELECT due_at FROM build_inputs WHERE build = b.seq) END, coalesce(b.ended, '')`

// sqlWaitingBuilds counts the builds before the page once for each class.
const sqlWaitingBuilds = `/* waiting_builds */
WITH before AS MATERIALIZED (
	SELECT class, count(*)::int AS n FROM builds WHERE state = 'pending' AND (position, seq) <= (@after, @seq) GROUP BY 1
)
SELECT b.id, b.platform, b.priority, (SELECT labels FROM build_labels WHERE build = b.seq), ` + waitingSince + `, b.attempt, b.position,
	coalesce((SELECT sum(n) FROM before), 0)::int + row_number() OVER (ORDER BY b.position, b.seq)::int,
	coalesce((SELECT n FROM before WHERE class = b.class), 0) + row_number() OVER (PARTITION BY b.class ORDER BY b.position, b.seq)::int,
	` + homeClass + `, (SELECT require FROM build_classes WHERE id = ` + homeClass + `), b.seq, NULL::int, ` + waitColumns + `
FROM (SELECT * FROM builds WHERE state = 'pending' AND (position, seq) > (@after, @seq) ORDER BY position, seq LIMIT @limit::int) b
ORDER BY b.position, b.seq`

// Waiting returns a page of the pending builds, in the order in which they are handed out.
func (d *Dashboard) Waiting(ctx context.Context, p store.Page) ([]store.PendingBuild, store.Cursor, error) {
	var after, seq int64
	if err := p.After.Keys("waiting", &after, &seq); err != nil {
		return nil, "", err
	}
	return pageOf(ctx, d.db.read("reading the queue for a page"), pgx.RowToStructByPos[store.PendingBuild],
		func(b store.PendingBuild) store.Cursor { return store.NewCursor("waiting", b.Position, b.Seq) },
		sqlWaitingBuilds, p, pgx.NamedArgs{"after": after, "seq": seq})
}

const sqlPlaceInQueue = `/* place_in_queue */
SELECT id, platform, priority, NULL::jsonb, ` + waitingSince + `, attempt, position,
	(SELECT count(*) FROM builds a WHERE a.state = 'pending' AND (a.position, a.seq) <= (b.position, b.seq))::int,
	(SELECT count(*) FROM builds a WHERE a.state = 'pending' AND a.class > 0 AND a.class = b.class AND (a.position, a.seq) <= (b.position, b.seq))::int,
	` + homeClass + `, (SELECT require FROM build_classes WHERE id = ` + homeClass + `), seq,
	(SELECT count(*) FROM builds a WHERE a.state = 'pending' AND a.attempt >= 0 AND coalesce(a.submitter, '') = coalesce(b.submitter, '') AND a.platform = b.platform
		AND a.class = b.class AND a.position <= b.position AND (a.position, a.seq) < (b.position, b.seq))::int, ` + waitColumns + `
FROM builds b WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND state = 'pending'`

// WaitingBuild returns one pending build, or nil if the build is not pending.
func (d *Dashboard) WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error) {
	return rowOf(ctx, d.db.read("reading a position in the queue for a page"), nil, pgx.RowToAddrOfStructByPos[store.PendingBuild], sqlPlaceInQueue, id)
}

// sqlRunning looks for a build's progress only in the last 30 lines of its log.
const sqlRunning = `/* running */
SELECT b.id, b.platform, b.state, b.priority, b.worker_id, coalesce(d.name, ''), b.started_at, coalesce(b.last_seen_at, b.started_at), b.attempt,
	(SELECT floor((l.facts->>'percent')::float8)::int FROM (
		SELECT seq, kind, facts FROM build_logs WHERE build = b.seq ORDER BY seq DESC LIMIT 30
	) l WHERE l.kind = 'progress' ORDER BY l.seq DESC LIMIT 1), (SELECT labels FROM build_labels WHERE build = b.seq), b.seq
FROM (
	SELECT * FROM builds WHERE state IN ('assigned', 'building') AND seq < @after ORDER BY seq DESC LIMIT @limit::int
) b LEFT JOIN worker_details d ON d.worker_id = b.worker_id
ORDER BY b.seq DESC`

// Running returns a page of the builds that workers hold, newest first.
func (d *Dashboard) Running(ctx context.Context, p store.Page) ([]store.RunningBuild, store.Cursor, error) {
	return numberedPage(ctx, d.db.read("reading running builds for a page"), numberedList{"running", true},
		func(b store.RunningBuild) int64 { return b.Seq }, sqlRunning, p, nil)
}

// sqlDurations reads the last 500 builds that were completed within a day.
const sqlDurations = `/* durations */
SELECT platform, count(*)::int, percentile_disc(ARRAY[0.25, 0.5, 0.75, 0.9]) WITHIN GROUP (ORDER BY took)
FROM (
	SELECT platform, greatest(extract(epoch FROM completed_at - started_at), 0)::float8 AS took FROM builds
	WHERE completed_at > now() - interval '1 day' AND state = 'completed' ORDER BY completed_at DESC LIMIT 500
) b GROUP BY 1`

// Durations returns how long recently completed builds took, by platform.
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

// sqlMilestones selects the log lines that a timeline shows. They are takt's own, because a
// worker's lines have none of these kinds.
const sqlMilestones = `/* milestones */
SELECT l.at, l.kind, coalesce(l.worker, ''), coalesce(d.name, ''), coalesce(l.attempt, 0), coalesce(l.facts, '{}') FROM build_logs l
LEFT JOIN worker_details d ON d.worker_id = l.worker
WHERE l.build = (SELECT seq FROM build_ids WHERE id = $1) AND l.kind IN ('assigned', 'requeued', 'priority', 'retried')
ORDER BY l.seq LIMIT 100`

// Milestones returns what happened to a build between its submission and its end, oldest
// first and up to 100.
func (d *Dashboard) Milestones(ctx context.Context, id string) ([]store.Milestone, error) {
	return rowsOf(ctx, d.db.read("reading a timeline for a page"), pgx.RowToStructByPos[store.Milestone], sqlMilestones, id)
}

// repoSteps is the order of a deployment's repositories on its page.
const repoSteps = `'{failed,creating,pushing,verifying,planned,done,skipped}'::text[]`

const sqlRepoPage = `/* repo_page */
SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = @id AND (@name::text = '' OR (array_position(` + repoSteps + `, step), name) > (array_position(` + repoSteps + `, @step::text), @name))
ORDER BY array_position(` + repoSteps + `, step), name LIMIT @limit::int`

// Repos returns a page of a deployment's repositories: those that failed first, then those
// in progress.
func (d *Dashboard) Repos(ctx context.Context, id string, p store.Page) ([]store.DeploymentRepo, store.Cursor, error) {
	var step, name string
	if err := p.After.Keys("repos", &step, &name); err != nil {
		return nil, "", err
	}
	return pageOf(ctx, d.db.read("reading repositories for a page"), pgx.RowToStructByPos[store.DeploymentRepo],
		func(r store.DeploymentRepo) store.Cursor { return store.NewCursor("repos", r.Step, r.Name) },
		sqlRepoPage, p, pgx.NamedArgs{"id": id, "step": step, "name": name})
}

// listens reports whether a session is that on which a controller listens, whose version follows.
const listens = `(datname = current_database() AND (application_name = 'takt listener' OR application_name LIKE 'takt listener %'))`

// sqlControllers counts the connections for notifications, of which each controller has one.
const sqlControllers = `/* controllers */ SELECT count(*)::int FROM pg_stat_activity WHERE ` + listens

// Controllers returns how many controllers use the database.
func (d *Dashboard) Controllers(ctx context.Context) (int, error) {
	return valueOf[int](ctx, d.db.read("counting controllers for a page"), sqlControllers)
}

const sqlNamedWorkers = `/* named_workers */
SELECT worker_id, name FROM worker_details WHERE worker_id = $1 OR strpos(lower(name), lower($1)) > 0
ORDER BY lower(name) <> lower($1), name LIMIT $2`

// NamedWorkers returns up to limit workers whose id is text or whose name contains it, in
// any case. A worker with exactly this name comes first.
func (d *Dashboard) NamedWorkers(ctx context.Context, text string, limit int) ([]store.Named, error) {
	return rowsOf(ctx, d.db.read("finding workers by name"), pgx.RowToStructByPos[store.Named], sqlNamedWorkers, store.Text(text), limit)
}

// sqlPulse counts the builds that started after $1. It looks for them among the builds that
// are held and those that ended after $1, because both have a small index.
const sqlPulse = `/* pulse */
WITH started AS MATERIALIZED (
	SELECT started_at - coalesce(waiting_since, submitted_at) AS waited FROM builds WHERE state IN ('assigned', 'building') AND started_at > $1
	UNION ALL
	SELECT started_at - coalesce(waiting_since, submitted_at) FROM builds WHERE completed_at > $1 AND started_at > $1
)
SELECT now(), (SELECT count(*) FROM builds WHERE state IN ('assigned', 'building'))::int,
	coalesce((SELECT seq FROM builds ORDER BY seq DESC LIMIT 1), 0),
	(SELECT count(*) FROM started)::int, coalesce((SELECT avg(waited) FROM started), '0')`

// Pulse returns how many builds run, and how many started since the time of the previous
// Pulse.
func (d *Dashboard) Pulse(ctx context.Context, since time.Time) (store.Pulse, error) {
	return rowOf(ctx, d.db.read("reading the queue's pulse"), nil, pgx.RowToStructByPos[store.Pulse], sqlPulse, since)
}
