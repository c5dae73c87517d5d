package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	// firstRetryWait is how long a build waits for its first retry by exit code. For each further
	// one it waits twice as long as for the one before, but never longer than lastRetryWait.
	firstRetryWait = 30 * time.Second
	lastRetryWait  = time.Hour

	// homeClass is the class of a build b, also while it waits for its retry.
	homeClass = `CASE WHEN b.class = 0 THEN (SELECT home_class FROM build_inputs WHERE build = b.seq) ELSE b.class END`

	// waitingClasses are the classes of the builds that wait for their retry, which have a row in
	// build_inputs with due_at.
	waitingClasses = `SELECT home_class FROM build_inputs WHERE due_at IS NOT NULL AND home_class IS NOT NULL`
)

// named reports whether an end is one after which the build is tried again.
func (st *relation) named(e store.Ended) bool { return slices.Contains(st.retryOn, e.Code()) }

// retries reports whether the build is tried again after an accepted result: its worker still held
// it, and it has attempts left of most, or of its own number.
func (e *ending) retries(most int) bool {
	if e.Success || e.Fault.OfWorker() || !e.st.state.Held() || !e.st.named(e.Ended) {
		return false
	}
	lost := e.st.lost
	if e.st.most > 0 {
		most, lost = e.st.most, lost+e.st.givenBack
	}
	return lost+1 < most
}

// sqlRetryBuilds makes builds pending again that are locked, at their old positions but of no class,
// so that nobody claims them before they are due. $4 is the first wait, $5 the longest.
const sqlRetryBuilds = `/* retry_builds */
WITH e AS MATERIALIZED (
	SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) AS e(build, how, line)
), i AS (
	UPDATE build_inputs SET home_class = b.class, retries = retries + 1, due_at = now() + least($4::interval * 2 ^ retries, $5::interval)
	FROM e JOIN builds b ON b.seq = e.build WHERE build_inputs.build = e.build
	RETURNING e.build, e.how, e.line, due_at
), b AS (
	UPDATE builds SET class = 0, lost = lost + 1, ended = i.how,` + pendingAgain + `
	FROM i WHERE seq = i.build
	RETURNING seq, log_lines, last_worker_id, attempt, line, due_at
)
INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
SELECT seq, log_lines, 'warn', 'Attempt ' || attempt || ' failed: ' || line || ', the build is tried again at ' || to_char(due_at AT TIME ZONE 'UTC', 'HH24:MI:SS') || ' UTC',
	'requeued', last_worker_id, attempt, jsonb_build_object('reason', 'exit', 'error', line) FROM b`

// writeAgain queues the statement that makes builds wait for their retry.
func (rows *ends) writeAgain(batch *pgx.Batch) {
	n := len(rows.again)
	builds, ends, lines := make([]int64, n), make([]string, n), make([]string, n)
	for i, e := range rows.again {
		builds[i], ends[i], lines[i] = e.seq, string(e.Ended), e.Ended.String()
	}
	batch.Queue(sqlRetryBuilds, builds, ends, lines, firstRetryWait, lastRetryWait)
}

const (
	// letIn gives builds their classes back. It skips rows that another controller has locked, which
	// lets the same builds in.
	letIn = ` AND b.state = 'pending' AND b.class = 0 AND i.home_class IS NOT NULL ORDER BY i.due_at LIMIT $1 FOR NO KEY UPDATE OF b, i SKIP LOCKED
), i AS (
	UPDATE build_inputs SET home_class = NULL, due_at = NULL FROM d WHERE build_inputs.build = d.build
)
UPDATE builds b SET class = d.home_class, updated_at = now() FROM d WHERE b.seq = d.build
RETURNING b.id, b.platform, coalesce(b.last_worker_id, ''), 0, b.submitted_at, b.started_at, b.position, b.class`

	dueBuilds = `WITH d AS MATERIALIZED (
	SELECT i.build, i.home_class FROM build_inputs i JOIN builds b ON b.seq = i.build WHERE `

	sqlLetIn = `/* let_in */ ` + dueBuilds + `i.due_at <= now()` + letIn
	// sqlLetInOne does not wait for the time.
	sqlLetInOne = `/* let_in_one */ ` + dueBuilds + `i.build = (SELECT seq FROM build_ids WHERE id = $2)` + letIn

	sqlAnyDue = `/* any_due */ SELECT EXISTS (SELECT FROM build_inputs WHERE due_at <= now())`
)

// maxLetIn is the most builds that one call of LetIn lets in.
const maxLetIn = 1000

// LetIn lets builds in whose time to be tried again has come, by the database's clock: each is of
// its class again, at its old position. It returns these. All controllers may call it.
func (q *Queue) LetIn(ctx context.Context) (refs []store.BuildRef, err error) {
	due, err := valueOf[bool](ctx, q.db.read("looking for builds to be tried again"), sqlAnyDue)
	if err != nil || !due {
		return nil, err
	}
	err = q.db.write("letting in builds that are tried again").requeue(ctx, func(ctx context.Context, tx pgx.Tx) ([]store.BuildRef, error) {
		refs, err = collect(ctx, tx, pgx.RowToStructByPos[store.BuildRef], sqlLetIn, maxLetIn)
		return refs, err
	})
	return refs, err
}
