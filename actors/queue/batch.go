package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/metrics"
	"takt/store/tracing"
)

// batch is a group of polls that share a transaction. The actor makes it, a goroutine
// serves it, and the actor takes it back. Meanwhile only that goroutine uses it.
type batch struct {
	polls   []*poll
	work    []store.Poll       // by the index of polls
	results []store.PollResult // by the index of polls
	seen    seen               // when the batch was made
	// crowded is true if another batch was running at the same time. Actor only.
	crowded bool
	// done is closed after all polls with a final result were answered.
	done   chan struct{}
	outage error // the last error that means an outage of the database; nil if there is none
}

// final reports whether r answers p. Otherwise p parks or is postponed.
func final(p *poll, r *store.PollResult) bool {
	return r.Outcome != store.PollLocked && (r.Outcome != store.PollServed || len(r.Jobs) > 0 || p.wait == 0)
}

// serve serves the batch's polls and answers them as soon as their transaction has
// committed, even if the actor has failed meanwhile. It runs in the batch's goroutine.
func (b *batch) serve(ctx context.Context, q *Queue) {
	defer close(b.done)
	begun := time.Now()
	ctx, span := b.start(ctx)
	results, err := q.db.Assign(ctx, b.work)
	tracing.End(span, err)
	q.cfg.Metrics.Batch.WithLabelValues().Observe(float64(len(b.work)))
	metrics.Observe(ctx, q.cfg.Metrics.Transaction.WithLabelValues(), time.Since(begun))
	if err == nil && len(results) != len(b.work) {
		err = fmt.Errorf("serving %d polls: %d results", len(b.work), len(results))
	}
	if err != nil {
		results = slices.Repeat([]store.PollResult{{Outcome: store.PollFailed, Err: err}}, len(b.work))
	}
	b.results = results
	b.count(q)
	if tracing.On() {
		b.trace(ctx, begun)
	}
	for i, p := range b.polls {
		if r := &b.results[i]; final(p, r) {
			p.answer(q.answer(r))
		}
	}
}

// newJobs returns the builds of r that were not handed out before.
func newJobs(r *store.PollResult) store.Jobs {
	if r.Redelivered {
		return nil
	}
	return r.Jobs
}

// start begins the span of the batch.
func (b *batch) start(ctx context.Context) (context.Context, trace.Span) {
	if !tracing.On() {
		return ctx, trace.SpanFromContext(ctx)
	}
	requests := make([]trace.SpanContext, len(b.polls))
	for i, p := range b.polls {
		if p.span != nil {
			requests[i] = p.span.SpanContext()
		}
	}
	return tracing.Together(ctx, "assign batch", requests)
}

// trace records, in the traces of the builds that were handed out, how long each waited
// and that this batch assigned it.
func (b *batch) trace(ctx context.Context, begun time.Time) {
	assigned := trace.WithLinks(trace.LinkFromContext(ctx))
	for i := range b.results {
		r := &b.results[i]
		for _, job := range newJobs(r) {
			about := trace.WithAttributes(
				semconv.CICDPipelineRunID(job.BuildID), semconv.CICDPipelineName(string(job.Platform)),
				semconv.CICDPipelineTaskRunID(strconv.Itoa(job.Attempt)), semconv.CICDWorkerID(r.Session.ID))
			_, wait := tracing.Start(tracing.Build(ctx, job.BuildID, 0), trace.SpanKindInternal, "wait",
				trace.WithTimestamp(job.PendingSince), about)
			tracing.End(wait, nil)
			_, assign := tracing.Start(tracing.Build(ctx, job.BuildID, job.Attempt), trace.SpanKindInternal, "assign",
				trace.WithTimestamp(begun), assigned, about)
			tracing.End(assign, nil)
		}
	}
}

// count counts the batch's results. It also subtracts the assigned builds from the shown
// numbers of pending builds, because the actor does so only after the replies are sent.
func (b *batch) count(q *Queue) {
	g := &q.gauge
	g.batches.Add(1)
	g.polls.Add(int64(len(b.polls)))
	for i := range b.results {
		r := &b.results[i]
		switch {
		case r.Outcome == store.PollFailed:
			g.failed.Add(1)
			if isOutage(r.Err) {
				b.outage = r.Err
			}
		case r.Redelivered:
			g.redelivered.Add(int64(len(r.Jobs)))
		}
		for _, job := range newJobs(r) {
			g.assigned.Add(1)
			for _, c := range g.shown() {
				if n := c.shown.Load(); n > 0 && c.ID == job.ClassID {
					c.shown.CompareAndSwap(n, n-1)
				}
			}
		}
	}
}

// answer returns the answer to the poll with the result r.
func (q *Queue) answer(r *store.PollResult) answer {
	switch r.Outcome {
	case store.PollServed:
		s := &r.Session
		a := answer{
			PollReply: store.PollReply{Jobs: r.Jobs, Redelivered: r.Redelivered, QueueSize: q.gauge.pendingOf(s)},
			next:      store.WorkerToken{Worker: s.Number, Counter: max(s.Used+1, r.Handed)},
		}
		if len(r.Jobs) == 0 && s.Free() {
			a.QueueSize = 0 // the transaction found no build that the worker can take
		}
		return a
	case store.PollInvalidToken:
		return answer{err: store.ErrInvalidToken()}
	case store.PollDuplicateWorker:
		return answer{err: store.ErrDuplicateWorker()}
	case store.PollUnknownWorker:
		return answer{err: store.NewError(store.NotFound, "Worker not found")}
	case store.PollFailed:
		if isOutage(r.Err) && store.CodeOf(r.Err) != store.Unavailable {
			return answer{err: store.NewUnavailable("Database is too slow, try again", r.Err)}
		}
		return answer{err: r.Err}
	case store.PollSuperseded, store.PollLocked:
	}
	return answer{PollReply: store.PollReply{QueueSize: q.gauge.pendingOf(&r.Session)}}
}
