package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// riverQueue is River within this process, which has no clients: its jobs are functions. It takes
// many jobs with a statement, and records that jobs are done for many at once, after they ended.
type riverQueue struct {
	host *controller // whose PostgreSQL it uses
	db   database
	pool *pgxpool.Pool
	done atomic.Int64
	made int64
}

type riverJob struct {
	Text string `json:"text"`
}

// Kind implements river.JobArgs.
func (riverJob) Kind() string { return "job" }

type riverWorker struct {
	river.WorkerDefaults[riverJob]
	q *riverQueue
}

// Work implements river.Worker.
func (w *riverWorker) Work(context.Context, *river.Job[riverJob]) error {
	w.q.done.Add(1)
	return nil
}

// startRiver makes River's database on the PostgreSQL of host.
func (p *peers) startRiver(ctx context.Context, host *controller) queue {
	host.db.exec(ctx, "CREATE DATABASE river")
	q := &riverQueue{host: host, db: database(strings.Replace(string(host.db), "dbname=takt", "dbname=river", 1))}
	q.pool = must.Get(pgxpool.New(ctx, string(q.db)))
	p.atEnd(func() error {
		q.pool.Close()
		return nil
	})
	m := must.Get(rivermigrate.New(riverpgxv5.New(q.pool), nil))
	must.Get(m.Migrate(ctx, rivermigrate.DirectionUp, nil))
	return q
}

// client makes a client for so many jobs at once.
func (q *riverQueue) client(workers int) *river.Client[pgx.Tx] {
	cfg := &river.Config{Logger: slog.New(slog.DiscardHandler), Workers: river.NewWorkers(), FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 10 * time.Millisecond}
	river.AddWorker(cfg.Workers, &riverWorker{q: q})
	if workers > 0 {
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
	}
	return must.Get(river.NewClient(riverpgxv5.New(q.pool), cfg))
}

func (q *riverQueue) fill(ctx context.Context, jobs int) {
	const each = 5000
	c := q.client(0)
	for n := jobs; n > 0; n -= each {
		params := make([]river.InsertManyParams, min(n, each))
		for i := range params {
			params[i].Args = riverJob{jobText()}
		}
		must.Get(c.InsertManyFast(ctx, params))
	}
	q.made += int64(jobs)
}

// own is the processor time of this process and of PostgreSQL.
func (q *riverQueue) own() usage {
	return usage{takt: must.Get(process.TimesOf(os.Getpid())).Own, postgres: q.host.usage().postgres}
}

func (q *riverQueue) work(ctx context.Context, n int, d time.Duration) sample {
	c := q.client(n)
	done, before, begun := q.done.Load(), q.own(), time.Now()
	must.Do(c.Start(ctx))
	for time.Since(begun) < d && q.done.Load() < q.made && ctx.Err() == nil {
		process.Pause(ctx, time.Millisecond)
	}
	must.Do(c.Stop(context.WithoutCancel(ctx))) // all that ended is recorded then
	s := work(int(q.done.Load()-done), time.Since(begun))
	s.cpu = q.own().minus(before).of(s.Requests)
	return s
}

func (q *riverQueue) check(ctx context.Context, made, acknowledged int) {
	for where, want := range map[string]int{"=": acknowledged, "<>": made - acknowledged} {
		if got := q.db.number(ctx, "SELECT count(*) FROM river_job WHERE state "+where+" 'completed'"); got != want {
			must.Do(fmt.Errorf("river has %d jobs whose state %s completed, not %d", got, where, want))
		}
	}
}
