package jobs

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
)

// pausesEvery is how often the rows of River's queues are read to find out whether one
// was paused. A client that polls would do so every 2 s for each queue, without a setting to
// change that, and takt itself never pauses them.
const pausesEvery = 30 * time.Second

// presentFor is how long after the last report of a queue a client is assumed to work it.
// Clients report their queues every 10 minutes.
const presentFor = 15 * time.Minute

// driver is River's driver, adapted to clients that do not work the same queues, because the
// controllers may run different services. River assumes that the leader knows all kinds of jobs:
// it discards interrupted jobs of others, and it alone inserts periodic jobs.
type driver struct {
	*riverpgxv5.Driver
	executor *executor
}

func newDriver(pool *pgxpool.Pool, works map[string]river.QueueConfig, takes map[string]Take) riverdriver.Driver[pgx.Tx] {
	d := riverpgxv5.New(pool)
	return &driver{d, &executor{Executor: d.GetExecutor(), works: works, takes: takes, queues: map[string]queueRow{}}}
}

// GetExecutor implements riverdriver.Driver.
func (d *driver) GetExecutor() riverdriver.Executor { return d.executor }

type executor struct {
	riverdriver.Executor
	works map[string]river.QueueConfig
	takes map[string]Take

	mu     sync.Mutex
	queues map[string]queueRow // guarded by mu
}

type queueRow struct {
	row  *rivertype.Queue
	read time.Time
}

// QueueGet implements riverdriver.Executor.
func (e *executor) QueueGet(ctx context.Context, params *riverdriver.QueueGetParams) (*rivertype.Queue, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q, ok := e.queues[params.Name]; ok && time.Since(q.read) < pausesEvery {
		return q.row, nil
	}
	row, err := e.Executor.QueueGet(ctx, params)
	if err == nil && row != nil {
		e.queues[params.Name] = queueRow{row, time.Now()}
	}
	return row, err
}

// JobGetAvailable implements riverdriver.Executor. If the second statement fails, what the first
// one has marked is rescued as if the controller had been killed.
func (e *executor) JobGetAvailable(ctx context.Context, params *riverdriver.JobGetAvailableParams) (*riverdriver.JobGetAvailableResult, error) {
	take := e.takes[params.Queue]
	if take == nil {
		return e.Executor.JobGetAvailable(ctx, params)
	}
	found := &riverdriver.JobGetAvailableResult{}
	ids, err := take(ctx, params.ClientID, params.MaxToLock)
	if err == nil && len(ids) > 0 {
		found.Jobs, err = e.JobGetByIDMany(ctx, &riverdriver.JobGetByIDManyParams{ID: ids})
	}
	return found, err
}

// JobGetStuck implements riverdriver.Executor. It leaves out jobs of queues that this client
// does not work: a client that works them rescues them.
func (e *executor) JobGetStuck(ctx context.Context, params *riverdriver.JobGetStuckParams) ([]*rivertype.JobRow, error) {
	next := *params
	for {
		stuck, err := e.Executor.JobGetStuck(ctx, &next)
		n := len(stuck)
		if n > 0 {
			next.AfterID = stuck[n-1].ID
		}
		stuck = slices.DeleteFunc(stuck, func(j *rivertype.JobRow) bool { _, ok := e.works[j.Queue]; return !ok })
		if err != nil || len(stuck) > 0 || n < params.Max {
			return stuck, err
		}
	}
}

// mayLead returns ErrNotFound, with which River goes on without leadership, if other clients
// work queues that this one does not: one of them leads.
func (e *executor) mayLead(ctx context.Context, in riverdriver.Executor) error {
	queues, err := in.QueueList(ctx, &riverdriver.QueueListParams{Max: 100})
	for _, q := range queues {
		if _, ok := e.works[q.Name]; !ok && time.Since(q.UpdatedAt) < presentFor {
			return rivertype.ErrNotFound
		}
	}
	return err
}

// LeaderAttemptReelect implements riverdriver.Executor.
func (e *executor) LeaderAttemptReelect(ctx context.Context, params *riverdriver.LeaderReelectParams) (*riverdriver.Leader, error) {
	if err := e.mayLead(ctx, e.Executor); err != nil {
		return nil, err
	}
	return e.Executor.LeaderAttemptReelect(ctx, params)
}

// Begin implements riverdriver.Executor. Elections are held in transactions.
func (e *executor) Begin(ctx context.Context) (riverdriver.ExecutorTx, error) {
	tx, err := e.Executor.Begin(ctx)
	return &election{tx, e}, err
}

type election struct {
	riverdriver.ExecutorTx
	e *executor
}

// LeaderAttemptElect implements riverdriver.Executor.
func (t *election) LeaderAttemptElect(ctx context.Context, params *riverdriver.LeaderElectParams) (*riverdriver.Leader, error) {
	if err := t.e.mayLead(ctx, t.ExecutorTx); err != nil {
		return nil, err
	}
	return t.ExecutorTx.LeaderAttemptElect(ctx, params)
}
