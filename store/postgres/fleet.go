package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// workerColumns and workerJoins are what scanWorker reads of workers w.
const (
	workerColumns = `w.id, w.number, n.name, n.capabilities, w.platforms, w.slots, w.status, w.registered_at, w.last_seen_at,
	w.completed, w.failed, w.held, w.draining, coalesce(w.quarantine, ''), CASE WHEN w.rests_until > '-infinity' THEN w.rests_until END,
	CASE WHEN n.conflict_at > now() - interval '2 min' THEN n.conflict_at END, coalesce(n.conflict_from, ''),
	ARRAY(SELECT b.id FROM builds b WHERE b.worker_id = w.id AND b.state IN ('assigned', 'building') ORDER BY b.seq),
	t.build_id, t.at, t.type, coalesce(t.stage, ''), t.cpu_percent, t.memory_mb, t.disk_percent, t.processes, t.uptime_seconds,
	coalesce(d.status, ''), d.run_at, coalesce(d.finding, '')`

	workerJoins = `JOIN worker_details n ON n.worker_id = w.id
LEFT JOIN worker_telemetry t ON t.worker_id = w.id
LEFT JOIN LATERAL (
	SELECT status, run_at, finding FROM diagnostic_reports WHERE worker_id = w.id ORDER BY seq DESC LIMIT 1
) d ON true`
)

// sqlListWorkers: $1 id, $2 status, $3 limit; empty means all. $4 is the number of the
// last worker of the page before.
const sqlListWorkers = `/* list_workers */
SELECT ` + workerColumns + `
FROM (
	SELECT * FROM workers WHERE ($1 = '' OR id = $1) AND ($2 = '' OR status = $2) AND number > $4
	ORDER BY number LIMIT nullif($3, 0)
) w ` + workerJoins + `
ORDER BY w.number`

// List returns the workers that match f, the oldest first.
func (w *Workers) List(ctx context.Context, f store.WorkerFilter) ([]store.WorkerDetail, error) {
	return rowsOf(ctx, w.db.read("listing workers"), scanWorker, sqlListWorkers, f.ID, string(f.Status), max(f.Limit, 0), f.After)
}

func scanWorker(row pgx.CollectableRow) (w store.WorkerDetail, err error) {
	var platforms []string
	var capabilities []byte
	var build, kind *string
	var at, diagnosed, rests, conflict *time.Time
	var t store.Telemetry
	err = row.Scan(&w.ID, &w.Number, &w.Name, &capabilities, &platforms, &w.Slots, &w.Status, &w.RegisteredAt, &w.LastSeenAt,
		&w.Completed, &w.Failed, &w.Held, &w.Draining, &w.Quarantine, &rests, &conflict, &w.ConflictFrom, &w.Builds,
		&build, &at, &kind, &t.Stage, &t.CPUPercent, &t.MemoryMB, &t.DiskPercent, &t.Processes, &t.UptimeSeconds,
		&w.Diagnostic, &diagnosed, &w.Finding)
	if err != nil {
		return w, err
	}
	w.Capabilities, w.Platforms = capabilities, toPlatforms(platforms)
	w.RegisteredAt, w.LastSeenAt, w.DiagnosedAt, w.RestsUntil = w.RegisteredAt.UTC(), w.LastSeenAt.UTC(), utc(diagnosed), utc(rests)
	if w.ConflictAt = utc(conflict); conflict == nil {
		w.ConflictFrom = ""
	}
	if build != nil {
		t.BuildID, t.At, t.Type = *build, at.UTC(), *kind
		w.Telemetry = &t
	}
	return w, nil
}

const sqlDrain = `/* drain */
WITH w AS (
	UPDATE workers SET draining = $2, attempts = CASE WHEN $2 THEN attempts ELSE '' END, quarantine = CASE WHEN $2 THEN quarantine END,
		quarantines = CASE WHEN $2 THEN quarantines ELSE 0 END, rests_until = CASE WHEN $2 THEN rests_until ELSE '-infinity' END
	WHERE id = $1 RETURNING number, status
)
SELECT status, pg_notify('takt', 'worker:changed ' || number) FROM w`

// Drain stops a worker from getting builds from the next assignment on, or lets it get
// them again, which ends its quarantine too. The worker keeps the builds it has.
// Repeating it is harmless. Error: NotFound.
func (w *Workers) Drain(ctx context.Context, id string, draining bool) (status store.WorkerStatus, err error) {
	err = w.db.write("draining worker "+id).scan(ctx, errNoWorker, []any{&status, nil}, sqlDrain, id, draining)
	return status, err
}

// sqlLockIdentity locks a worker's identity, which a registration locks first too.
const sqlLockIdentity = `/* lock_identity */ SELECT FROM worker_details WHERE worker_id = $1 FOR UPDATE`

// sqlLockTelemetry comes before the lock of the worker, as in Builds.Telemetry.
const sqlLockTelemetry = `/* lock_telemetry */ SELECT FROM worker_telemetry WHERE worker_id = $1 FOR UPDATE`

// sqlDeleteWorker removes a worker and everything about it: reports and telemetry go
// with worker_details. Its share in the mean processor load stays.
const sqlDeleteWorker = `/* delete_worker */
WITH r AS (
	UPDATE rollup SET cpu_sum = rollup.cpu_sum + t.cpu_sum, cpu_count = rollup.cpu_count + t.cpu_count
	FROM worker_telemetry t WHERE t.worker_id = $1
), w AS (
	DELETE FROM workers WHERE id = $1 RETURNING number
), d AS (
	DELETE FROM worker_details WHERE worker_id = $1
)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`

// Delete removes a worker: its tokens are void, and its builds are pending again at
// their old positions. Builds that it has ended keep its id. It may register again.
// Error: NotFound.
func (w *Workers) Delete(ctx context.Context, id string) (gone store.Departure, err error) {
	gone.WorkerID = id
	var positions []int64
	err = w.db.write("deleting worker "+id).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sqlLockIdentity, id).Scan()
		if err == nil {
			_, err = tx.Exec(ctx, sqlLockTelemetry, id)
		}
		if err == nil {
			err = tx.QueryRow(ctx, sqlLockByID, id).Scan(nil)
		}
		if err := orNone(err, errNoWorker); err != nil {
			return err
		}
		if gone.Requeued, positions, err = returnBuilds(ctx, tx, id, store.LostDeleted); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlDeleteWorker, id); err != nil {
			return err
		}
		return notifyJobs(ctx, tx, gone.Requeued)
	})
	if err != nil {
		return store.Departure{}, err
	}
	w.db.requeued(positions)
	return gone, nil
}
