package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/tracing"
)

// submissionKey is the key under which a request's context holds the id of the build that
// it may make.
type submissionKey struct{}

// submissionID returns the id for a request's new build.
func submissionID(ctx context.Context) string {
	if id, ok := ctx.Value(submissionKey{}).(string); ok {
		return id
	}
	return store.NewID()
}

// submits reports whether a request of this route may make a build.
func (r *route) submits(method string) bool {
	switch r.path {
	case "/api/builds", "/api/builds/submit", "/api/builds/:id/retry":
		return method == http.MethodPost
	}
	return false
}

// trace begins the span of a request that may be served, and returns what ends it. A
// request that may make a build is in the trace of that build, and only linked to its
// client's. Others continue the trace of their client if proven says that they have shown a
// key that is right: strangers must not decide what is sampled, nor add spans to a trace.
// Nor do requests with a build's token, because it is not checked yet. Probes, pages and
// assets have no span.
func (r *route) trace(c echo.Context, proven bool, start time.Time) (end func()) {
	req := c.Request()
	if !tracing.On() || r.domain == ops && r.access != adminKey {
		return func() {}
	}
	ctx := req.Context()
	if proven {
		ctx = tracing.Below(ctx, req.Header.Get(tracing.Header))
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(start), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(req.Method), semconv.HTTPRoute(r.path))}
	if r.submits(req.Method) {
		if client := trace.LinkFromContext(ctx); client.SpanContext.IsValid() {
			options = append(options, trace.WithLinks(client))
		}
		id := store.NewID()
		ctx = context.WithValue(tracing.Build(ctx, id, 0), submissionKey{}, id)
	}
	ctx, span := tracing.Start(ctx, trace.SpanKindServer, req.Method+" "+r.path, options...)
	c.SetRequest(req.WithContext(ctx))
	return func() {
		if span.IsRecording() {
			status := c.Response().Status
			span.SetAttributes(semconv.HTTPResponseStatusCode(status))
			if status >= http.StatusInternalServerError {
				span.SetStatus(codes.Error, "")
				span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
			}
		}
		span.End()
	}
}
