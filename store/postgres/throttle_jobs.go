package postgres

import (
	"context"
	"fmt"
	"log/slog" //nolint:depguard // River logs with it
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"takt/store"
)

// newJobInserter returns a client of River that inserts jobs into transactions of this
// package. It has no pool, because it needs none.
func newJobInserter() (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(nil), &river.Config{Logger: slog.New(slog.DiscardHandler)})
}

// uniqueJob makes a throttle job the only living one of its queue. MaxAttempts is high,
// because the job lives as long as actions wait, whatever its attempts.
func uniqueJob() *river.InsertOpts {
	return &river.InsertOpts{
		MaxAttempts: 1000,
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}},
	}
}

const sqlSetJobs = `/* set_jobs */ UPDATE throttle_queues q SET job_id = u.job FROM unnest($1::bigint[], $2::bigint[]) AS u(seq, job) WHERE q.seq = u.seq`

// ensureJobs inserts a job for each queue that has none. tx holds their locks.
// InsertManyFast is not used, because it would fail as a whole on a duplicate.
func (t *Throttle) ensureJobs(ctx context.Context, tx pgx.Tx, queues []queueRow) error {
	var params []river.InsertManyParams
	var seqs, ids []int64
	for _, q := range queues {
		if !q.Live {
			job := store.ThrottleJob{Queue: q.ID(), PortalID: q.PortalID}
			params = append(params, river.InsertManyParams{Args: job, InsertOpts: uniqueJob()})
			seqs = append(seqs, q.Seq)
		}
	}
	if len(params) == 0 {
		return nil
	}
	results, err := t.jobs.InsertManyTx(ctx, tx, params)
	if err != nil {
		return fmt.Errorf("inserting jobs: %w", err)
	}
	for _, r := range results {
		ids = append(ids, r.Job.ID)
	}
	_, err = tx.Exec(ctx, sqlSetJobs, seqs, ids)
	return err
}

const sqlWaiting = `/* waiting */
SELECT EXISTS (SELECT FROM action_executions a WHERE a.state = 'waiting' AND a.queue = (SELECT seq FROM throttle_queues WHERE id = $1))`

// Waiting reports whether actions wait in a queue.
func (t *Throttle) Waiting(ctx context.Context, queue string) (bool, error) {
	return valueOf[bool](ctx, t.db.read("looking into queue "+queue), sqlWaiting, queue)
}

const (
	// sqlExcludeQueue waits for running batches and blocks new ones.
	sqlExcludeQueue = `/* exclude_queue */ SELECT pg_advisory_xact_lock($1, $2)`
	sqlLockQueue    = `/* lock_queue */ SELECT FROM throttle_queues WHERE id = $1 FOR UPDATE`
	sqlEndQueue     = `/* end_queue */ UPDATE throttle_queues SET job_id = NULL WHERE id = $1 AND job_id = $2`
)

// EndJob completes a queue's job if no action waits there any more. It holds the
// queue's locks, so that no action can be added meanwhile. ctx is that of the job's
// worker.
func (t *Throttle) EndJob(ctx context.Context, job *river.Job[store.ThrottleJob]) (ended bool, err error) {
	queue := job.Args.Queue
	err = t.db.write("ending the job of queue "+queue).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var waiting bool
		ended = false
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
	return ended && err == nil, err
}

// staleRunner is how old a runner's last beat may be, in seconds, before its queue's
// running job counts as dead.
const staleRunner = 45.0

// sqlStrays finds queues that have actions but no living job. $1 the limit, $2
// staleRunner.
const sqlStrays = `/* strays */ SELECT ` + keyColumns + `
FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
WHERE EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND (j.id IS NULL OR NOT ` + livingJob + `
		OR j.state = 'running' AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2))
ORDER BY q.id LIMIT $1`

const (
	sqlLockQueues = `/* lock_queues */ SELECT ` + keyColumns + ` FROM throttle_queues q WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	// sqlReviveJobs makes jobs without a runner available again.
	sqlReviveJobs = `/* revive_jobs */
UPDATE river_job j SET state = 'available', scheduled_at = now()
FROM throttle_queues q WHERE q.id = ANY ($1) AND j.id = q.job_id AND j.state = 'running'
	AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2)
RETURNING ` + keyColumns
)

// Restore gives a living job to each of up to limit queues that have actions but no
// such job, and returns these queues. It is harmless if repeated or run concurrently.
func (t *Throttle) Restore(ctx context.Context, limit int) (restored []store.QueueKey, err error) {
	err = t.db.write("looking for queues without a job").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		restored = nil
		byKey := pgx.RowToStructByPos[store.QueueKey]
		strays, err := collect(ctx, tx, byKey, sqlStrays, limit, staleRunner)
		if err != nil || len(strays) == 0 {
			return err
		}
		ids := queueIDs(strays)
		if _, err := tx.Exec(ctx, sqlLockQueues, ids); err != nil {
			return err
		}
		revived, err := collect(ctx, tx, byKey, sqlReviveJobs, ids, staleRunner)
		if err != nil {
			return err
		}
		given, err := t.giveJobs(ctx, tx, strays)
		restored = slices.Concat(revived, given)
		return err
	})
	if err != nil {
		return nil, err
	}
	return restored, nil
}

// giveJobs gives a job to those of the queues that have no living one, and returns
// them. tx holds their locks.
func (t *Throttle) giveJobs(ctx context.Context, tx pgx.Tx, keys []store.QueueKey) (given []store.QueueKey, err error) {
	queues, err := collect(ctx, tx, pgx.RowToStructByPos[queueRow], sqlLiveJobs, queueIDs(keys))
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		if !q.Live {
			given = append(given, q.QueueKey)
		}
	}
	return given, t.ensureJobs(ctx, tx, queues)
}

func queueIDs(keys []store.QueueKey) []string {
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.ID()
	}
	return ids
}
