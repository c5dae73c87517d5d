package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlLogs returns one row without a line for a build that has none, and no row
// for an unknown build.
const sqlLogs = `
SELECT l.seq, l.at, l.level, l.message
FROM builds b LEFT JOIN LATERAL (
	SELECT seq, at, level, message FROM build_logs WHERE build = b.seq AND seq > $2 ORDER BY seq LIMIT nullif($3, 0)
) l ON true
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY l.seq`

// Logs returns up to limit lines of a build after line seq after, oldest first;
// limit 0 means all. Lines become visible in the order of Seq. Error: NotFound.
func (b *Builds) Logs(ctx context.Context, id string, after int64, limit int) (lines []store.LogLine, err error) {
	err = b.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlLogs, id, after, max(limit, 0))
		if err == nil {
			lines, err = scanLogs(rows)
		}
		if err != nil {
			return fmt.Errorf("reading logs of build %s: %w", id, err)
		}
		return nil
	})
	return lines, err
}

func scanLogs(rows pgx.Rows) ([]store.LogLine, error) {
	defer rows.Close()
	known := false
	lines := []store.LogLine{}
	for rows.Next() {
		known = true
		var seq *int64
		var at *time.Time
		var level, message *string
		if err := rows.Scan(&seq, &at, &level, &message); err != nil {
			return nil, err
		}
		if seq != nil {
			lines = append(lines, store.LogLine{Seq: *seq, At: at.UTC(), Level: store.Level(*level), Message: *message})
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if !known {
		return nil, errNoBuild()
	}
	return lines, nil
}

// sqlAppendLogs locks the build, so that lines are numbered in the order in
// which they become visible and a reader that goes on after the last line it
// saw misses none. $2 is the worker, which must be the holder or the last one.
const sqlAppendLogs = `
WITH b AS MATERIALIZED (
	SELECT seq FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) AND worker_id = $2 FOR NO KEY UPDATE
)
INSERT INTO build_logs (build, level, message)
SELECT b.seq, l.level, l.message FROM b, unnest($3::text[], $4::text[]) WITH ORDINALITY AS l(level, message, nr)
ORDER BY l.nr`

// appendLogs writes lines for a build of worker.
func appendLogs(ctx context.Context, tx pgx.Tx, id, worker string, lines []store.LogLine) error {
	levels, messages := make([]string, len(lines)), make([]string, len(lines))
	for i, l := range lines {
		levels[i], messages[i] = string(l.Level), sanitize(l.Message)
	}
	_, err := tx.Exec(ctx, sqlAppendLogs, id, worker, levels, messages)
	if err != nil {
		return fmt.Errorf("writing logs of build %s: %w", id, err)
	}
	return nil
}
