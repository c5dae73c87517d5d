package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// Workers stores workers. Safe for concurrent use.
type Workers struct {
	db *DB
	// Rule applies to builds that a worker no longer runs when it registers again. Immutable
	// once used.
	Rule store.LostRule
	// ReadySince returns since when this controller has been ready without interruption;
	// false if it is not ready. Silence before that does not count, because heartbeats could not
	// be recorded. nil means that it was always ready. Immutable once used.
	ReadySince func() (time.Time, bool)
}

// NewWorkers returns the workers in db. Builds have three attempts unless Rule is changed.
func NewWorkers(db *DB) *Workers {
	return &Workers{db: db, Rule: store.LostRule{MaxAttempts: store.DefaultAttempts}}
}

// maxWorkers is the most workers that may be registered.
const maxWorkers = 100_000

// sqlRoom reports whether worker $1 is known or another one may register. It counts the
// workers, up to $2, only if that many have ever registered.
const sqlRoom = `/* room */ SELECT CASE WHEN EXISTS (SELECT FROM workers WHERE id = $1) THEN true
	WHEN coalesce((SELECT max(number) FROM workers), 0) < $2 THEN true
	ELSE (SELECT count(*) FROM (SELECT 1 FROM workers LIMIT $2) w) < $2 END`

// errNoWorker is the error for an unknown worker id.
func errNoWorker() error { return store.NewError(store.NotFound, "Worker not found") }

// sqlIdentify adds a worker's identity, or updates the capabilities of a known one. Its lock
// makes registrations of one id run one after the other. It affects no row if registration $5
// of process $4 is late: one of the same process with that number or a higher one was executed.
// Both are NULL if the registration has no number.
const sqlIdentify = `/* identify */
INSERT INTO worker_details AS d (worker_id, name, capabilities, process, registration) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (worker_id) DO UPDATE SET capabilities = excluded.capabilities,
	process = coalesce(excluded.process, d.process), registration = coalesce(excluded.registration, d.registration)
WHERE (d.process = excluded.process AND d.registration >= excluded.registration) IS NOT TRUE`

// sqlRegister adds a worker, or updates a known one: its builds and name stay, its slots,
// platforms and labels change. It raises the counter of a known worker by $4, which voids all
// earlier tokens, including those that a controller has issued but not recorded. It runs
// under the lock of sqlIdentify, as a separate statement, so that it sees what the previous
// holder of the lock committed.
//
// $5 is the id of the worker's process, empty if it has none. The statement changes and
// returns nothing while another process holds the worker, which is one that was silent for
// less than $6. A NULL $6 means that silence does not count now. What it sets as
// registered_at_count keeps the labels that stand for features.
const sqlRegister = `/* register */
WITH known AS (
	UPDATE workers SET instance = nullif($5, ''), used = used + $4, handed = used + $4 + 1024, last_seen_at = now(),
		status = CASE WHEN held > 0 THEN 'building' ELSE 'idle' END,
		slots = $2, platforms = $3, labels = $7, registered_at_count = used + $4, leaving_at = NULL
	WHERE id = $1 AND ($5 = '' OR instance IS NULL OR instance = $5 OR last_seen_at <= now() - $6::interval)
	RETURNING number, used, handed, status, draining
), told AS (
	SELECT pg_notify('takt', 'worker:changed ' || number) FROM known
), added AS (
	INSERT INTO workers (id, slots, platforms, instance, labels, registered_at_count)
	SELECT $1, $2, $3, nullif($5, ''), $7::jsonb, 0 WHERE NOT EXISTS (SELECT FROM workers WHERE id = $1)
	RETURNING number, used, status, draining
)
SELECT true, number, used, status, draining FROM known WHERE (SELECT count(*) FROM told) > 0
UNION ALL SELECT false, number, used, status, draining FROM added`

// sqlMakeDue gives the builds of worker $1 of which it has sent nothing new counters above that of its new token,
// so that each is handed out again. The worker is locked. $2 limits them to the gap that
// sqlRegister leaves between the token's counter and that of the next hand-out.
const sqlMakeDue = `/* make_due */
UPDATE builds b SET handed = w.used + 1 + d.n
FROM workers w, (
	SELECT seq, row_number() OVER (ORDER BY handed, seq) AS n FROM builds WHERE worker_id = $1 AND ` + unheard + ` LIMIT $2
) d
WHERE w.id = $1 AND b.seq = d.seq AND b.worker_id = $1 AND (b.state = 'assigned' OR b.state = 'building' AND b.last_seen_at IS NULL)`

// sqlLoseUnlisted takes from worker $1 the builds that it does not list in $2. The attempts
// of those that it had begun are lost; the others become pending again. sqlRegister has
// locked the worker.
const sqlLoseUnlisted = `/* lose_unlisted */
WITH b AS (
	UPDATE builds SET` + lostColumns + `
	WHERE worker_id = $1 AND state = 'building' AND last_seen_at IS NOT NULL AND id <> ALL ($2::text[])
	RETURNING seq, id, platform, class, position, state, attempt, submitted_at, log_lines,
		'Worker ' || $1 || ' runs this build no more: attempt ' || attempt || ' is lost' AS why
), g AS (
	UPDATE builds SET` + pendingAgain + `
	WHERE worker_id = $1 AND ` + unheard + ` AND id <> ALL ($2::text[])
	RETURNING seq, id, platform, class, position, state, attempt, submitted_at, log_lines, 'Worker ' || $1 || ' gave this build back' AS why
), gone AS (
	SELECT * FROM b UNION ALL SELECT * FROM g
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, CASE state WHEN 'pending' THEN 'warn' ELSE 'error' END, CASE state WHEN 'pending' THEN why || ', build is pending again' ELSE $4 END,
		CASE state WHEN 'pending' THEN 'requeued' ELSE 'failed' END, $1, attempt, '{"reason": "restarted"}'
	FROM gone
), w AS (
	UPDATE workers SET held = held - n.gone, status = CASE WHEN held > n.gone THEN 'building' ELSE 'idle' END
	FROM (SELECT count(*)::int AS gone FROM gone) n WHERE id = $1 AND n.gone > 0
)
SELECT state,` + refColumns + `FROM gone b ORDER BY position, id`

// registrationStep is by how much registering and unregistering raise a worker's counter. It
// exceeds the number of tokens that a controller can issue before it records the counter.
const registrationStep = 1 << 20

// Register adds a worker or updates a known one, which keeps its builds unless r.Reports says
// that it no longer runs them. Errors: RegistrationFailed if the database refuses its data,
// Overloaded if there are too many workers, DuplicateWorker while another process holds the
// worker, LateRegistration if r is not newer than the last of its process, WorkerMismatch if
// r.Key belongs to another worker. An error means that
// nothing was changed, unless the outcome is unknown.
func (w *Workers) Register(ctx context.Context, r store.Registration) (reg store.Registered, err error) {
	platforms := append([]store.Platform{}, r.Platforms...)
	var labels, process, number any
	if len(r.Labels) > 0 {
		labels = r.Labels
	}
	if r.Number > 0 && r.Instance != "" {
		process, number = r.Instance, r.Number
	}
	if len(r.Capabilities) == 0 {
		r.Capabilities = json.RawMessage(`{}`)
	}
	var lost store.SweepResult
	err = w.db.write("registering worker "+r.ID).requeue(ctx, func(ctx context.Context, tx pgx.Tx) ([]store.BuildRef, error) {
		batch := &pgx.Batch{}
		batch.Queue(sqlRoom, r.ID, maxWorkers).QueryRow(func(row pgx.Row) error {
			var room bool
			if err := row.Scan(&room); err != nil || room {
				return err
			}
			return store.NewError(store.Overloaded, "Too many workers are registered: delete those that are gone")
		})
		batch.Queue(sqlIdentify, r.ID, store.Text(r.Name), []byte(r.Capabilities), process, number).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				return store.ErrLateRegistration() // rolls sqlRegister back
			}
			return nil
		})
		batch.Queue(sqlRegister, r.ID, max(r.Slots, 1), platforms, registrationStep, r.Instance, w.silence(), labels).QueryRow(func(row pgx.Row) error {
			return row.Scan(&reg.Again, &reg.Token.Worker, &reg.Token.Counter, &reg.Status, &reg.Draining)
		})
		if err := orNone(registered(tx.SendBatch(ctx, batch).Close()), errDuplicate); err != nil {
			return nil, err // rolls sqlIdentify back
		}
		batch = &pgx.Batch{}
		if r.Key != "" {
			batch.Queue(sqlBindKey, r.Key, r.ID).Exec(func(tag pgconn.CommandTag) error {
				if tag.RowsAffected() == 0 {
					return store.ErrWorkerMismatch()
				}
				return nil
			})
		}
		if r.Reports {
			batch.Queue(sqlLoseUnlisted, r.ID, append([]string{}, r.Running...), max(w.Rule.MaxAttempts, 1), store.MessageLost).
				Query(func(rows pgx.Rows) (err error) {
					lost, err = scanSweep(rows)
					return err
				})
		}
		batch.Queue(sqlMakeDue, r.ID, handOutStep-2)
		if r.Key != "" { // last: it locks the row of settings, and those before may wait for builds
			batch.Queue(sqlKeysChanged)
		}
		err := tx.SendBatch(ctx, batch).Close()
		return lost.Requeued, registered(err)
	})
	if err != nil {
		return store.Registered{}, err
	}
	reg.Requeued, reg.Failed = lost.Requeued, lost.Failed
	reg.Token.Counter++
	return reg, nil
}

func errDuplicate() error { return store.ErrDuplicateWorker() }

// registered translates the error of a registration's statements.
func registered(err error) error {
	if isDataError(err) {
		return store.Wrap(store.RegistrationFailed, "Registration failed", err)
	}
	return err
}

// silence returns how long a process must be silent before another one may register as its
// worker; nil if silence does not count now.
func (w *Workers) silence() *time.Duration {
	if w.ReadySince != nil {
		if since, ready := w.ReadySince(); !ready || time.Since(since) < store.WorkerSilence {
			return nil
		}
	}
	d := store.WorkerSilence
	return &d
}

// sqlConflict records that a process at address $2 could not register as worker $1, at most
// once a minute. It returns how long the process that holds the worker has been silent, and
// whether it recorded.
const sqlConflict = `/* conflict */
WITH c AS (
	UPDATE worker_details SET conflict_at = now(), conflict_from = $2
	WHERE worker_id = $1 AND (conflict_at > now() - interval '1 min') IS NOT TRUE
	RETURNING worker_id
)
SELECT now() - last_seen_at, EXISTS (SELECT FROM c) FROM workers WHERE id = $1`

// Conflict records that a process at address could not register because another one holds
// worker id. It returns after what time to try again, and whether to report the conflict,
// which is true at most once a minute over all controllers. Error: NotFound.
func (w *Workers) Conflict(ctx context.Context, id, address string) (again time.Duration, report bool, err error) {
	var silent time.Duration
	err = w.db.write("recording a conflict").scan(ctx, errNoWorker, []any{&silent, &report}, sqlConflict, id, address)
	if again = store.WorkerSilence - silent; again <= 0 { // silence does not count yet
		again = store.WorkerSilence / 3
	}
	return max(again, time.Second), report, err
}
