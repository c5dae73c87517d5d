package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const sqlMarkCritical = `/* mark_critical */
WITH w AS (UPDATE workers SET critical = $2 WHERE id = $1 AND critical <> $2 RETURNING number)
SELECT pg_notify('takt', 'worker:changed ' || number) FROM w`

// sqlStillCritical makes a worker that reports why it can run no builds not a silent one.
const sqlStillCritical = `/* still_critical */ UPDATE workers SET last_seen_at = now() WHERE id = $1 AND critical AND status <> 'offline'`

const sqlInsertReport = `/* insert_report */
INSERT INTO diagnostic_reports (id, worker_id, status, run_at, duration_ms, auto_fixed, checks, finding, name, location, object)
VALUES (@id, @worker, @status, @run_at, @ms, @auto_fixed, @checks, @finding, @name, @location, @object)`

// Report stores a diagnostic report, and commits its file within the transaction. If the
// report was certainly not stored, the file is aborted. Error: NotFound for an unknown
// worker.
func (w *Workers) Report(ctx context.Context, r store.DiagnosticReport, files ...store.Staged) error {
	op := w.db.write("keeping a diagnostic report of worker " + r.WorkerID)
	commit := op.committing(ctx, files)
	err := op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// The row that refers to the worker's identity comes first, because everywhere the
		// identity is locked before the worker.
		location, object, _ := whereabouts(r.File)
		_, err := tx.Exec(ctx, sqlInsertReport, pgx.NamedArgs{
			"id": r.ID, "worker": r.WorkerID, "status": string(r.Status), "run_at": r.RunAt, "ms": r.Duration.Milliseconds(),
			"auto_fixed": r.AutoFixed, "checks": []byte(r.Checks), "finding": r.Finding, "name": r.File.Name, "location": location, "object": object,
		})
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, sqlMarkCritical, r.WorkerID, r.Status == store.Critical); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, sqlStillCritical, r.WorkerID); err != nil {
			return err
		}
		return commit()
	})
	if isCertain(err) {
		abortFiles(ctx, files)
	}
	return err
}

const sqlTrimReports = `/* trim_reports */
DELETE FROM diagnostic_reports WHERE worker_id = $1 AND seq <= (
	SELECT seq FROM diagnostic_reports WHERE worker_id = $1 ORDER BY seq DESC OFFSET $2 LIMIT 1)
RETURNING ` + reportFileColumns

// TrimReports deletes all but the newest keep reports of a worker, and returns the files of
// those deleted. The caller removes the files.
func (w *Workers) TrimReports(ctx context.Context, worker string, keep int) ([]store.File, error) {
	return rowsOf(ctx, w.db.write("forgetting diagnostic reports of worker "+worker), pgx.RowToStructByNameLax[store.File], sqlTrimReports, worker, keep)
}

// reportFileColumns are the columns of a report that a store.File has.
const reportFileColumns = `name, location, coalesce(object, '') AS object`

const sqlHasWorker = `/* has_worker */ SELECT true FROM workers WHERE id = $1`

const reportColumns = `id, worker_id, status, run_at, duration_ms * interval '1 ms', auto_fixed, checks, name, location, coalesce(object, '')`

const sqlReports = `/* reports */
SELECT ` + reportColumns + `
FROM diagnostic_reports WHERE worker_id = $1 ORDER BY seq DESC LIMIT $2`

// Reports returns up to limit diagnostic reports of a worker, newest first. Error: NotFound
// for an unknown worker.
func (w *Workers) Reports(ctx context.Context, id string, limit int) (reports []store.DiagnosticReport, err error) {
	err = w.db.read("reading diagnostic reports of worker "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		if err := orNone(c.QueryRow(ctx, sqlHasWorker, id).Scan(nil), errNoWorker); err != nil {
			return err
		}
		reports, err = collect(ctx, c, scanReport, sqlReports, id, limit)
		return err
	})
	return reports, err
}

func scanReport(row pgx.CollectableRow) (r store.DiagnosticReport, err error) {
	err = row.Scan(&r.ID, &r.WorkerID, &r.Status, &r.RunAt, &r.Duration, &r.AutoFixed, &r.Checks,
		&r.File.Name, &r.File.Location, &r.File.Object)
	return r, err
}
