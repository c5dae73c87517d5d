package tracing

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"takt/store"
)

//nolint:gochecknoglobals // one process has one tracer
var current atomic.Pointer[trace.Tracer]

// Use makes spans with p from now on; nil ends that. p must make its ids with [IDs].
func Use(p trace.TracerProvider) {
	if p == nil {
		current.Store(nil)
		return
	}
	t := p.Tracer("takt")
	current.Store(&t)
}

// On reports whether spans are made. Callers that compute options for spans ask it first.
func On() bool { return current.Load() != nil }

// Start begins a span below that of ctx, or a new trace. The caller ends it with [End].
// While spans are not made, or the trace is not sampled, it returns ctx.
func Start(ctx context.Context, kind trace.SpanKind, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	t := current.Load()
	if t == nil {
		return ctx, noop.Span{}
	}
	if above := trace.SpanContextFromContext(ctx); above.IsValid() && !above.IsSampled() && !above.IsRemote() {
		return ctx, noop.Span{}
	}
	return (*t).Start(ctx, name, append(options, trace.WithSpanKind(kind))...)
}

// Together begins the span of work that several requests share: below the first one that
// is sampled, and linked to the others, because a span has one parent.
func Together(ctx context.Context, name string, requests []trace.SpanContext) (context.Context, trace.Span) {
	if !On() {
		return ctx, noop.Span{}
	}
	var links []trace.Link
	for _, r := range requests {
		if r.IsSampled() {
			links = append(links, trace.Link{SpanContext: r})
		}
	}
	if len(links) > 0 {
		ctx = trace.ContextWithSpanContext(ctx, links[0].SpanContext)
		links = links[1:]
	}
	return Start(ctx, trace.SpanKindInternal, name, trace.WithLinks(links...), trace.WithAttributes(attribute.Int("takt.batch.size", len(requests))))
}

// End ends a span and records whether it failed, with the kind of err but not its text.
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(semconv.ErrorTypeKey.String(kindOf(err)))
	}
	span.End()
}

// kindOf returns the stable code of an error, or else the name of its type.
func kindOf(err error) string {
	if known, ok := errors.AsType[*store.Error](err); ok {
		return string(known.Code)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return semconv.ErrorType(err).Value.AsString()
}

// ID returns the id of ctx's trace, in hexadecimal, for log lines and exemplars. It
// returns "" unless the trace is sampled.
func ID(ctx context.Context) string {
	if s := trace.SpanContextFromContext(ctx); s.IsSampled() {
		return s.TraceID().String()
	}
	return ""
}

// Header is the header that carries a span's ids (W3C Trace Context).
const Header = "traceparent"

// Traceparent returns ctx's span as the header's value, or "".
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[Header]
}

// Below returns a context in which spans are below the one that traceparent names.
// Anything that is no valid traceparent changes nothing.
func Below(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: traceparent})
}
