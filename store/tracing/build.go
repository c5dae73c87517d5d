package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
)

// IDs makes the ids of spans: random ones, and those of builds and attempts.
type IDs struct{}

// derived are the ids of the span of a build or of an attempt.
type derived struct {
	trace trace.TraceID
	span  trace.SpanID
}

// derivedKey is the key under which the context of a span's start holds its derived ids.
type derivedKey struct{}

// derive returns the ids of an attempt of a build, or of the build itself if attempt is 0.
func derive(build string, attempt int) (d derived) {
	sum := sha256.Sum256([]byte("takt build " + build))
	copy(d.trace[:], sum[:])
	copy(d.span[:], sum[len(d.trace):])
	if attempt > 0 {
		sum = sha256.Sum256(fmt.Appendf(nil, "takt build %s attempt %d", build, attempt))
		copy(d.span[:], sum[:])
	}
	return d
}

// NewIDs returns the ids of a trace's first span.
func (i IDs) NewIDs(ctx context.Context) (t trace.TraceID, s trace.SpanID) {
	if d, ok := ctx.Value(derivedKey{}).(derived); ok {
		return d.trace, d.span
	}
	binary.NativeEndian.PutUint64(t[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(t[8:], 1+rand.Uint64N(1<<64-1))
	return t, i.NewSpanID(ctx, t)
}

// NewSpanID returns the id of a further span.
func (IDs) NewSpanID(ctx context.Context, _ trace.TraceID) (s trace.SpanID) {
	if d, ok := ctx.Value(derivedKey{}).(derived); ok {
		return d.span
	}
	binary.NativeEndian.PutUint64(s[:], 1+rand.Uint64N(1<<64-1))
	return s
}

// IsDerived reports whether ctx starts the span of a build or of an attempt.
func IsDerived(ctx context.Context) bool { return ctx.Value(derivedKey{}) != nil }

// Build returns a context in which spans are below those of a build or, with an attempt
// above 0, of that attempt. These spans themselves are recorded when they have ended.
func Build(ctx context.Context, id string, attempt int) context.Context {
	t := current.Load()
	if t == nil {
		return ctx
	}
	// The span only tells what the sampler decides. It never ends, so it is not exported.
	_, root := (*t).Start(context.WithValue(ctx, derivedKey{}, derive(id, 0)), "", trace.WithNewRoot())
	above := root.SpanContext()
	if attempt > 0 {
		above = above.WithSpanID(derive(id, attempt).span)
	}
	return trace.ContextWithSpanContext(ctx, above)
}

// Submit calls f in the span of a submit, in the trace of its build. It is linked to the request.
func Submit(ctx context.Context, id string, f func(ctx context.Context) error) error {
	if !On() {
		return f(ctx)
	}
	ctx, span := Start(Build(ctx, id, 0), trace.SpanKindInternal, "submit", trace.WithLinks(trace.LinkFromContext(ctx)))
	err := f(ctx)
	End(span, err)
	return err
}

// BuildID returns the id of a build's trace, in hexadecimal, for log lines about it. It
// returns "" unless the trace is sampled.
func BuildID(id string) string {
	if !On() {
		return ""
	}
	return ID(Build(outside(), id, 0))
}

// outside is the context of what happens outside of a request.
func outside() context.Context {
	return context.Background() //nolint:forbidigo // a build's trace depends on its id alone
}

// ended records a span of a build with its derived ids, below that of ctx.
func ended(ctx context.Context, d derived, name string, from, to time.Time, failed bool, options ...trace.SpanStartOption) {
	t := current.Load()
	if t == nil || from.IsZero() {
		return
	}
	_, span := (*t).Start(context.WithValue(ctx, derivedKey{}, d), name, append(options, trace.WithTimestamp(from))...)
	if failed {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(to))
}

// Changed records what the change of a build has ended: the attempt, if a worker held the
// build, and the build itself, if its state is final. Attempts are linked to the attempt
// before.
func Changed(u store.BuildUpdate) {
	if !On() || u.State.Held() || u.Was.SubmittedAt.IsZero() {
		return
	}
	ctx, now := outside(), time.Now()
	build := Build(ctx, u.BuildID, 0)
	if !trace.SpanContextFromContext(build).IsSampled() {
		return
	}
	// The database's clock has set these times, and may be ahead of this machine's.
	now = slices.MaxFunc([]time.Time{now, u.Was.SubmittedAt, u.Was.StartedAt}, time.Time.Compare)
	run := []attribute.KeyValue{semconv.CICDPipelineName(string(u.Platform)), semconv.CICDPipelineRunID(u.BuildID)}
	if !u.Was.StartedAt.IsZero() {
		options := []trace.SpanStartOption{
			trace.WithAttributes(run...),
			trace.WithAttributes(
				semconv.CICDPipelineTaskName("attempt"), semconv.CICDPipelineTaskRunID(strconv.Itoa(u.Was.Attempt)),
				semconv.CICDWorkerID(u.Was.WorkerID), semconv.CICDPipelineTaskRunResultKey.String(resultOf(u.State)),
			),
		}
		if u.Was.Attempt > 1 {
			before := trace.SpanContextFromContext(Build(ctx, u.BuildID, u.Was.Attempt-1))
			options = append(options, trace.WithLinks(trace.Link{SpanContext: before}))
		}
		ended(build, derive(u.BuildID, u.Was.Attempt), "attempt", u.Was.StartedAt, now, u.State != store.Completed, options...)
	}
	if u.State.Final() {
		ended(ctx, derive(u.BuildID, 0), "BUILD "+string(u.Platform), u.Was.SubmittedAt, now, u.State != store.Completed,
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(run...),
			trace.WithAttributes(semconv.CICDPipelineActionNameBuild, semconv.CICDPipelineResultKey.String(resultOf(u.State))))
	}
}

// resultOf returns the result of an attempt, in the words of the semantic conventions. An
// attempt whose build is pending again was lost.
func resultOf(s store.BuildState) string {
	switch s {
	case store.Completed:
		return semconv.CICDPipelineResultSuccess.Value.AsString()
	case store.Cancelled:
		return semconv.CICDPipelineResultCancellation.Value.AsString()
	case store.Pending:
		return semconv.CICDPipelineResultError.Value.AsString()
	default:
		return semconv.CICDPipelineResultFailure.Value.AsString()
	}
}
