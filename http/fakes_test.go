package http_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge"
	"takt/store"
	"takt/store/postgres"
)

// queue is a queue without an actor: every poll is a transaction of its own.
type queue struct {
	store  *postgres.Queue
	tokens *store.WorkerTokens
	mu     sync.Mutex
	woken  chan struct{} // closed and replaced when a build is enqueued
	parked int           // polls that have parked
	freed  []string
	able   []string
	warm   []string
}

func (q *queue) serve(ctx context.Context, p store.Poll, presented string) (store.PollReply, store.PollResult, error) {
	results, err := q.store.Assign(ctx, []store.Poll{p})
	if err != nil {
		return store.PollReply{}, store.PollResult{}, err
	}
	r := results[0]
	next := store.WorkerToken{Worker: r.Session.Number, Counter: max(r.Session.Used+1, r.Handed)}
	reply := store.PollReply{Jobs: r.Jobs, Token: q.tokens.Issue(next)}
	switch r.Outcome {
	case store.PollInvalidToken:
		err = store.ErrInvalidToken()
	case store.PollDuplicateWorker:
		err = store.ErrDuplicateWorker()
	case store.PollUnknownWorker:
		err = store.NewError(store.NotFound, "Worker not found")
	case store.PollSuperseded:
		reply.Token = presented
	case store.PollFailed:
		err = r.Err
	case store.PollServed, store.PollLocked:
	}
	return reply, r, err
}

func (q *queue) Arrive(ctx context.Context, r store.PollRequest, wait time.Duration) (store.AwaitReply, error) {
	p := store.Poll{
		Worker: r.Token.Worker, Shown: r.Token.Counter, Used: r.Token.Counter,
		WorkerID: r.WorkerID, Instance: r.Instance, Active: r.Active, Reconcile: r.Reconcile,
		Max: r.Max, New: r.Max, Spare: []int32{store.IOSClass, store.AndroidClass},
	}
	q.mu.Lock()
	woken := q.woken
	q.mu.Unlock()
	return func(ctx context.Context, closing <-chan struct{}) (store.PollReply, error) {
		reply, result, err := q.serve(ctx, p, r.Presented)
		if err != nil || wait == 0 || len(reply.Jobs) > 0 {
			return reply, err
		}
		p.Parked, p.Handed = true, result.Session.Handed
		q.mu.Lock()
		q.parked++
		q.mu.Unlock()
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return store.PollReply{}, context.Cause(ctx)
		case <-closing:
			return store.PollReply{}, store.NewUnavailable("Queue is restarting, try again", nil)
		case <-woken:
		case <-timer.C:
		}
		reply, _, err = q.serve(ctx, p, r.Presented)
		return reply, err
	}, nil
}

// hasParked returns how many polls have parked.
func (q *queue) hasParked() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.parked
}

func (q *queue) Enqueued(store.Build) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.woken)
	q.woken = make(chan struct{})
}

func (q *queue) Requeued([]store.BuildRef) { q.Enqueued(store.Build{}) }

func (q *queue) Freed(worker string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.freed = append(q.freed, worker)
}

func (q *queue) Able(worker string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.able = append(q.able, worker)
}

func (q *queue) Warm(worker, cache string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.warm = append(q.warm, worker+" "+cache)
}

func (q *queue) Full(context.Context) error { return nil }

// published remembers what was published.
type published struct {
	mu      sync.Mutex
	builds  []store.BuildUpdate
	workers []store.WorkerUpdate
}

func (a *published) publish(topic string, data any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch u := data.(type) {
	case store.Uploaded:
	case store.BuildUpdate:
		u.Step, u.Was = store.Step{}, store.BuildRef{} // for the log, metrics and traces
		a.builds = append(a.builds, u)
	case store.WorkerUpdate:
		u.Step = store.Step{}
		a.workers = append(a.workers, u)
	default:
		panic("nobody may publish " + topic)
	}
}

// take returns what was published since the last call.
func (a *published) take() ([]store.BuildUpdate, []store.WorkerUpdate) {
	a.mu.Lock()
	defer a.mu.Unlock()
	builds, workers := a.builds, a.workers
	a.builds, a.workers = nil, nil
	return builds, workers
}

// commitAll commits files as a store does.
func commitAll(ctx context.Context, files []store.Staged) error {
	for _, f := range files {
		if err := f.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// failing is a store whose transactions fail after the files got their names.
type failing struct {
	takthttp.Builds
	err error
}

func (f failing) settle(ctx context.Context, files []store.Staged) error {
	err := errors.Join(commitAll(ctx, files), f.err)
	if !errors.Is(err, store.ErrOutcomeUnknown) {
		for _, file := range files {
			file.Abort(ctx)
		}
	}
	return err
}

func (f failing) Submit(ctx context.Context, _ store.Submission, files ...store.Staged) (store.Build, error) {
	return store.Build{}, f.settle(ctx, files)
}

func (f failing) Finish(ctx context.Context, _ store.Result, files ...store.Staged) (store.Finished, error) {
	return store.Finished{}, f.settle(ctx, files)
}

// inline runs requests in their caller, and turns a panic into an error as a
// request actor does.
type inline struct{}

func (inline) Do(ctx context.Context, _ store.Work, fn func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("request panicked")
		}
	}()
	return fn(ctx)
}

// parking is a queue whose polls wait until they are let go.
type parking struct {
	takthttp.Queue
	parked chan struct{}
	ended  chan error
}

func (q parking) Arrive(context.Context, store.PollRequest, time.Duration) (store.AwaitReply, error) {
	q.parked <- struct{}{}
	return func(ctx context.Context, closing <-chan struct{}) (store.PollReply, error) {
		why := edge.ErrServerClosed
		select {
		case <-ctx.Done():
			why = context.Cause(ctx)
		case <-closing:
		}
		q.ended <- why
		return store.PollReply{}, store.NewUnavailable("Queue is restarting, try again", why)
	}, nil
}

// instant is a store that agrees to everything and a queue without builds.
type instant struct {
	takthttp.Builds
	takthttp.Queue
	build store.Build
}

func (i *instant) Find(context.Context, string) (store.Build, error) { return i.build, nil }

func (i *instant) Held(context.Context, store.Heartbeat) (store.Build, error) { return i.build, nil }

func (i *instant) RecordHeartbeat(context.Context, store.Heartbeat) (store.HeartbeatReply, error) {
	return store.HeartbeatReply{}, nil
}
func (i *instant) Freed(string) {}
func (i *instant) Able(string)  {}
func (i *instant) Finish(ctx context.Context, r store.Result, files ...store.Staged) (store.Finished, error) {
	i.build.Result, i.build.State = r.File, store.Completed
	return store.Finished{}, commitAll(ctx, files)
}

func (i *instant) Arrive(_ context.Context, r store.PollRequest, _ time.Duration) (store.AwaitReply, error) {
	return func(context.Context, <-chan struct{}) (store.PollReply, error) {
		return store.PollReply{Token: r.Presented}, nil
	}, nil
}

// tokensOf are tokens of workers with a key of this test's own.
func tokensOf(tb testing.TB) *store.WorkerTokens {
	tb.Helper()
	tokens := store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32))
	require.NoError(tb, tokens.Learn("here", time.Now()))
	return tokens
}
