package postgres

import (
	"context"
	"fmt"
	"log/slog" //nolint:depguard // River logs with it

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"takt/store"
)

// jobInserter inserts River's jobs into transactions of this package. It has no
// pool: it needs none, and nobody keeps one.
type jobInserter struct{ client *river.Client[pgx.Tx] }

func newJobInserter() (*jobInserter, error) {
	client, err := river.NewClient(riverpgxv5.New(nil), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("making River's inserter: %w", err)
	}
	return &jobInserter{client}, nil
}

// uniqueJob makes a throttle job the only living one of its queue. Its attempts
// are no measure of anything: it lives as long as actions wait.
func uniqueJob() *river.InsertOpts {
	return &river.InsertOpts{
		MaxAttempts: 1000,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}},
	}
}

const sqlSetJobs = `UPDATE throttle_queues q SET job_id = u.job FROM unnest($1::bigint[], $2::bigint[]) AS u(seq, job) WHERE q.seq = u.seq`

// ensureJobs gives a job to each of the queues that has none. tx holds their
// locks. InsertManyFast would fail as a whole on a duplicate.
func (t *Throttle) ensureJobs(ctx context.Context, tx pgx.Tx, queues []queueRow) error {
	var params []river.InsertManyParams
	var seqs, ids []int64
	for _, q := range queues {
		if !q.live {
			job := store.ThrottleJob{Queue: q.key.ID(), PortalID: q.key.PortalID}
			params = append(params, river.InsertManyParams{Args: job, InsertOpts: uniqueJob()})
			seqs = append(seqs, q.seq)
		}
	}
	if len(params) == 0 {
		return nil
	}
	results, err := t.jobs.client.InsertManyTx(ctx, tx, params)
	if err != nil {
		return fmt.Errorf("inserting jobs: %w", err)
	}
	for _, r := range results {
		ids = append(ids, r.Job.ID)
	}
	_, err = tx.Exec(ctx, sqlSetJobs, seqs, ids)
	return err
}

// InsertJobs inserts jobs without uniqueness, all or none.
func (t *Throttle) InsertJobs(ctx context.Context, jobs []river.InsertManyParams) error {
	err := t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := t.jobs.client.InsertManyFastTx(ctx, tx, jobs)
		return err
	})
	if err != nil {
		return fmt.Errorf("inserting %d jobs: %w", len(jobs), err)
	}
	return nil
}

const sqlWaiting = `
SELECT EXISTS (SELECT FROM action_executions a WHERE a.state = 'waiting' AND a.queue = (SELECT seq FROM throttle_queues WHERE id = $1))`

// Waiting reports whether actions wait in a queue.
func (t *Throttle) Waiting(ctx context.Context, queue string) (waiting bool, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, sqlWaiting, queue).Scan(&waiting)
	})
	if err != nil {
		return false, fmt.Errorf("looking into queue %s: %w", queue, err)
	}
	return waiting, nil
}

const (
	// sqlExcludeQueue waits for batches under way, and keeps others out.
	sqlExcludeQueue = `SELECT pg_advisory_xact_lock($1, $2)`
	sqlLockQueue    = `SELECT FROM throttle_queues WHERE id = $1 FOR UPDATE`
	sqlEndQueue     = `UPDATE throttle_queues SET job_id = NULL WHERE id = $1 AND job_id = $2`
)

// EndJob completes a queue's job if nothing waits there any more: under the
// queue's locks, so that nothing can come in between. ctx is that of the job's
// worker.
func (t *Throttle) EndJob(ctx context.Context, job *river.Job[store.ThrottleJob]) (ended bool, err error) {
	queue := job.Args.Queue
	err = t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var waiting bool
		look := &pgx.Batch{}
		look.Queue(sqlExcludeQueue, queueLockClass, queueLock(queue))
		look.Queue(sqlLockQueue, queue)
		look.Queue(sqlWaiting, queue).QueryRow(func(row pgx.Row) error { return row.Scan(&waiting) })
		if err := tx.SendBatch(ctx, look).Close(); err != nil || waiting {
			return err
		}
		if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
			return err
		}
		ended = true
		_, err := tx.Exec(ctx, sqlEndQueue, queue, job.ID)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ending the job of queue %s: %w", queue, err)
	}
	return ended, nil
}

// staleRunner is how long a runner may say nothing before its queue's running
// job does not count as alive, in seconds.
const staleRunner = 45.0

// sqlStrays finds queues with actions that no living job answers for. $1 the most
// of them, $2 staleRunner.
const sqlStrays = `
SELECT q.id, q.portal_id, q.workflow_id, q.action_id, q.index
FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
WHERE EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND (j.id IS NULL OR j.state NOT IN ('available', 'pending', 'running', 'retryable', 'scheduled')
		OR j.state = 'running' AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2))
ORDER BY q.id LIMIT $1`

const (
	sqlLockQueues = `SELECT id FROM throttle_queues WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	// sqlReviveJobs makes jobs that nobody runs be run again.
	sqlReviveJobs = `
UPDATE river_job j SET state = 'available', scheduled_at = now()
FROM throttle_queues q WHERE q.id = ANY ($1) AND j.id = q.job_id AND j.state = 'running'
	AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2)
RETURNING q.id`
)

// Restore gives a living job to each of up to limit queues that have actions and
// none, and returns which. Harmless if repeated or done by several at once.
func (t *Throttle) Restore(ctx context.Context, limit int) (restored []store.QueueKey, err error) {
	err = t.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		restored = nil
		rows, err := tx.Query(ctx, sqlStrays, limit, staleRunner)
		if err != nil {
			return err
		}
		keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[strayRow])
		if err != nil || len(keys) == 0 {
			return err
		}
		byID := map[string]store.QueueKey{}
		ids := make([]string, 0, len(keys))
		for _, k := range keys {
			ids, byID[k.ID] = append(ids, k.ID), k.QueueKey
		}
		if _, err := tx.Exec(ctx, sqlLockQueues, ids); err != nil {
			return err
		}
		revived, err := collect[string](ctx, tx, sqlReviveJobs, ids, staleRunner)
		if err != nil {
			return err
		}
		for _, id := range revived {
			restored = append(restored, byID[id])
		}
		return t.restoreJobs(ctx, tx, ids, byID, &restored)
	})
	if err != nil {
		return nil, fmt.Errorf("looking for queues without a job: %w", err)
	}
	return restored, nil
}

type strayRow struct {
	ID string
	store.QueueKey
}

func (t *Throttle) restoreJobs(ctx context.Context, tx pgx.Tx, ids []string, byID map[string]store.QueueKey, restored *[]store.QueueKey) error {
	rows, err := tx.Query(ctx, sqlLiveJobs, ids)
	if err != nil {
		return err
	}
	var dead []queueRow
	var id string
	var q queueRow
	_, err = pgx.ForEachRow(rows, []any{&id, &q.seq, &q.live}, func() error {
		if q.key = byID[id]; !q.live {
			dead = append(dead, q)
			*restored = append(*restored, q.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return t.ensureJobs(ctx, tx, dead)
}

// collect returns the only column of a query's rows.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}
