package edge

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/http/api"
	"takt/store/tracing"
)

// trace begins the span of a request that may be served, and returns what ends it. A
// request of a route with a root is in a trace of its own, and only linked to its client's.
// Others continue the trace of their client if proven says that they have shown a
// key that is right: strangers must not decide what is sampled, nor add spans to a trace.
// Nor do requests with a token that is not checked yet. Probes, pages and
// assets have no span.
func (r *Route) trace(c echo.Context, proven bool, start time.Time) (end func()) {
	req := c.Request()
	if !tracing.On() || r.Class == api.Ops && r.Access != api.AdminKey {
		return func() {}
	}
	ctx := req.Context()
	if proven {
		ctx = tracing.Below(ctx, req.Header.Get(tracing.Header))
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(start), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(req.Method), semconv.HTTPRoute(r.Path))}
	if r.Root != nil {
		if client := trace.LinkFromContext(ctx); client.SpanContext.IsValid() {
			options = append(options, trace.WithLinks(client))
		}
		ctx = r.Root(ctx)
	}
	ctx, span := tracing.Start(ctx, trace.SpanKindServer, req.Method+" "+r.Path, options...)
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
