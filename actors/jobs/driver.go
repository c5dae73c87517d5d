package jobs

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
)

// pausesEvery is how often the rows of River's queues are read to find out whether one
// was paused. A client that polls would do so every 2 s for each queue, without a setting to
// change that, and takt itself never pauses them.
const pausesEvery = 30 * time.Second

// driver is River's driver with an executor that remembers the rows of queues.
type driver struct {
	*riverpgxv5.Driver
	executor *executor
}

func newDriver(pool *pgxpool.Pool) riverdriver.Driver[pgx.Tx] {
	d := riverpgxv5.New(pool)
	return &driver{d, &executor{Executor: d.GetExecutor(), queues: map[string]queueRow{}}}
}

// GetExecutor implements riverdriver.Driver.
func (d *driver) GetExecutor() riverdriver.Executor { return d.executor }

type executor struct {
	riverdriver.Executor
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
