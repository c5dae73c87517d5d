package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// workerColumns are the columns of a store.WorkerDetail, of workers w with workerJoins.
const (
	workerColumns = `w.id, w.number, n.name, n.capabilities, w.platforms, w.slots, w.status, w.registered_at, w.last_seen_at,
	w.completed, w.failed, w.held, (SELECT jsonb_object_agg(key, value) FROM jsonb_each(w.labels) WHERE NOT starts_with(key, 'takt:')), w.draining, coalesce(w.quarantine, ''), w.rests_until, coalesce(w.suspect, ''), w.suspect_since, w.suspect_served,
	CASE WHEN n.conflict_at > now() - interval '2 min' THEN n.conflict_at END,
	CASE WHEN n.conflict_at > now() - interval '2 min' THEN n.conflict_from ELSE '' END,
	ARRAY(SELECT b.id FROM builds b WHERE b.worker_id = w.id AND b.state IN ('assigned', 'building') ORDER BY b.seq),
	(SELECT jsonb_agg(coalesce((SELECT labels FROM build_labels WHERE build = b.seq), '{}') ORDER BY b.seq)
		FROM builds b WHERE b.worker_id = w.id AND b.state IN ('assigned', 'building')),
	CASE WHEN t.worker_id IS NOT NULL THEN jsonb_build_object('BuildID', t.build_id, 'At', t.at, 'Type', t.type, 'Stage', t.stage,
		'CPUPercent', t.cpu_percent, 'MemoryMB', t.memory_mb, 'DiskPercent', t.disk_percent, 'Processes', t.processes,
		'UptimeSeconds', t.uptime_seconds) END,
	coalesce(d.status, ''), d.run_at, coalesce(d.finding, ''), w.state, w.key::text`

	workerJoins = `JOIN worker_details n ON n.worker_id = w.id
LEFT JOIN worker_telemetry t ON t.worker_id = w.id
LEFT JOIN LATERAL (
	SELECT status, run_at, finding FROM diagnostic_reports WHERE worker_id = w.id ORDER BY seq DESC LIMIT 1
) d ON true`
)

// workerSilent reports whether worker w has no build and does not poll, or has builds and has sent no
// sign of life for four times as long as it took for one of them at most, or 30 s before that is
// known.
const workerSilent = `(w.held = 0 AND (w.last_seen_at < now() - make_interval(secs => greatest(90, w.poll_wait + 60))
	OR w.poll_closed_at >= w.last_seen_at AND w.poll_closed_at < now() - interval '10 s')
	OR w.held > 0 AND w.last_seen_at < now() - interval '60 s' AND w.last_seen_at < now() - make_interval(secs =>
		(SELECT greatest(60, 4 * coalesce(max(b.sign_gap), 30)) FROM builds b WHERE b.worker_id = w.id AND b.state IN ('assigned', 'building'))))`

// workerPolls reports whether a poll of worker w is parked, or was answered so recently that
// the next one is not late. polled_at may be up to 30 s older than the last poll.
const workerPolls = `CASE WHEN w.polled_at IS NULL THEN w.last_seen_at > now() - make_interval(secs => w.poll_wait + 45) AND (w.poll_closed_at < w.last_seen_at) IS NOT FALSE
	WHEN w.poll_wait > 0 THEN w.polled_at > now() - interval '45 s' AND (w.poll_closed_at < w.polled_at) IS NOT FALSE
	ELSE w.polled_at > now() - make_interval(secs => greatest(45, 10 + 2 * w.poll_every)) END`

// workerOnline reports whether worker w is online, which says nothing about whether it gets builds.
const workerOnline = `w.status <> 'offline' AND w.last_seen_at > now() - interval '2 min'`

// fleetState is why worker w gets no builds, or its status if it does get builds; a suspect is
// always shown as such.
const fleetState = unableState + ` WHEN w.suspect IS NOT NULL THEN 'suspect' ELSE w.status END`

// servedState is fleetState, but the status of a suspect that gets builds as before.
const servedState = unableState + ` WHEN w.suspect IS NOT NULL AND NOT w.suspect_served THEN 'suspect' ELSE w.status END`

const unableState = `CASE WHEN w.status = 'offline' THEN CASE WHEN w.left_at >= w.last_seen_at THEN 'left' ELSE 'offline' END
	WHEN ` + workerSilent + ` THEN 'silent' WHEN w.leaving_at IS NOT NULL AND (w.polled_at > w.leaving_at + interval '5 s') IS NOT TRUE THEN 'leaving' WHEN w.draining THEN 'draining'
	WHEN w.quarantine IS NOT NULL THEN 'quarantined' WHEN w.critical THEN 'critical'`

const (
	workerFilter = `(@status::text = '' OR w.status = @status) AND (@state::text = '' OR ` + fleetState + ` = @state)
	AND (NOT @present OR w.status <> 'offline' OR w.left_at IS NULL OR w.left_at < w.last_seen_at OR w.left_at > now() - interval '1 day')
	AND (@platform::text = '' OR w.platforms = '{}' AND @platform IN ('ios', 'android') OR @platform = ANY (w.platforms))`

	nameFilter = ` AND (@name::text = '' OR w.id = @name
	OR w.id = ANY (ARRAY(SELECT worker_id FROM worker_details WHERE strpos(lower(name), lower(@name)) > 0)))`

	// workerPage ends a statement whose p is the rows of one page, and reads their columns.
	workerPage = `) SELECT ` + workerColumns + ` FROM p w ` + workerJoins + ` ORDER BY w.key, w.id`

	// sqlListWorkers and sqlWorkersByName read an index and stop at the end of the page;
	// sqlWorkersByFigure reads all workers.
	sqlListWorkers = `/* list_workers */
WITH p AS MATERIALIZED (
	SELECT w.*, ` + fleetState + ` AS state, number AS key FROM workers w
	WHERE number > @after AND number <= @until AND ` + workerFilter + nameFilter + `
	ORDER BY number OFFSET @skip::int LIMIT @limit::int` + workerPage

	sqlWorkersByName = `/* workers_by_name */
WITH p AS MATERIALIZED (
	SELECT w.*, d.key FROM ( -- each part is planned by itself, because the filters seem to leave few rows to sort
		SELECT worker_id, lower(name) COLLATE "C" AS key FROM worker_details
		WHERE (lower(name) COLLATE "C", worker_id) > (@after::text, @after_id::text)
			AND (@name::text = '' OR worker_id = @name OR strpos(lower(name), lower(@name)) > 0)
		ORDER BY lower(name) COLLATE "C", worker_id
	) d, LATERAL (SELECT w.*, ` + fleetState + ` AS state FROM workers w WHERE w.id = d.worker_id AND ` + workerFilter + ` OFFSET 0) w
	ORDER BY d.key, d.worker_id LIMIT @limit::int` + workerPage

	sqlWorkersByFigure = `/* workers_by_figure */
WITH p AS MATERIALIZED (
	SELECT * FROM (SELECT w.*, ` + fleetState + ` AS state, CASE @sort::text
		WHEN 'seen' THEN -extract(epoch FROM w.last_seen_at)::float8
		WHEN 'used' THEN -w.held::float8 / w.slots
		WHEN 'success' THEN coalesce(w.completed::float8 / nullif(w.completed + w.failed, 0), 2)
		ELSE CASE ` + fleetState + ` WHEN 'critical' THEN 0 WHEN 'suspect' THEN 0.5 WHEN 'quarantined' THEN 1 WHEN 'offline' THEN 2 WHEN 'silent' THEN 3
			WHEN 'leaving' THEN 4 WHEN 'draining' THEN 5 WHEN 'building' THEN 6 WHEN 'idle' THEN 7 ELSE 8 END
	END AS key
	FROM workers w WHERE ` + workerFilter + nameFilter + `
	) f WHERE @after_id::text = '' OR (key, id) > (@after::float8, @after_id)
	ORDER BY key, id LIMIT @limit::int` + workerPage

	sqlShowWorker = `/* show_worker */ WITH p AS (SELECT w.*, ` + fleetState + ` AS state, '' AS key FROM workers w WHERE w.id = $1` + workerPage
)

// workerList is a statement that reads a page of workers.
type workerList struct {
	sql  string
	args pgx.NamedArgs
	at   func(store.WorkerDetail) store.Cursor // the cursor after a row
}

// listWorkers returns the statement for a page of the workers that match f. An error is that
// of a wrong cursor.
func listWorkers(f store.WorkerFilter, p store.Page) (l workerList, err error) {
	if f.Sort == "" {
		list := numberedList{"workers", false}
		l.sql, l.at = sqlListWorkers, func(w store.WorkerDetail) store.Cursor { return list.at(w.Number) }
		l.args, err = list.args(p)
	} else {
		list, id := "workers by "+f.Sort, ""
		name, figure := "", 0.0
		l.sql, l.args = sqlWorkersByFigure, pgx.NamedArgs{"sort": f.Sort}
		if f.Sort == "name" {
			l.sql, err = sqlWorkersByName, p.After.Keys(list, &name, &id)
			l.args["after"] = name
			l.at = func(w store.WorkerDetail) store.Cursor { return store.NewCursor(list, w.Key, w.ID) }
		} else {
			err = p.After.Keys(list, &figure, &id)
			l.args["after"] = figure
			l.at = func(w store.WorkerDetail) store.Cursor { return store.NewCursor(list, json.Number(w.Key), w.ID) }
		}
		l.args["after_id"] = id
	}
	l.args["name"], l.args["status"], l.args["state"], l.args["platform"] = store.Text(f.Name), string(f.Status), store.Text(f.State), string(f.Platform)
	l.args["present"] = f.Present
	l.args = pageArgs(p, l.args)
	return l, err
}

// List returns a page of the workers that match f.
func (w *Workers) List(ctx context.Context, f store.WorkerFilter, p store.Page) ([]store.WorkerDetail, store.Cursor, error) {
	l, err := listWorkers(f, p)
	if err != nil {
		return nil, "", err
	}
	return pageOf(ctx, w.db.read("listing workers"), pgx.RowToStructByPos[store.WorkerDetail], l.at, l.sql, p, l.args)
}

// Show returns one worker as List does. Error: NotFound.
func (w *Workers) Show(ctx context.Context, id string) (store.WorkerDetail, error) {
	return rowOf(ctx, w.db.read("reading worker "+id), errNoWorker, pgx.RowToStructByPos[store.WorkerDetail], sqlShowWorker, id)
}

const sqlDrain = `/* drain */
WITH w AS (
	UPDATE workers SET draining = $2, attempts = CASE WHEN $2 THEN attempts ELSE '' END, quarantine = CASE WHEN $2 THEN quarantine END,
		quarantines = CASE WHEN $2 THEN quarantines ELSE 0 END, rests_until = CASE WHEN $2 THEN rests_until ELSE '-infinity' END,
		suspect = CASE WHEN $2 THEN suspect END, suspect_since = CASE WHEN $2 THEN suspect_since END, suspect_served = $2 AND suspect_served
	WHERE id = $1 RETURNING number, status
)
SELECT status, pg_notify('takt', 'worker:changed ' || number) FROM w`

// Drain makes a worker get no builds from the next assignment on, or with false lets it get
// builds again, which also ends its quarantine and that it is suspect. The worker keeps the builds that it has.
// Repeating it is harmless. Error: NotFound.
func (w *Workers) Drain(ctx context.Context, id string, draining bool) (status store.WorkerStatus, err error) {
	err = w.db.write("draining worker "+id).scan(ctx, errNoWorker, []any{&status, nil}, sqlDrain, id, draining)
	return status, err
}
