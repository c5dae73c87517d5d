package postgres

import (
	"context"

	"takt/store"
)

// sqlTail returns one row without a line for a build without lines, and no row for an
// unknown build. Of at most $3 lines it returns those that begin within the first $4
// bytes.
const sqlTail = `/* tail */
SELECT b.state, coalesce(l.seq, 0), coalesce(l.at, now()), coalesce(l.level, ''), coalesce(l.message, '')
FROM builds b LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT p.*, sum(octet_length(message)) OVER (ORDER BY seq) - octet_length(message) AS before FROM (
			SELECT seq, at, level, message FROM build_logs WHERE build = b.seq AND seq > $2 ORDER BY seq LIMIT $3
		) p
	) s WHERE before < $4
) l ON true
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY l.seq`

// Tail returns up to limit lines of a build after line seq after, about
// store.LogPage bytes of them, and the build's state at the same moment. Error:
// NotFound.
func (b *Builds) Tail(ctx context.Context, id string, after int64, limit int) (t store.Tail, err error) {
	var line store.LogLine
	size := 0
	err = b.db.read("reading the log of build "+id).each(ctx, []any{&t.State, &line.Seq, &line.At, &line.Level, &line.Message}, func() error {
		if line.Seq > 0 {
			t.Lines = append(t.Lines, line)
			size += len(line.Message)
		}
		return nil
	}, sqlTail, id, after, limit, store.LogPage)
	if err == nil && t.State == "" {
		err = errNoBuild()
	}
	t.More = len(t.Lines) > 0 && (len(t.Lines) == limit || size >= store.LogPage)
	return t, err
}

const sqlLogMarks = `/* log_marks */
SELECT i.id, b.state, coalesce((SELECT max(l.seq) FROM build_logs l WHERE l.build = b.seq), 0)
FROM build_ids i JOIN builds b ON b.seq = i.seq WHERE i.id = ANY ($1)`

// LogMarks returns how far the logs of these builds are. Unknown builds are left out.
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
