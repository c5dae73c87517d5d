package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlTail returns one row without a line for a build that has none, and no row
// for an unknown build.
const sqlTail = `
SELECT b.state, coalesce(l.seq, 0), coalesce(l.at, now()), coalesce(l.level, ''), coalesce(l.message, '')
FROM builds b LEFT JOIN LATERAL (
	SELECT seq, at, level, message FROM build_logs WHERE build = b.seq AND seq > $2 ORDER BY seq LIMIT nullif($3, 0)
) l ON true
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY l.seq`

// Tail returns up to limit lines of a build after line seq after, and the build's
// state at the same moment. Error: NotFound.
func (b *Builds) Tail(ctx context.Context, id string, after int64, limit int) (t store.Tail, err error) {
	var line store.LogLine
	err = b.db.read("reading the log of build "+id).each(ctx, []any{&t.State, &line.Seq, &line.At, &line.Level, &line.Message}, func() error {
		if line.Seq > 0 {
			line.At = line.At.UTC()
			t.Lines = append(t.Lines, line)
		}
		return nil
	}, sqlTail, id, after, max(limit, 0))
	if err == nil && t.State == "" {
		err = errNoBuild()
	}
	return t, err
}

// Logs returns up to limit lines of a build after line seq after, oldest first;
// limit 0 means all. Lines become visible in the order of Seq. Error: NotFound.
func (b *Builds) Logs(ctx context.Context, id string, after int64, limit int) (lines []store.LogLine, err error) {
	t, err := b.Tail(ctx, id, after, limit)
	return append([]store.LogLine{}, t.Lines...), err
}

const sqlLogMarks = `
SELECT i.id, b.state, coalesce((SELECT max(l.seq) FROM build_logs l WHERE l.build = b.seq), 0)
FROM build_ids i JOIN builds b ON b.seq = i.seq WHERE i.id = ANY ($1)`

// LogMarks tells how far the logs of these builds are; unknown ones are left out.
func (b *Builds) LogMarks(ctx context.Context, ids []string) (marks map[string]store.LogMark, err error) {
	marks = make(map[string]store.LogMark, len(ids))
	var id string
	var mark store.LogMark
	err = b.db.read("looking at logs").each(ctx, []any{&id, &mark.State, &mark.Seq}, func() error {
		marks[id] = mark
		return nil
	}, sqlLogMarks, ids)
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
