package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/seal"
)

// Invariants checks the rules that the database must always satisfy.
type Invariants struct {
	db       *DB
	keys     *seal.Ring
	services []string
}

// NewInvariants returns the invariants of these services, of all services if none is named.
// keys must open the sealed values in db; if keys is nil, these are not checked.
func NewInvariants(db *DB, keys *seal.Ring, services ...string) *Invariants {
	return &Invariants{db, keys, services}
}

// invariant is a rule about the tables of a service. broken is a statement that returns the
// names of the rows that violate it. repair changes exactly those rows; it is "" if only an
// operator can decide what is right. lock is a statement that runs before repair, in the
// same transaction.
type invariant struct{ service, name, promise, broken, lock, repair string }

// recent selects the last 10 000 builds submitted. Older ones were checked earlier, and
// reading the whole history at every check would cost too much.
const recent = `seq > (SELECT coalesce(max(seq), 0) - 10000 FROM builds)`

const (
	lockWorkers       = `SELECT FROM workers ORDER BY id FOR NO KEY UPDATE`
	heldNow           = `SELECT w.id, count(b.seq)::int AS n FROM workers w LEFT JOIN builds b ON b.worker_id = w.id AND b.state IN ('assigned', 'building') GROUP BY w.id`
	workerMissing     = `builds b WHERE b.state IN ('assigned', 'building') AND NOT EXISTS (SELECT FROM workers w WHERE w.id = b.worker_id)`
	pendingWithWorker = `builds WHERE state = 'pending' AND (worker_id IS NOT NULL OR started_at IS NOT NULL OR completed_at IS NOT NULL) AND ` + recent
	endedWithoutTime  = `builds WHERE state IN ('completed', 'failed', 'cancelled') AND completed_at IS NULL AND ` + recent
	idMissing         = `builds b WHERE ` + recent + ` AND NOT EXISTS (SELECT FROM build_ids i WHERE i.id = b.id AND i.seq = b.seq)`
	keeping           = `deployments WHERE state IN ('done', 'cancelled', 'failed') AND credential IS NOT NULL`
	period            = `make_interval(secs => ` + periodSeconds + `)`
)

// invariants returns all rules. One whose repair may violate another comes before that.
func invariants() []invariant {
	return []invariant{
		{
			"builds", "build_holder", "A build that is assigned or building is held by a worker that is known.",
			`SELECT b.id FROM ` + workerMissing, lockWorkers,
			`UPDATE builds SET state = 'pending', worker_id = NULL, started_at = NULL, last_seen_at = NULL, waiting_since = now(), updated_at = now()
		WHERE seq IN (SELECT b.seq FROM ` + workerMissing + `)`,
		},
		{
			"builds", "worker_held", "A worker's count of builds is the number of builds that it holds.",
			`SELECT w.id FROM workers w JOIN (` + heldNow + `) h USING (id) WHERE w.held <> h.n`,
			lockWorkers,
			`UPDATE workers w SET held = h.n FROM (` + heldNow + `) h WHERE h.id = w.id AND w.held <> h.n`,
		},
		{
			"builds", "worker_status", "A worker is building exactly if it holds builds, unless it is offline.",
			`SELECT id FROM workers WHERE status <> 'offline' AND (status = 'building') <> (held > 0)`,
			lockWorkers,
			`UPDATE workers SET status = CASE WHEN held > 0 THEN 'building' ELSE 'idle' END WHERE status <> 'offline' AND (status = 'building') <> (held > 0)`,
		},
		{
			"builds", "worker_slots", "A worker holds no more builds than it has slots.",
			`SELECT id FROM workers WHERE held > slots`, "", "",
		},
		{
			"builds", "worker_known", "A worker has one row, and a name.",
			`SELECT w.id FROM workers w LEFT JOIN worker_details d ON d.worker_id = w.id GROUP BY w.id HAVING count(*) > 1 OR count(d) = 0`, "", "",
		},
		{
			"builds", "build_pending", "A build that waits has neither holder nor end.",
			`SELECT id FROM ` + pendingWithWorker, "",
			`UPDATE builds SET worker_id = NULL, started_at = NULL, last_seen_at = NULL, completed_at = NULL
		WHERE seq IN (SELECT seq FROM ` + pendingWithWorker + `) AND state = 'pending'`,
		},
		{
			"builds", "build_retry", "A build is of no class exactly while it waits for its retry, and then says when that is.",
			`SELECT id FROM builds b LEFT JOIN build_inputs i ON i.build = b.seq WHERE b.state = 'pending' AND b.class = 0 AND (i.due_at IS NULL OR i.home_class IS NULL)
		UNION SELECT id FROM build_inputs i JOIN builds b ON b.seq = i.build WHERE i.due_at IS NOT NULL AND (b.state <> 'pending' OR b.class <> 0)`,
			"", "",
		},
		{
			"builds", "build_ended", "A build that has ended says when.",
			`SELECT id FROM ` + endedWithoutTime, "",
			`UPDATE builds SET completed_at = updated_at WHERE seq IN (SELECT seq FROM ` + endedWithoutTime + `)`,
		},
		{
			"builds", "build_known", "A build is found by its id.",
			`SELECT b.id FROM ` + idMissing, "",
			`INSERT INTO build_ids (id, seq) SELECT b.id, b.seq FROM ` + idMissing + ` ON CONFLICT (id) DO UPDATE SET seq = excluded.seq`,
		},
		{
			"builds", "build_source", "A build that waits has a source.",
			`SELECT id FROM builds b WHERE state = 'pending' AND ` + recent + ` AND NOT EXISTS (SELECT FROM build_files f WHERE f.build = b.seq AND f.kind = 'source')`,
			"", "",
		},
		{
			"builds", "build_result", "A build that was completed within the hour has a result.",
			`SELECT id FROM builds b WHERE state = 'completed' AND completed_at > now() - interval '1 hour'
		AND NOT EXISTS (SELECT FROM build_files f WHERE f.build = b.seq AND f.kind = 'result')`,
			"", "",
		},
		{
			"builds", "day_totals", "The totals of yesterday and today are those of their builds.",
			`SELECT coalesce(d.day, b.day)::text FROM (
			SELECT * FROM build_days WHERE day >= (now() AT TIME ZONE 'UTC')::date - 1
		) d FULL JOIN (
			SELECT (completed_at AT TIME ZONE 'UTC')::date AS day, count(*) FILTER (WHERE state = 'completed') AS completed,
				count(*) FILTER (WHERE state = 'failed') AS failed, count(*) FILTER (WHERE state = 'cancelled') AS cancelled
			FROM builds WHERE completed_at <= (SELECT up_to FROM rollup)
				AND completed_at >= ((now() AT TIME ZONE 'UTC')::date - 1) AT TIME ZONE 'UTC' GROUP BY 1
		) b ON b.day = d.day WHERE (d.completed, d.failed, d.cancelled) IS DISTINCT FROM (b.completed, b.failed, b.cancelled)`,
			"", "",
		},
		{
			"throttle", "action_queue", "An action that waits is in a throttle queue that is known.",
			// Each step of the recursion skips the waiting actions of one queue.
			`WITH RECURSIVE w(queue) AS (
				(SELECT queue FROM action_executions WHERE state = 'waiting' ORDER BY queue LIMIT 1)
				UNION ALL
				SELECT (SELECT a.queue FROM action_executions a WHERE a.state = 'waiting' AND a.queue > w.queue ORDER BY a.queue LIMIT 1)
				FROM w WHERE w.queue IS NOT NULL
			) SELECT 'queue ' || queue FROM w WHERE queue IS NOT NULL AND NOT EXISTS (SELECT FROM throttle_queues q WHERE q.seq = w.queue)`,
			"", "",
		},
		{
			"throttle", "queue_job", "A throttle queue whose actions wait for ten minutes has a live job.",
			`SELECT q.id FROM throttle_queues q
		WHERE EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting' AND a.received_at < now() - interval '10 min')
		AND NOT EXISTS (SELECT FROM river_job j WHERE j.id = q.job_id AND j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled'))`,
			"", "",
		},
		{
			"throttle", "queue_rate", "Of a throttle queue no more was answered within one period than its rate allows.",
			`SELECT q.id FROM throttle_queues q JOIN throttle_configs c USING (portal_id, action_id)
		WHERE c.updated_at < now() - ` + period + ` AND c.max_throughput < (
			SELECT coalesce(sum(w.n), 0) FROM throttle_windows w
			WHERE w.queue = q.seq AND w.ended_at <= now() AND w.ended_at > now() - ` + period + `)`,
			"", "",
		},
		{
			"deployments", "deployment_sum", "A deployment that is over has no repository that is not.",
			`SELECT DISTINCT d.id FROM deployments d JOIN deployment_repos r ON r.deployment_id = d.id
		WHERE d.state IN ('done', 'cancelled', 'failed') AND r.finished_at IS NULL`,
			"", "",
		},
		{
			"deployments", "deployment_credential", "A deployment that is over keeps no credential.",
			`SELECT id FROM ` + keeping, "",
			`UPDATE deployments SET credential = NULL WHERE id IN (SELECT id FROM ` + keeping + `)`,
		},
	}
}

// invariantLimit bounds the check of one invariant, and its repair.
const invariantLimit = 30 * time.Second

// Check checks all invariants, each by one statement and so in one snapshot. It stops at the
// first error. A violation is no error.
func (i *Invariants) Check(ctx context.Context) ([]store.Invariant, error) { return i.all(ctx, false) }

// Repair is like Check, and also repairs what can be repaired without losing anything. The
// result shows what was broken before, and how many rows were repaired.
func (i *Invariants) Repair(ctx context.Context) ([]store.Invariant, error) { return i.all(ctx, true) }

func (i *Invariants) all(ctx context.Context, repair bool) ([]store.Invariant, error) {
	var all []store.Invariant
	for _, inv := range invariants() {
		if len(i.services) > 0 && !slices.Contains(i.services, inv.service) {
			continue
		}
		found, err := i.one(ctx, inv, repair)
		if err != nil {
			return nil, fmt.Errorf("checking %s: %w", inv.name, err)
		}
		all = append(all, found)
	}
	if i.keys == nil {
		return all, nil
	}
	sealed, err := i.sealed(ctx)
	return append(all, sealed), err
}

// sealed checks the only invariant that SQL can't check: that keys open all sealed values.
// It has no repair, because only an operator can supply missing keys.
func (i *Invariants) sealed(ctx context.Context) (store.Invariant, error) {
	found := store.Invariant{Name: "sealed_opens", Promise: "What is sealed can be opened with the keys given.", Examples: []string{}}
	var kind seal.Kind
	var id string
	var value []byte
	err := i.db.read("opening what is sealed").each(ctx, []any{&kind, &id, &value}, func() error {
		if _, err := i.keys.Open(kind, id, value); err != nil {
			found.Broken++
			if len(found.Examples) < 5 {
				found.Examples = append(found.Examples, fmt.Sprintf("%s %s", kind, id))
			}
		}
		return nil
	}, `SELECT kind, id, sealed FROM sealed_values`)
	return found, err
}

// one checks an invariant and repairs it. The repair selects the rows again under its locks,
// so that rows that were corrected meanwhile are not changed. It locks workers in the order of
// their ids, which a result that blames another worker does not, so it may be tried again after
// a deadlock.
func (i *Invariants) one(ctx context.Context, inv invariant, repair bool) (found store.Invariant, err error) {
	found = store.Invariant{Name: inv.name, Promise: inv.promise, Repairable: inv.repair != "", Examples: []string{}}
	err = i.db.run(ctx, invariantLimit, func(ctx context.Context, c *pgx.Conn) error {
		count := `SELECT count(*), coalesce((array_agg(name ORDER BY name))[1:5], '{}') FROM (` + inv.broken + `) b(name)`
		return c.QueryRow(ctx, count, pgx.QueryExecModeExec).Scan(&found.Broken, &found.Examples)
	})
	if err != nil || found.Broken == 0 || !repair || inv.repair == "" {
		return found, err
	}
	op := i.db.write("repairing it")
	op.timeout = invariantLimit
	err = op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if inv.lock != "" {
			if _, err := tx.Exec(ctx, inv.lock); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, inv.repair, pgx.QueryExecModeExec)
		found.Repaired = tag.RowsAffected()
		return err
	})
	if found.Repaired > 0 {
		i.db.pending.forget()
		i.db.head.reset()
	}
	return found, err
}
