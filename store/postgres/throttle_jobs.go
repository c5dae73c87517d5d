package postgres

import (
	"context"
	"fmt"
	"log/slog" // River logs with it
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"takt/store"
)

// newJobInserter returns a River client that only inserts jobs, in transactions of this
// package. So it needs no pool.
func newJobInserter() (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(nil), &river.Config{Logger: slog.New(slog.DiscardHandler)})
}

// uniqueJob returns options that make a job the only live one of its queue. MaxAttempts is
// high, because a job lives as long as actions wait, however often it fails.
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

// ensureJobs inserts a job for each queue that is not Live. tx holds their locks.
// InsertManyFastTx would fail as a whole on a duplicate.
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
	// sqlExcludeQueue waits for running batches of Accept and blocks new ones; see
	// queueLockClass.
	sqlExcludeQueue = `/* exclude_queue */ SELECT pg_advisory_xact_lock($1, $2)`
	sqlLockQueue    = `/* lock_queue */ SELECT FROM throttle_queues WHERE id = $1 FOR UPDATE`
	sqlEndQueue     = `/* end_queue */ UPDATE throttle_queues SET job_id = NULL WHERE id = $1 AND job_id = $2`
)

// EndJob completes a queue's job if no action waits there, and reports whether it did. It
// holds the queue's locks, so that no action can be added meanwhile. ctx must be the one that
// River passed to the job's worker.
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

// staleRunner is the age of a runner's last heartbeat, in seconds, from which on a running job
// counts as abandoned.
const staleRunner = 45.0

// sqlStrays finds up to $1 queues in which actions wait without a live job or with an
// abandoned one; $2 is staleRunner.
const sqlStrays = `/* strays */ SELECT ` + keyColumns + `
FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
WHERE EXISTS (SELECT FROM action_executions a WHERE a.queue = q.seq AND a.state = 'waiting')
	AND (j.id IS NULL OR NOT ` + livingJob + `
		OR j.state = 'running' AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2))
ORDER BY q.id LIMIT $1`

const (
	sqlLockQueues = `/* lock_queues */ SELECT ` + keyColumns + ` FROM throttle_queues q WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	// sqlReviveJobs makes abandoned jobs available again.
	sqlReviveJobs = `/* revive_jobs */
UPDATE river_job j SET state = 'available', scheduled_at = now()
FROM throttle_queues q WHERE q.id = ANY ($1) AND j.id = q.job_id AND j.state = 'running'
	AND greatest(q.runner_at, j.attempted_at) < now() - make_interval(secs => $2)
RETURNING ` + keyColumns
)

// Restore gives a live job to up to limit queues in which actions wait without one, also if
// the job is abandoned, and returns these queues. It is harmless if repeated or run
// concurrently.
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

// giveJobs inserts a job for those of the queues that have no live one, and returns them.
// tx holds their locks.
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
