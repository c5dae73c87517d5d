package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlClaimChores claims the work that one controller does for all, if the last claim is at
// least $1 old.
const sqlClaimChores = `/* claim_chores */
INSERT INTO settings (key, value) VALUES ('chores', '{}')
ON CONFLICT (key) DO UPDATE SET updated_at = now() WHERE settings.updated_at <= now() - $1::interval
RETURNING true`

// ClaimChores claims the work that one controller does for all. It returns true if no
// controller has claimed it within the time every; the caller then does the work.
func (f *Files) ClaimChores(ctx context.Context, every time.Duration) (bool, error) {
	return valueOf[bool](ctx, f.db.write("claiming chores"), sqlClaimChores, every)
}

// These statements return a page of the builds after $2 that still have files or a log:
// whether each ended more than $1 ago, and whether it was submitted more than $1 ago. Builds
// are numbered in the order of submission, so the search ends at the first that was not.
const (
	agedColumns = `b.seq, b.state IN ('completed', 'failed', 'cancelled') AND b.completed_at < now() - $1::interval,
	b.submitted_at < now() - $1::interval`

	sqlAgedFiles = `/* aged_files */ SELECT ` + agedColumns + `
FROM build_files f JOIN builds b ON b.seq = f.build
WHERE f.build > $2 AND f.kind = $4 ORDER BY f.build LIMIT $3`

	// Each step of the recursion skips the lines of one build.
	sqlAgedLogs = `/* aged_logs */
WITH RECURSIVE l AS (
	(SELECT build FROM build_logs WHERE build > $2 ORDER BY build LIMIT 1)
	UNION ALL
	SELECT (SELECT n.build FROM build_logs n WHERE n.build > l.build ORDER BY n.build LIMIT 1) FROM l WHERE l.build IS NOT NULL
)
SELECT ` + agedColumns + ` FROM (SELECT build FROM l WHERE build IS NOT NULL LIMIT $3) l JOIN builds b ON b.seq = l.build ORDER BY b.seq`
)

// aged is what a page of retention found.
type aged struct {
	builds []int64 // that ended long enough ago
	next   int64   // the build after which the next page begins; 0 if there is none
}

// findAged reads a page of up to limit builds with a statement above.
func findAged(ctx context.Context, tx pgx.Tx, limit int, query string, args ...any) (a aged, err error) {
	n, further := 0, true
	var build int64
	var old, now bool
	rows, _ := tx.Query(ctx, query, args...) // its error is that of the rows
	_, err = pgx.ForEachRow(rows, []any{&build, &old, &now}, func() error {
		if !further {
			return nil
		}
		n, a.next, further = n+1, build, now
		if old {
			a.builds = append(a.builds, build)
		}
		return nil
	})
	if n < limit || !further {
		a.next = 0
	}
	return a, err
}

const sqlExpireFiles = `/* expire_files */
DELETE FROM build_files f USING builds b
WHERE f.build = ANY ($1) AND f.kind = $2 AND b.seq = f.build
RETURNING ` + fileRowColumns

// ExpireFiles deletes the rows of files of a kind whose builds ended more than age ago, among
// the next limit builds after the build after, and returns them. The caller removes the files
// themselves. next is the after of the next call, 0 if there is no more to do.
func (f *Files) ExpireFiles(ctx context.Context, kind store.FileKind, age time.Duration, after int64, limit int) (expired []store.FileRow, next int64, err error) {
	err = f.db.write("expiring files").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		a, err := findAged(ctx, tx, limit, sqlAgedFiles, age, after, limit, string(kind))
		if err != nil {
			return err
		}
		next, expired = a.next, nil
		if len(a.builds) > 0 {
			expired, err = collect(ctx, tx, scanFileRow, sqlExpireFiles, a.builds, string(kind))
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return expired, next, nil
}

const sqlExpireLogs = `/* expire_logs */ DELETE FROM build_logs WHERE build = ANY ($1)`

// ExpireLogs deletes the logs of builds page by page, as ExpireFiles does, and returns of how
// many builds.
func (f *Files) ExpireLogs(ctx context.Context, age time.Duration, after int64, limit int) (builds int, next int64, err error) {
	err = f.db.write("expiring logs").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		a, err := findAged(ctx, tx, limit, sqlAgedLogs, age, after, limit)
		if err != nil {
			return err
		}
		builds, next = len(a.builds), a.next
		_, err = tx.Exec(ctx, sqlExpireLogs, a.builds)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	return builds, next, nil
}

const sqlExpireReports = `/* expire_reports */
DELETE FROM diagnostic_reports WHERE seq IN (
	SELECT seq FROM (SELECT seq, created_at FROM diagnostic_reports ORDER BY seq LIMIT $2) r WHERE created_at < now() - $1::interval)
RETURNING ` + reportFileColumns

// ExpireReports deletes up to limit diagnostic reports that arrived more than age ago, and
// returns their files, which the caller removes.
func (f *Files) ExpireReports(ctx context.Context, age time.Duration, limit int) ([]store.File, error) {
	return rowsOf(ctx, f.db.write("expiring diagnostic reports"), pgx.RowToStructByNameLax[store.File], sqlExpireReports, age, limit)
}
