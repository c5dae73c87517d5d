package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlTail reads at most $3 lines after seq $2, or if $2 is negative the last -$2 lines, and
// returns those of them that begin within the first $4 bytes. If there are none, it returns
// one row with seq 0, and for an unknown build no row.
const sqlTail = `/* tail */
SELECT b.state, coalesce(l.seq, 0), coalesce(l.number, 0), coalesce(l.at, now()), coalesce(l.level, ''), coalesce(l.message, ''), coalesce(l.facts->>'by', ''), coalesce(l.facts->>'why', '')
FROM builds b LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT p.*, sum(octet_length(message)) OVER (ORDER BY seq) - octet_length(message) AS before FROM (
			SELECT seq, number, at, level, message, facts FROM build_logs WHERE build = b.seq AND seq > CASE
				WHEN $2::bigint >= 0 THEN $2 ELSE coalesce((SELECT seq FROM build_logs WHERE build = b.seq ORDER BY seq DESC OFFSET greatest(-$2, 0) LIMIT 1), 0)
			END ORDER BY seq LIMIT $3
		) p
	) s WHERE before < $4
) l ON true
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1) ORDER BY l.seq`

// Tail returns up to limit lines of a build's log and the build's state at the same moment:
// the lines after seq after, or if after is negative the last -after lines. It stops after
// about store.LogPage bytes. Error: NotFound.
func (b *Builds) Tail(ctx context.Context, id string, after int64, limit int) (t store.Tail, err error) {
	var line store.LogLine
	size := 0
	err = b.db.read("reading the log of build "+id).each(ctx, []any{&t.State, &line.Seq, &line.Number, &line.At, &line.Level, &line.Message, &line.By, &line.Why}, func() error {
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

// LogMarks returns the states and the last lines' seq of these builds, by id. It leaves out
// unknown builds.
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

// logColumns are the columns of a store.LogLine for a page, which shows only part of a long
// message: its end if it has carriage returns, because then later text replaces earlier
// text, or else its beginning.
const logColumns = ` seq, coalesce(number, 0), at, level, CASE WHEN octet_length(message) <= 4000 THEN message
	WHEN position(E'\r' IN message) > 0 THEN right(message, 4000) ELSE left(message, 4001) END, coalesce(facts->>'by', ''), coalesce(facts->>'why', '') `

// theLog selects the log lines of build $1.
const theLog = ` FROM build_logs WHERE build = (SELECT seq FROM build_ids WHERE id = $1) `

const sqlLogPage = `/* log_page */
SELECT * FROM (
	(SELECT` + logColumns + theLog + `AND seq < $2 ORDER BY seq DESC LIMIT $3)
	UNION ALL (SELECT` + logColumns + theLog + `AND seq >= $2 ORDER BY seq LIMIT $4)
) l ORDER BY seq`

// LogPage returns up to older lines of a build's log before line seq at, and up to newer
// ones from there on, oldest first. It cuts messages of more than 4000 bytes.
func (d *Dashboard) LogPage(ctx context.Context, id string, at int64, older, newer int) ([]store.LogLine, error) {
	return rowsOf(ctx, d.db.read("reading a log for a page"), pgx.RowToStructByPos[store.LogLine], sqlLogPage, id, at, older, newer)
}

// sqlFindLine searches by bisection, because seq and number grow together but only seq has
// an index. Lines without a number are the oldest. m is the first line of the upper half.
const sqlFindLine = `/* find_line */
WITH RECURSIVE s AS (
	SELECT b.seq AS build, coalesce((SELECT min(seq) FROM build_logs WHERE build = b.seq), 0) AS low,
		coalesce((SELECT max(seq) FROM build_logs WHERE build = b.seq) + 1, 0) AS high
	FROM build_ids b WHERE id = $1
	UNION ALL
	SELECT build, CASE WHEN m.number < $2 THEN m.seq + 1 ELSE low END, CASE WHEN m.number < $2 THEN high ELSE (low + high) / 2 END
	FROM s, LATERAL (
		SELECT l.seq, coalesce(l.number, 0) AS number FROM build_logs l WHERE l.build = s.build AND l.seq >= (low + high) / 2 ORDER BY l.seq LIMIT 1
	) m WHERE low < high
)
SELECT low, coalesce(l.seq, 0), coalesce(l.number, 0) FROM s
LEFT JOIN LATERAL (SELECT seq, number FROM build_logs WHERE build = s.build ORDER BY seq DESC LIMIT 1) l ON true WHERE low >= high`

// FindLine returns the seq of the first line of a build's log whose number is at least
// number, or one more than the last seq if there is none, and the last line's seq and number.
// Error: NotFound.
func (d *Dashboard) FindLine(ctx context.Context, id string, number int) (seq int64, last store.LogLine, err error) {
	err = d.db.read("finding a line of a log").scan(ctx, errNoBuild, []any{&seq, &last.Seq, &last.Number}, sqlFindLine, id, number)
	return seq, last, err
}

// sqlSearchLog searches $5 lines from seq $2 on, or fewer if that many lines of the build
// have more than $6 bytes on average. Its last row is the last line searched.
const sqlSearchLog = `/* search_log */
WITH e AS MATERIALIZED (
	SELECT max(seq) AS seq FROM (
		SELECT seq` + theLog + `AND seq >= $2 ORDER BY seq LIMIT (
			SELECT least($5, $6::bigint * greatest(log_lines, 1) / greatest(log_bytes, 1) + 1) FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)
		)
	) p
), found AS (
	SELECT` + logColumns + theLog + `AND seq BETWEEN $2 AND (SELECT seq FROM e) AND message ILIKE $3 ORDER BY seq LIMIT $4
)
SELECT true, found.* FROM found
UNION ALL (SELECT false,` + logColumns + theLog + `AND seq = (SELECT seq FROM e))
ORDER BY 2, 1 DESC`

// SearchLog searches part of a build's log, from seq on. It returns up to limit lines that
// contain text in any case, and the last line searched, after which the next search begins;
// the zero line if the log has no line from seq on.
func (d *Dashboard) SearchLog(ctx context.Context, id, text string, seq int64, limit int) (found []store.LogLine, last store.LogLine, err error) {
	pattern := "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
	var line store.LogLine
	var hit bool
	err = d.db.read("searching a log").each(ctx, []any{&hit, &line.Seq, &line.Number, &line.At, &line.Level, &line.Message, &line.By, &line.Why}, func() error {
		if last = line; hit {
			found = append(found, line)
		}
		return nil
	}, sqlSearchLog, id, seq, pattern, limit, store.LogSearchLines, store.LogSearchBytes)
	if len(found) == limit {
		last = found[limit-1]
	}
	return found, last, err
}
