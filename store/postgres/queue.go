package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
	"takt/store/batching"
)

// QueueConfig configures Queue.
type QueueConfig struct {
	// SpareCritical gives no builds to workers whose last diagnostic report is
	// critical.
	SpareCritical bool
	// Quarantined, if set, is called for each build that can't be assigned and is
	// skipped from then on. It must not block.
	Quarantined func(b store.BuildRef, cause error)
}

// Queue hands builds to workers and requeues them. Safe for concurrent use. Two
// concurrent batches keep PostgreSQL busy; more would only wait for each other.
type Queue struct {
	db        *DB
	cfg       QueueConfig
	skip      quarantine
	assigning numbered // sqlAssign
}

// NewQueue returns the queue of db.
func NewQueue(db *DB, cfg QueueConfig) *Queue {
	return &Queue{db: db, cfg: cfg, assigning: number(sqlAssign)}
}

// sqlPending counts, per platform, up to $1 pending builds at the positions from $2
// to below $3, and finds the first.
const sqlPending = `/* pending */
SELECT 'ios', count(*), coalesce(min(position), 0) FROM (
	SELECT position FROM builds WHERE state = 'pending' AND platform = 'ios' AND position >= $2 AND position < $3 ORDER BY position LIMIT $1) i
UNION ALL
SELECT 'android', count(*), coalesce(min(position), 0) FROM (
	SELECT position FROM builds WHERE state = 'pending' AND platform = 'android' AND position >= $2 AND position < $3 ORDER BY position LIMIT $1) a`

// sqlInstallation returns the installation's id and the database's time.
const sqlInstallation = `/* installation */ SELECT value #>> '{}', clock_timestamp() FROM settings WHERE key = 'installation'`

// sqlChanged finds the workers whose rows are no longer at their addresses, because
// each change moves a row, and those whose rest has ended, which changes no row. A worker
// without a row has no id.
const sqlChanged = `/* changed */
SELECT p.number, coalesce(w.id, ''), coalesce(w.used, 0), coalesce(w.handed, 0), coalesce(w.held, 0), coalesce(w.slots, 0), w.platforms,
	coalesce(` + workerDrained + `, true), w.ctid
FROM unnest(@numbers::bigint[], @addresses::tid[], @drained::bool[]) AS p(number, address, drained)
LEFT JOIN LATERAL (SELECT *, ctid FROM workers w WHERE w.number = p.number LIMIT 1) w ON true
WHERE NOT EXISTS (SELECT FROM workers w WHERE w.ctid = p.address AND w.number = p.number AND ` + workerDrained + ` = p.drained)`

// Recount counts how many builds are pending per platform, up to limit of each, and
// returns which of the known workers' rows have changed since they were read, in one
// round trip. If a look below the low-water marks is due, it then counts there too,
// because other controllers may have requeued builds there. If that look fails, these
// builds are missing from the counts until the next look.
func (q *Queue) Recount(ctx context.Context, limit int, known []store.WorkerSession) (r store.Recount, err error) {
	look, mark, due := q.db.head.beginLook()
	r.Pending = map[store.Platform]int{}
	batch := &pgx.Batch{}
	batch.Queue(sqlPending, limit, mark, int64(math.MaxInt64)).Query(func(rows pgx.Rows) error {
		_, err := addPending(rows, limit, r.Pending)
		return err
	})
	batch.Queue(sqlInstallation).QueryRow(func(row pgx.Row) error { return row.Scan(&r.Installation, &r.Now) })
	if len(known) > 0 {
		numbers, addresses, drained := make([]int64, len(known)), make([]pgtype.TID, len(known)), make([]bool, len(known))
		for i := range known {
			numbers[i], addresses[i], drained[i] = int64(known[i].Number), tidOf(known[i].Address), known[i].Drained
		}
		batch.Queue(sqlChanged, pgx.NamedArgs{"numbers": numbers, "addresses": addresses, "drained": drained, "spare": q.cfg.SpareCritical}).
			Query(func(rows pgx.Rows) error { return scanChanged(rows, &r) })
	}
	err = q.db.read("recounting").run(ctx, func(ctx context.Context, c *pgx.Conn) error { return c.SendBatch(ctx, batch).Close() })
	if err == nil && due {
		q.look(ctx, limit, look, mark, r.Pending)
	}
	return r, err
}

// look adds to counts the builds that are pending below mark. While vacuum is held
// back, this may take longer than a caller should wait. So its failure does not fail
// the count but only delays the next look.
func (q *Queue) look(ctx context.Context, limit int, look pass, mark int64, counts map[store.Platform]int) {
	var lowest marks
	err := q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) (err error) {
		rows, _ := c.Query(ctx, sqlPending, limit, 0, mark) // its error is that of the rows
		lowest, err = addPending(rows, limit, counts)
		return err
	})
	q.db.head.endLook(look, mark, lowest, err)
}

// addPending adds to counts, up to limit, and returns the first position of each
// platform; 0 means none.
func addPending(rows pgx.Rows, limit int, counts map[store.Platform]int) (first marks, err error) {
	var p store.Platform
	var n int
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&p, &n, &position}, func() error {
		counts[p] = min(limit, counts[p]+n)
		first[scanOf([]store.Platform{p})] = position
		return nil
	})
	return first, err
}

func scanChanged(rows pgx.Rows, r *store.Recount) error {
	var s store.WorkerSession
	var platforms []string
	var at pgtype.TID
	_, err := pgx.ForEachRow(rows, []any{&s.Number, &s.ID, &s.Used, &s.Handed, &s.Held, &s.Slots, &platforms, &s.Drained, &at}, func() error {
		if s.ID == "" {
			r.Gone = append(r.Gone, s.Number)
			return nil
		}
		s.Platforms, s.Address = toPlatforms(platforms), addressOf(at)
		r.Changed = append(r.Changed, s)
		return nil
	})
	return err
}

// presenceBatch is how many workers' rows RecordPresence locks at once.
const presenceBatch = 512

// sqlPresence writes beats. It skips a row with a higher counter, because that worker has
// polled at another controller since, or has registered or unregistered, and a row that
// another transaction has locked.
const sqlPresence = `/* presence */
WITH p AS MATERIALIZED (
	SELECT p.*, f.at
	FROM unnest(@numbers::bigint[], @used::bigint[], @ages::interval[], @addresses::tid[]) AS p(number, used, age, address)
	CROSS JOIN LATERAL (
		SELECT h.ctid AS at FROM workers h WHERE h.ctid = p.address AND h.number = p.number
		UNION ALL
		SELECT n.ctid FROM workers n WHERE n.number = p.number
		LIMIT 1
	) f
), locked AS MATERIALIZED (
	SELECT p.* FROM p JOIN workers w ON w.ctid = p.at
	WHERE w.used <= p.used FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE workers w SET used = l.used, last_seen_at = greatest(w.last_seen_at, now() - l.age),
	status = CASE WHEN w.held > 0 THEN 'building' ELSE 'idle' END
FROM locked l WHERE w.ctid = l.at
RETURNING l.number, CASE WHEN l.at = l.address THEN w.ctid END`

// RecordPresence writes beats of workers that polled and got nothing, many in one
// transaction. It returns the addresses of the rows that were written; the address is
// zero if the row had changed since the caller read it, or if the database refuses it.
// Missing workers were not written, because their rows are newer than the caller's or
// locked by another transaction.
func (q *Queue) RecordPresence(ctx context.Context, beats []store.Presence) (map[uint32]store.RowAddress, error) {
	written := make(map[uint32]store.RowAddress, len(beats))
	for part := range slices.Chunk(beats, presenceBatch) {
		err := batching.Isolate(part, isDataError, func(part []store.Presence) error { return q.recordPresence(ctx, part, written) },
			func(refused store.Presence, _ error) error {
				written[refused.Number] = store.RowAddress{}
				return nil
			})
		if err != nil {
			return written, fmt.Errorf("recording the presence of %d workers: %w", len(beats), err)
		}
	}
	return written, nil
}

func (q *Queue) recordPresence(ctx context.Context, beats []store.Presence, written map[uint32]store.RowAddress) error {
	n := len(beats)
	numbers, used, ages, addresses := make([]int64, n), make([]int64, n), make([]time.Duration, n), make([]pgtype.TID, n)
	for i, s := range beats {
		numbers[i], used[i], ages[i], addresses[i] = int64(s.Number), int64(s.Used), s.Age, tidOf(s.Address)
	}
	var number uint32
	var at pgtype.TID
	return q.db.read("writing rows").each(ctx, []any{&number, &at}, func() error {
		written[number] = addressOf(at)
		return nil
	}, sqlPresence, pgx.NamedArgs{"numbers": numbers, "used": used, "ages": ages, "addresses": addresses})
}

func addressOf(at pgtype.TID) store.RowAddress {
	return store.RowAddress{Block: at.BlockNumber, Offset: at.OffsetNumber}
}
