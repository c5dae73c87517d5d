package postgres

import (
	"context"
	"hash/fnv"
	"sync"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// A batch holds the locks of its queues shared until its end, and ending a queue's job
// takes them exclusively. The locks are advisory, because a row lock writes to the row,
// and one that two transactions share also writes to the multixact log. All queues
// together use queueLocks locks, so that the largest batch leaves room in PostgreSQL's
// lock table. A queue may therefore wait for the lock of another queue, but only
// briefly.
const (
	queueLockClass = 0x74616b74 // "takt"
	queueLocks     = 256
)

func queueLock(id string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return int32(h.Sum32() % queueLocks)
}

// sqlShareQueues takes the locks in the order of $2, all of them before the first
// action is written, so that a transaction that waits for another's action already
// holds its locks. It is a separate statement, so that the next one sees what was
// committed before the locks were taken.
const sqlShareQueues = `/* share_queues */ SELECT count(pg_advisory_xact_lock_shared($1, u.lock)) FROM unnest($2::int[]) AS u(lock)`

// sqlAcceptKnown inserts actions of queues with known numbers: $1 the queues, $2 the
// queue of each action. It inserts the new actions, and returns them, if each queue has
// a living job, otherwise none. This statement and sqlAcceptLive look up one queue after the other,
// whatever the plan, because a join could end up reading all jobs.
const sqlAcceptKnown = `/* accept_known */
INSERT INTO action_executions AS a (queue, portal_id, callback_id, expires_at)
SELECT u.queue, u.portal, u.callback, now() + make_interval(secs => u.seconds)
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::float8[]) AS u(queue, portal, callback, seconds)
WHERE (SELECT bool_and(EXISTS (SELECT FROM river_job j
	WHERE j.id = (SELECT q.job_id FROM throttle_queues q WHERE q.seq = k.seq)
		AND ` + livingJob + `)) FROM unnest($1::bigint[]) AS k(seq))
ON CONFLICT (portal_id, callback_id) DO NOTHING
RETURNING a.portal_id, a.callback_id`

// sqlAcceptLive inserts the new actions of those queues of $1 that have a living job,
// and returns these queues' positions and numbers, and the actions.
const sqlAcceptLive = `/* accept_live */
WITH own AS MATERIALIZED (
	SELECT u.nr, (
		SELECT CASE WHEN (
			SELECT ` + livingJob + ` FROM river_job j WHERE j.id = q.job_id
		) THEN q.seq END FROM throttle_queues q WHERE q.id = u.id
	) AS seq
	FROM unnest($1::text[]) WITH ORDINALITY AS u(id, nr)
), new AS (
	INSERT INTO action_executions (queue, portal_id, callback_id, expires_at)
	SELECT own.seq, u.portal, u.callback, now() + make_interval(secs => u.seconds)
	FROM unnest($2::int[], $3::bigint[], $4::text[], $5::float8[]) WITH ORDINALITY AS u(queue, portal, callback, seconds, nr)
		JOIN own ON own.nr = u.queue
	WHERE own.seq IS NOT NULL ORDER BY u.nr
	ON CONFLICT (portal_id, callback_id) DO NOTHING
	RETURNING portal_id, callback_id
)
SELECT nr, seq, 0, '' FROM own WHERE seq IS NOT NULL
UNION ALL SELECT 0, 0, portal_id, callback_id FROM new`

// acceptLive accepts the new actions of queues that have a living job. Repeats stay
// without an answer.
func (t *Throttle) acceptLive(ctx context.Context, b actionBatch, got []store.Acceptance) error {
	var portal int64
	var name string
	var added []int // answers
	if seqs, queues, known := t.seqs.find(b); known {
		err := t.insert(ctx, b, func(rows pgx.Rows) error {
			added = nil
			_, err := pgx.ForEachRow(rows, []any{&portal, &name}, func() error {
				added = append(added, b.row(portal, name))
				return nil
			})
			return err
		}, sqlAcceptKnown, seqs, queues, b.portals, b.names, b.seconds)
		if err != nil || len(added) > 0 {
			return accepted(added, got, err)
		}
	}
	live := make(map[int32]int64, len(b.ids))
	err := t.insert(ctx, b, func(rows pgx.Rows) error {
		var position int32
		var seq int64
		added = nil
		clear(live)
		_, err := pgx.ForEachRow(rows, []any{&position, &seq, &portal, &name}, func() error {
			if position > 0 {
				live[position] = seq
			} else {
				added = append(added, b.row(portal, name))
			}
			return nil
		})
		return err
	}, sqlAcceptLive, b.ids, b.in, b.portals, b.names, b.seconds)
	if err == nil {
		t.seqs.set(b, live)
	}
	return accepted(added, got, err)
}

// accepted sets the answers of actions that were added, unless err is set.
func accepted(added []int, got []store.Acceptance, err error) error {
	if err == nil {
		for _, row := range added {
			got[row].State = store.ActionWaiting
		}
	}
	return err
}

// insert runs a statement under the locks of the batch's queues. Both statements are
// sent together and so are one transaction. read may be called more than once.
func (t *Throttle) insert(ctx context.Context, b actionBatch, read func(pgx.Rows) error, sql string, args ...any) error {
	return t.db.write("inserting actions").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		send := &pgx.Batch{}
		send.Queue(sqlShareQueues, queueLockClass, b.locks)
		send.Queue(sql, args...).Query(read)
		return c.SendBatch(ctx, send).Close()
	})
}

// queueSeqs remembers the numbers of queues that had a living job.
type queueSeqs struct {
	mu    sync.Mutex
	byKey map[store.QueueKey]int64
}

// maxSeqs bounds how many queues queueSeqs remembers.
const maxSeqs = 20_000

// find returns the numbers of the batch's queues, and of each action's queue, if
// all are known.
func (s *queueSeqs) find(b actionBatch) (seqs, queues []int64, known bool) {
	seqs = make([]int64, len(b.keys))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range b.keys {
		if seqs[i], known = s.byKey[key]; !known {
			return nil, nil, false
		}
	}
	queues = make([]int64, len(b.in))
	for i, position := range b.in {
		queues[i] = seqs[position-1]
	}
	return seqs, queues, true
}

// set remembers those of the batch's queues that have a living job, by their
// positions, and forgets the others.
func (s *queueSeqs) set(b actionBatch, live map[int32]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil || len(s.byKey)+len(live) > maxSeqs {
		s.byKey = map[store.QueueKey]int64{}
	}
	for i, key := range b.keys {
		if seq, ok := live[int32(i+1)]; ok {
			s.byKey[key] = seq
		} else {
			delete(s.byKey, key)
		}
	}
}
