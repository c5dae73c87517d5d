package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/batching"
)

// QueueConfig configures Queue.
type QueueConfig struct {
	// SpareCritical is true if workers get no builds while their last diagnostic report is
	// critical.
	SpareCritical bool
	// Quarantined, if set, is called for each build that the database refused to assign, after
	// it was failed or put on the list of builds to skip. It must not block.
	Quarantined func(b store.BuildRef, cause error)
}

// Queue assigns builds to workers, counts pending builds, and takes builds from silent
// workers. Safe for concurrent use. Two concurrent calls of Assign keep PostgreSQL busy;
// more would only wait for each other.
type Queue struct {
	db      *DB
	cfg     QueueConfig
	skip    skipList
	locking numbered // sqlLockWorkers
	labels  labelCache
}

// NewQueue returns the queue of db.
func NewQueue(db *DB, cfg QueueConfig) *Queue {
	return &Queue{db: db, cfg: cfg, locking: number(sqlLockWorkers)}
}

const (
	countedColumns = `k.id, k.platform, k.require, n.n, n.first`

	// countPending counts up to $1 pending builds of class k.id.
	countPending = `CROSS JOIN LATERAL (SELECT count(*)::int AS n, coalesce(min(position), 0) AS first FROM (
	SELECT position FROM builds WHERE state = 'pending' AND class > 0 AND `

	// sqlPending counts the pending builds of the classes $3, up to $1 of each, from
	// position $2 on. Its conditions leave the planner one index, as in claimSQL.
	sqlPending = `/* pending */ SELECT ` + countedColumns + ` FROM build_classes k ` + countPending + `(class, position) >= (k.id, $2::bigint) AND class <= k.id
	ORDER BY class, position LIMIT $1) p) n
WHERE k.id = ANY ($3) AND n.n > 0`

	// sqlPendingBelow counts those of all classes from position $2 on, but those of the
	// classes $4 only below position $3.
	sqlPendingBelow = `/* pending_below */ WITH ` + pendingClasses + `
SELECT ` + countedColumns + ` FROM c JOIN build_classes k ON k.id = c.class ` + countPending + `class = k.id
		AND position >= $2::bigint AND position < CASE WHEN k.id = ANY ($4) THEN $3::bigint ELSE 9223372036854775807 END
	ORDER BY position LIMIT $1) p) n
WHERE n.n > 0`
)

// sqlDelayed counts the builds that wait for their retry.
const sqlDelayed = `/* delayed */
SELECT k.id, k.platform, k.require, count(*)::int FROM build_inputs i JOIN builds b ON b.seq = i.build JOIN build_classes k ON k.id = i.home_class
WHERE i.due_at IS NOT NULL AND b.state = 'pending' GROUP BY k.id`

// sqlInstallation returns the installation's id and the database's time.
const sqlInstallation = `/* installation */ SELECT value #>> '{}', clock_timestamp() FROM settings WHERE key = 'installation'`

// sqlChanged finds the workers whose rows differ from what the controller knows, and those
// whose rest has ended, which changes no row. A worker whose row is gone has the id "".
const sqlChanged = `/* changed */
SELECT p.number, coalesce(w.id, ''), coalesce(w.used, 0), coalesce(w.handed, 0), coalesce(w.held, 0), coalesce(w.slots, 0), w.platforms, w.labels,
	coalesce(w.drained, true)
FROM unnest(@numbers::bigint[], @used::bigint[], @handed::bigint[], @held::int[], @slots::int[], @platforms::text[], @labels::jsonb[], @drained::bool[])
	AS p(number, used, handed, held, slots, platforms, labels, drained)
LEFT JOIN LATERAL (SELECT *, ` + workerDrained + ` AS drained FROM workers w WHERE w.number = p.number LIMIT 1) w ON true
WHERE w.id IS NULL OR w.used > p.used
	OR (w.handed, w.held, w.slots, array_to_string(w.platforms, ','), w.drained) <> (p.handed, p.held, p.slots, p.platforms, p.drained)
	OR w.labels IS DISTINCT FROM p.labels`

// Recount counts how many builds of each class are pending, up to limit, and of each platform how
// many wait for their retry, and returns which
// of the known workers' rows have changed since they were read, in one round trip. more are
// numbers of further classes to count. If a check below the low-water marks is due, it then
// counts there too, because other controllers may have requeued builds there, and finds
// classes that this controller does not know. If that check fails, its builds are missing
// from the counts until the next one, without an error.
func (q *Queue) Recount(ctx context.Context, limit int, known []store.WorkerSession, more []int32) (r store.Recount, err error) {
	look, below, due := q.db.head.beginLook()
	ids := slices.Clone(more)
	for _, c := range q.db.classes.all() {
		ids = append(ids, c.ID)
	}
	found := map[int32]*counted{}
	batch := &pgx.Batch{}
	batch.Queue(sqlPending, limit, below, ids).Query(func(rows pgx.Rows) error { return addPending(rows, limit, found) })
	r.Delayed = map[store.Platform]int{}
	var delayed []store.ClassCount
	batch.Queue(sqlDelayed).Query(func(rows pgx.Rows) (err error) {
		delayed, err = pgx.CollectRows(rows, pgx.RowToStructByPos[store.ClassCount])
		return err
	})
	batch.Queue(sqlInstallation).QueryRow(func(row pgx.Row) error { return row.Scan(&r.Installation, &r.Now) })
	if len(known) > 0 {
		batch.Queue(sqlChanged, q.changedArgs(known)).Query(func(rows pgx.Rows) error { return scanChanged(rows, &r) })
	}
	err = q.db.read("recounting").run(ctx, func(ctx context.Context, c *pgx.Conn) error { return c.SendBatch(ctx, batch).Close() })
	if err != nil {
		return r, err
	}
	if due {
		q.look(ctx, limit, look, below, ids, found)
	}
	for _, c := range found {
		q.db.classes.note(time.Now(), c.Class)
		r.Pending = append(r.Pending, c.ClassCount)
	}
	slices.SortFunc(r.Pending, func(a, b store.ClassCount) int { return cmp.Compare(a.ID, b.ID) })
	for _, c := range delayed {
		r.Delayed[c.Platform] += c.N
	}
	counts := slices.Concat(r.Pending, delayed)
	if slices.ContainsFunc(counts, func(c store.ClassCount) bool { return len(c.Require) > 0 }) {
		err = q.db.read("reading the known workers").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
			r.Unmatched, err = q.db.known.unmatched(ctx, c, counts)
			return err
		})
	}
	return r, err
}

// sqlElsewhere finds workers that have a free slot and whose polls wait, as far as their rows say:
// these are written at least every 30 s. The workers $1 poll at this controller.
const sqlElsewhere = `/* elsewhere */
SELECT DISTINCT w.platforms, w.labels FROM workers w
WHERE w.status <> 'offline' AND w.poll_wait > 0 AND w.held < w.slots AND ` + workerPolls + ` AND NOT ` + workerDrained + `
	AND NOT EXISTS (SELECT FROM unnest(@here::bigint[]) h WHERE h = w.number)
LIMIT @limit`

// Elsewhere returns the platforms and labels of workers whose polls are parked at other
// controllers, up to limit different ones. here are the numbers of workers that poll at this one.
func (q *Queue) Elsewhere(ctx context.Context, here []uint32, limit int) (workers []store.WorkerSession, err error) {
	numbers := make([]int64, len(here))
	for i, n := range here {
		numbers[i] = int64(n)
	}
	var s store.WorkerSession
	err = q.db.read("reading polls at other controllers").each(ctx, []any{&s.Platforms, &s.Labels}, func() error {
		workers = append(workers, s)
		s = store.WorkerSession{}
		return nil
	}, sqlElsewhere, pgx.NamedArgs{"here": numbers, "limit": limit, "spare": q.cfg.SpareCritical})
	return workers, err
}

// LowerWatermark makes the next Assign include position, at which a build became pending through
// another controller.
func (q *Queue) LowerWatermark(position int64) { q.db.head.lower(position) }

// counted is how many builds of a class are pending, and the first position of them.
type counted struct {
	store.ClassCount
	first int64
}

// look adds the builds that are pending below the marks to found. While vacuum is held
// back, this may take longer than a caller should wait, so a failure only delays the next
// look.
func (q *Queue) look(ctx context.Context, limit int, look pass, below int64, ids []int32, found map[int32]*counted) {
	lower, lowest := map[int32]*counted{}, marks{}
	err := q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sqlPendingBelow, limit, 0, below, ids) // its error is that of the rows
		return addPending(rows, limit, lower)
	})
	for id, c := range lower {
		if lowest[id] = c.first; found[id] != nil {
			c.N = min(limit, c.N+found[id].N)
		}
		found[id] = c
	}
	q.db.head.endLook(look, below, lowest, err)
}

// addPending puts the counts in rows into found, each at most limit.
func addPending(rows pgx.Rows, limit int, found map[int32]*counted) error {
	var c counted
	_, err := pgx.ForEachRow(rows, []any{&c.ID, &c.Platform, &c.Require, &c.N, &c.first}, func() error {
		one := c
		one.N = min(limit, one.N)
		found[c.ID] = &one
		return nil
	})
	return err
}

func (q *Queue) changedArgs(known []store.WorkerSession) pgx.NamedArgs {
	n := len(known)
	numbers, used, handed, held, slots := make([]int64, n), make([]int64, n), make([]int64, n), make([]int, n), make([]int, n)
	platforms, labels, drained := make([]string, n), make([]any, n), make([]bool, n)
	for i, s := range known {
		numbers[i], used[i], handed[i], held[i], slots[i], drained[i] = int64(s.Number), int64(s.Used), int64(s.Handed), s.Held, s.Slots, s.Drained
		if len(s.Labels) > 0 {
			labels[i] = s.Labels
		}
		for j, p := range s.Platforms {
			if j > 0 {
				platforms[i] += ","
			}
			platforms[i] += string(p)
		}
	}
	return pgx.NamedArgs{
		"numbers": numbers, "used": used, "handed": handed, "held": held, "slots": slots, "platforms": platforms, "labels": labels, "drained": drained,
		"spare": q.cfg.SpareCritical,
	}
}

func scanChanged(rows pgx.Rows, r *store.Recount) error {
	var s store.WorkerSession
	_, err := pgx.ForEachRow(rows, []any{&s.Number, &s.ID, &s.Used, &s.Handed, &s.Held, &s.Slots, &s.Platforms, &s.Labels, &s.Drained}, func() error {
		if s.ID == "" {
			r.Gone = append(r.Gone, s.Number)
		} else {
			r.Changed = append(r.Changed, s)
		}
		return nil
	})
	return err
}

// presenceBatch is the most rows that RecordPresence locks at once.
const presenceBatch = 512

// sqlPresence writes heartbeats. It skips rows with a higher counter, because these workers have
// since polled at another controller, registered or unregistered, and rows that another
// transaction has locked.
const sqlPresence = `/* presence */
WITH locked AS MATERIALIZED (
	SELECT p.* FROM unnest($1::bigint[], $2::bigint[], $3::interval[], $4::smallint[], $5::bool[], $6::smallint[]) AS p(worker, used, age, wait, closed, every) JOIN workers w ON w.number = p.worker
	WHERE w.used <= p.used ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE workers w SET used = l.used, last_seen_at = greatest(w.last_seen_at, now() - l.age),
	poll_wait = l.wait, poll_closed_at = CASE WHEN l.closed THEN now() - l.age END,
	polled_at = CASE WHEN l.closed THEN w.polled_at ELSE now() - l.age END, poll_every = l.every,
	status = CASE WHEN w.held > 0 THEN 'building' ELSE 'idle' END
FROM locked l WHERE w.number = l.worker
RETURNING w.number`

// RecordPresence writes the last contact of workers that polled and got nothing, many in one
// statement. It returns the workers whose heartbeats need not be written again: those that were
// written, and those that the database refused. The rows of the others have a higher counter
// than the caller knows, are gone, or are locked by another transaction.
func (q *Queue) RecordPresence(ctx context.Context, heartbeats []store.Presence) (settled []uint32, err error) {
	for part := range slices.Chunk(heartbeats, presenceBatch) {
		err := batching.Isolate(part, isDataError, func(part []store.Presence) error {
			numbers, used, ages := make([]int64, len(part)), make([]int64, len(part)), make([]time.Duration, len(part))
			waits, closed, every := make([]int16, len(part)), make([]bool, len(part)), make([]int16, len(part))
			for i, s := range part {
				numbers[i], used[i], ages[i], waits[i], closed[i] = int64(s.Number), int64(s.Used), s.Age, int16(s.Wait/time.Second), s.Closed
				every[i] = int16(s.Every / time.Second)
			}
			written, err := rowsOf(ctx, q.db.read("writing rows"), pgx.RowTo[uint32], sqlPresence, numbers, used, ages, waits, closed, every)
			settled = append(settled, written...)
			return err
		}, func(refused store.Presence, _ error) error {
			settled = append(settled, refused.Number)
			return nil
		})
		if err != nil {
			return settled, fmt.Errorf("recording the presence of %d workers: %w", len(heartbeats), err)
		}
	}
	return settled, nil
}
