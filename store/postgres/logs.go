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

// sqlTail is sqlLogs with the build's state.
const sqlTail = `
SELECT b.state, coalesce(l.seq, 0), coalesce(l.at, now()), coalesce(l.level, ''), coalesce(l.message, '')
FROM builds b LEFT JOIN LATERAL (
	SELECT seq, at, level, message FROM build_logs WHERE build = b.seq AND seq > $2 ORDER BY seq LIMIT $3
) l ON true
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY l.seq`

// Tail returns up to limit lines of a build after line seq after, and the build's
// state at the same moment. Error: NotFound.
func (b *Builds) Tail(ctx context.Context, id string, after int64, limit int) (t store.Tail, err error) {
	err = b.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlTail, id, after, limit)
		if err != nil {
			return fmt.Errorf("reading the log of build %s: %w", id, err)
		}
		var line store.LogLine
		_, err = pgx.ForEachRow(rows, []any{&t.State, &line.Seq, &line.At, &line.Level, &line.Message}, func() error {
			if line.Seq > 0 {
				line.At = line.At.UTC()
				t.Lines = append(t.Lines, line)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading the log of build %s: %w", id, err)
		}
		if t.State == "" {
			return errNoBuild()
		}
		return nil
	})
	return t, err
}

const sqlLogMarks = `
SELECT i.id, b.state, coalesce((SELECT max(l.seq) FROM build_logs l WHERE l.build = b.seq), 0)
FROM build_ids i JOIN builds b ON b.seq = i.seq WHERE i.id = ANY ($1)`

// LogMarks tells how far the logs of these builds are; unknown ones are left out.
func (b *Builds) LogMarks(ctx context.Context, ids []string) (marks map[string]store.LogMark, err error) {
	marks = make(map[string]store.LogMark, len(ids))
	err = b.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlLogMarks, ids)
		if err != nil {
			return fmt.Errorf("looking at logs: %w", err)
		}
		var id string
		var mark store.LogMark
		_, err = pgx.ForEachRow(rows, []any{&id, &mark.State, &mark.Seq}, func() error {
			marks[id] = mark
			return nil
		})
		if err != nil {
			return fmt.Errorf("looking at logs: %w", err)
		}
		return nil
	})
	return marks, err
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
		levels[i], messages[i] = string(l.Level), store.Text(l.Message)
	}
	_, err := tx.Exec(ctx, sqlAppendLogs, id, worker, levels, messages)
	if err != nil {
		return fmt.Errorf("writing logs of build %s: %w", id, err)
	}
	return nil
}
