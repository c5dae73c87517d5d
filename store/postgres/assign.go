package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
	"takt/store/batching"
)

const (
	// MaxBatch is the most polls of one call of Assign.
	MaxBatch = 256
	// assignTimeout bounds one transaction of Assign.
	assignTimeout = 5 * time.Second
	// passes is how often a poll is tried. It is tried again if its worker's row has changed
	// since it was read, or if too few builds were locked to decide.
	passes = 3
)

// workerDrained reports whether worker w gets no builds for now. A quarantined or suspect worker
// whose rest is over gets one build at a time.
const workerDrained = `(w.draining OR w.critical AND @spare OR w.rests_until > now() OR ` + workerTried + ` AND w.held > 0)`

const workerTried = `(w.quarantine IS NOT NULL OR w.suspect IS NOT NULL AND NOT w.suspect_served)`

// rowColumns are the columns of type row.
const rowColumns = `w.number, w.id, w.used, w.handed, w.held, w.slots, w.platforms, w.labels, ` + workerDrained + `, coalesce(w.instance, ''), w.status = 'offline', ` + workerTried + `, w.ctid AS version`

// sqlReadWorkers reads workers that the controller does not remember. If no worker has the
// number of a poll without a token, the worker is looked up by its id.
const sqlReadWorkers = `/* read_workers */
SELECT p.nr - 1, w.* FROM unnest(@numbers::bigint[], @ids::text[]) WITH ORDINALITY AS p(number, id, nr)
CROSS JOIN LATERAL (
	SELECT ` + rowColumns + ` FROM workers w WHERE w.number = p.number
	UNION ALL
	SELECT ` + rowColumns + ` FROM workers w WHERE w.id = p.id
	LIMIT 1
) w`

// The first round trip locks the rows on which the decision depends. It skips rows that
// another transaction has locked, so it never waits and the order of its locks does not
// matter. Each statement sees what was committed before it began, so the builds read are
// those that the workers hold now that they are locked.
const (
	sqlBegin    = `/* begin */ BEGIN`
	sqlPatience = `/* patience */ SET LOCAL idle_in_transaction_session_timeout = '2s'`

	// newest finds the row of a worker. While an old snapshot is held, dead versions of a row
	// can't be vacuumed, and a look-up that reads them all becomes slower with each
	// assignment. New versions come last in the index, so this reads it from its end; a
	// condition with = would read it from the start.
	newest = ` FROM workers w WHERE w.number BETWEEN p.worker AND p.worker ORDER BY w.number DESC LIMIT 1`

	sqlLockWorkers = `/* lock_workers */
SELECT w.* FROM unnest(@numbers::bigint[]) AS p(worker) CROSS JOIN LATERAL (SELECT ` + rowColumns + newest + forUs + `) w`

	claimColumns = `seq, position, id, platform, class, attempt, has_certs, coalesce(has_inputs, false) AS inputs, submitted_at, coalesce(waiting_since, updated_at) AS since, coalesce(worker_id, last_worker_id, ''), handed, ctid AS version`

	sqlLockRepeats = `/* lock_repeats */
SELECT ` + claimColumns + `, CASE state WHEN 'assigned' THEN last_seen_at IS NULL OR started_at > now() - interval '2 min'
	ELSE started_at = updated_at OR updated_at > now() - interval '2 min' END FROM builds WHERE worker_id = ANY ($1) AND ` + unheard + ` ORDER BY handed, seq FOR NO KEY UPDATE SKIP LOCKED`

	// unheard is true for a held build of which its worker has sent nothing yet. One that needs a
	// feature is building from the start, because controllers of an older release repeat the hand-out
	// of assigned builds, and their jobs don't say that a build has inputs.
	unheard = `(state = 'assigned' OR state = 'building' AND last_seen_at IS NULL)`

	pending = `SELECT ` + claimColumns + ` FROM builds WHERE state = 'pending' AND `
	forUs   = ` FOR NO KEY UPDATE SKIP LOCKED`
)

// The second round trip writes what was decided. It finds rows by their versions, which don't
// change while the transaction has them locked.
const (
	sqlAssignBuilds = `/* assign_builds */
WITH b AS (
	UPDATE builds SET state = CASE WHEN a.features THEN 'building' ELSE 'assigned' END, worker_id = a.worker, attempt = attempt + 1, handed = a.hand_out,
		started_at = now(), last_seen_at = NULL, sign_gap = NULL, ended = NULL, updated_at = now(), log_lines = log_lines + 1
	FROM unnest($1::tid[], $2::text[], $3::bigint[], $4::bool[]) AS a(version, worker, hand_out, features)
	WHERE builds.ctid = a.version
	RETURNING seq, log_lines, worker_id, attempt
)
INSERT INTO build_logs (build, number, message, kind, worker, attempt)
SELECT seq, log_lines, 'Assigned to worker ' || worker_id || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END,
	'assigned', worker_id, attempt
FROM b`

	sqlAssignWorkers = `/* assign_workers */
UPDATE workers SET used = p.used, handed = p.handed, held = p.held, last_seen_at = now(), polled_at = now(),
	status = CASE WHEN p.held > 0 THEN 'building' ELSE 'idle' END
FROM unnest($1::tid[], $2::bigint[], $3::bigint[], $4::int[]) AS p(version, used, handed, held) WHERE workers.ctid = p.version`

	// sqlRepeatBuilds restarts the build timeout of builds that are handed out again, because
	// their workers may learn of them only now. It does so once, and again within two minutes
	// of the hand-out, because several replies in a row may be lost. Later hand-outs don't
	// restart it, so that a worker that never starts a build can't keep it. The last heartbeat of
	// one that needs a feature stays NULL; see unheard.
	sqlRepeatBuilds = `/* repeat_builds */ UPDATE builds SET last_seen_at = CASE state WHEN 'assigned' THEN now() END,
	started_at = CASE state WHEN 'assigned' THEN started_at ELSE now() END WHERE seq = ANY ($1)`

	sqlCommit   = `/* commit */ COMMIT`
	sqlRollback = `/* rollback */ ROLLBACK`
)

// Assign serves up to MaxBatch polls, usually in one transaction of two round trips: it locks
// the workers' rows and as many pending builds as they may get, decides, and writes builds,
// log lines and workers. Workers that the caller does not know are read first, and polls
// whose workers turn out to have changed take another transaction. The result of polls[i]
// has index i.
//
// After an error nothing has changed, unless the error wraps store.ErrOutcomeUnknown:
// then the workers' next polls, with the tokens they have, get what was assigned. A
// build that the database refuses to assign fails, or is skipped from then on if the
// database refuses that too. A poll that it refuses to serve gets PollFailed, without
// affecting the others. A poll whose worker's row is locked by another transaction gets
// PollLocked.
func (q *Queue) Assign(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	if len(polls) > MaxBatch {
		return nil, fmt.Errorf("serving %d polls: more than %d", len(polls), MaxBatch)
	}
	results, turns, all := make([]store.PollResult, len(polls)), make([]turn, len(polls)), make([]*turn, len(polls))
	for i := range polls {
		turns[i] = turn{Poll: polls[i], result: &results[i]}
		all[i] = &turns[i]
	}
	err := batching.Isolate(all, isDataError, func(turns []*turn) error { return q.serve(ctx, turns) },
		func(t *turn, cause error) error { return q.assignAlone(ctx, t, cause) })
	if err != nil {
		return nil, fmt.Errorf("serving %d polls: %w", len(polls), err)
	}
	return results, nil
}

// fail makes err the result of turns.
func fail(turns []*turn, err error) {
	for _, t := range turns {
		t.answer(store.PollResult{Outcome: store.PollFailed, Err: err})
	}
}

// serve serves polls until each has its result. After the first pass some are committed,
// so a later error becomes the result of the others only.
func (q *Queue) serve(ctx context.Context, turns []*turn) error {
	for pass := range passes {
		open, err := q.identify(ctx, turns)
		if err == nil && len(open) > 0 {
			err = q.assign(ctx, open, pass > 0)
		}
		switch turns = open; {
		case err != nil && pass == 0:
			return err
		case err != nil:
			fail(turns, err)
			return nil
		case len(open) == 0:
			return nil
		}
	}
	for _, t := range unanswered(turns) {
		t.answer(store.PollResult{Outcome: store.PollLocked})
	}
	return nil
}

func unanswered(turns []*turn) (open []*turn) {
	for _, t := range turns {
		if !t.done {
			open = append(open, t)
		}
	}
	return open
}

// identify reads the rows of workers that are not known, and returns the polls that can be
// served: the last one of each worker.
func (q *Queue) identify(ctx context.Context, turns []*turn) ([]*turn, error) {
	open := unanswered(turns)
	if err := q.read(ctx, open); err != nil {
		return open, err
	}
	last := make(map[uint32]*turn, len(open))
	for _, t := range open {
		if t.Known {
			last[t.Worker] = t
		}
	}
	for _, t := range open {
		switch {
		case t.Known && last[t.Worker] != t:
			t.answer(store.PollResult{Outcome: store.PollSuperseded})
		case t.Known:
		case t.Shown > 0:
			t.answer(store.PollResult{Outcome: store.PollInvalidToken})
		default:
			t.answer(store.PollResult{Outcome: store.PollUnknownWorker})
		}
	}
	return unanswered(open), nil
}

// read reads the rows of workers that are not known. A row that the previous pass could not
// find under its lock, but that is still there, is locked by another transaction.
func (q *Queue) read(ctx context.Context, turns []*turn) error {
	var unknown []*turn
	var numbers []int64
	var ids []*string
	for _, t := range turns {
		if t.Known {
			continue
		}
		unknown, numbers, ids = append(unknown, t), append(numbers, int64(t.Worker)), append(ids, nil)
		if t.Shown == 0 {
			ids[len(ids)-1] = &t.WorkerID
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	var nr int
	var w row
	return q.db.read("reading workers").each(ctx, append([]any{&nr}, w.columns(&q.labels)...), func() error {
		t := unknown[nr]
		if t.missed && t.Worker == w.Number {
			t.answer(store.PollResult{Outcome: store.PollLocked})
		}
		t.Worker, t.Session, t.Known = w.Number, w.WorkerSession, true
		return nil
	}, sqlReadWorkers, pgx.NamedArgs{"numbers": numbers, "ids": ids, "spare": q.cfg.SpareCritical})
}

// assign runs one transaction for polls of different workers, whose rows are known. Polls
// that it could not serve get no result. If whole is true, it scans the whole queue and not
// only from the low-water marks.
func (q *Queue) assign(ctx context.Context, turns []*turn, whole bool) error {
	var d decision
	var h *held
	var p pass
	err := operation{db: q.db, doing: "assigning", timeout: assignTimeout, writes: true}.do(ctx, func(ctx context.Context, c *pgx.Conn) error {
		p, d = q.db.head.begin(whole), decision{}
		var err error
		if h, err = q.lock(ctx, c, turns, p); err == nil {
			d = decide(turns, h)
			err = q.write(ctx, c, &d, h.classes)
		}
		if err != nil {
			endTransaction(ctx, c)
			q.db.head.undo(p)
		}
		return err
	})
	if err != nil {
		if len(turns) == 1 && len(d.handOuts) == 1 && !d.stored {
			turns[0].refused = d.handOuts[0].lockedBuild
		}
		return err
	}
	q.db.head.end(p, h.claims)
	for i, r := range d.results {
		t := turns[i]
		switch w := h.workers[t.Worker]; {
		case r != nil:
			t.answer(*r)
		case w != nil:
			t.Session = w.WorkerSession
		default:
			t.Known, t.missed = false, true
		}
	}
	return nil
}

// lock is the first round trip.
func (q *Queue) lock(ctx context.Context, c *pgx.Conn, turns []*turn, p pass) (*held, error) {
	h := &held{workers: make(map[uint32]*row, len(turns)), asked: map[string]bool{}, classes: q.db.classes.all()}
	numbers, ids := make([]int64, len(turns)), []string(nil)
	for i, t := range turns {
		numbers[i] = int64(t.Worker)
		if t.mayRepeat(&t.Session) {
			ids, h.asked[t.Session.ID] = append(ids, t.Session.ID), true
		}
	}
	h.claims = plan(h.classes, turns)
	batch := &pgx.Batch{}
	batch.Queue(sqlBegin)
	batch.Queue(sqlPatience)
	args := q.locking.args(map[string]any{"numbers": numbers, "spare": q.cfg.SpareCritical})
	batch.Queue(q.locking.sql, args...).Query(func(rows pgx.Rows) error { return scanWorkers(rows, &q.labels, h.workers) })
	if len(ids) > 0 {
		batch.Queue(sqlLockRepeats, ids).Query(func(rows pgx.Rows) (err error) {
			h.repeats, err = pgx.CollectRows(rows, scanRepeat)
			return err
		})
	}
	if len(h.claims) > 0 {
		sql, args := statement(h.claims, p, q.skip.list())
		batch.Queue(sql, args...).Query(h.scanPending)
	}
	err := c.SendBatch(ctx, batch).Close()
	for _, c := range h.claims {
		c.whole = c.wanted > len(c.builds) && p.whole(c.ids)
		if len(c.builds) > 0 {
			c.first = c.builds[0].position
		}
	}
	return h, err
}

// columns returns the targets of rowColumns.
func (w *row) columns(labels *labelCache) []any {
	return []any{&w.Number, &w.ID, &w.Used, &w.Handed, &w.Held, &w.Slots, (*platformArray)(&w.Platforms), cachedLabels{&w.Labels, labels}, &w.Drained, &w.instance, &w.offline, &w.trial, &w.version}
}

// platformArray is scanned without reflection.
type platformArray []store.Platform

// SetDimensions implements pgtype.ArraySetter.
func (a *platformArray) SetDimensions(dimensions []pgtype.ArrayDimension) error {
	*a = nil
	if len(dimensions) > 0 {
		*a = make(platformArray, dimensions[0].Length)
	}
	return nil
}

// ScanIndex implements pgtype.ArraySetter.
func (a *platformArray) ScanIndex(i int) any { return (*string)(&(*a)[i]) }

// ScanIndexType implements pgtype.ArraySetter.
func (*platformArray) ScanIndexType() any { return new(string) }

func scanWorkers(rows pgx.Rows, labels *labelCache, workers map[uint32]*row) error {
	var w row
	_, err := pgx.ForEachRow(rows, w.columns(labels), func() error {
		one := w
		workers[w.Number] = &one
		return nil
	})
	return err
}

// columns returns the targets of claimColumns.
func (b *lockedBuild) columns() []any {
	return []any{&b.seq, &b.position, &b.BuildID, &b.Platform, &b.ClassID, &b.Attempt, &b.HasCerts, &b.HasInputs, &b.SubmittedAt, &b.since, &b.worker, &b.handed, &b.version}
}

func scanRepeat(row pgx.CollectableRow) (b lockedBuild, err error) {
	err = row.Scan(append(b.columns(), &b.restart)...)
	b.SubmittedAt = b.SubmittedAt.UTC()
	return b, err
}

func (h *held) scanPending(rows pgx.Rows) error {
	var k int
	var b lockedBuild
	_, err := pgx.ForEachRow(rows, append([]any{&k}, b.columns()...), func() error {
		b.SubmittedAt = b.SubmittedAt.UTC()
		h.claims[k].builds = append(h.claims[k].builds, b)
		return nil
	})
	return err
}

// write is the second round trip. A transaction that writes nothing is rolled back, because
// that needs no write to the disk.
func (q *Queue) write(ctx context.Context, c *pgx.Conn, d *decision, classes []store.Class) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if n := len(d.handOuts); n > 0 {
		builds, workers, counters, features := make([]pgtype.TID, n), make([]string, n), make([]int64, n), make([]bool, n)
		for i, o := range d.handOuts {
			builds[i], workers[i], counters[i] = o.version, o.to.ID, int64(o.number)
			features[i] = slices.ContainsFunc(classes, func(c store.Class) bool { return c.ID == o.ClassID && c.Require.Features() != "" })
		}
		batch.Queue(sqlAssignBuilds, builds, workers, counters, features).Exec(func(tag pgconn.CommandTag) error {
			d.stored = true
			return written(tag, n)
		})
	}
	if n := len(d.written); n > 0 {
		versions, used, handed, held := make([]pgtype.TID, n), make([]int64, n), make([]int64, n), make([]int, n)
		for i, w := range d.written {
			versions[i], used[i], handed[i], held[i] = w.version, int64(w.Used), int64(w.Handed), w.Held
		}
		batch.Queue(sqlAssignWorkers, versions, used, handed, held).Exec(func(tag pgconn.CommandTag) error { return written(tag, n) })
	}
	if len(d.repeated) > 0 {
		batch.Queue(sqlRepeatBuilds, d.repeated)
	}
	for _, event := range d.unused { // other controllers may have passed over these builds
		batch.Queue(sqlNotify, "job:available "+event)
	}
	end := sqlCommit
	if batch.Len() == 0 {
		end = sqlRollback
	}
	batch.Queue(end)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), assignTimeout, errSlow)
	defer cancel()
	err := c.SendBatch(ctx, batch).Close()
	switch {
	case errors.Is(err, syscall.EPIPE): // the server ended the session before, as in operation.tx
		return contention(err)
	case err != nil && end == sqlCommit && !isContention(err):
		return statementFailure(ctx, err)
	}
	return err
}

// written returns an error if a statement did not write all rows that are locked, which can't be:
// then no worker may be told of a build.
func written(tag pgconn.CommandTag, rows int) error {
	if n := tag.RowsAffected(); n != int64(rows) {
		return fmt.Errorf("%d of %d locked rows were written", n, rows)
	}
	return nil
}

// endTransaction rolls back what has failed, so that the connection can be used again.
func endTransaction(ctx context.Context, c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if c.PgConn().TxStatus() != 'I' {
		_, _ = c.Exec(ctx, sqlRollback) // the connection is thrown away if this fails
	}
}
