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

// trace begins the span of a request, and returns a function that ends it. It continues the
// client's trace, if proven is true: the request has sent a right key. Other clients, whose token
// may not be checked yet, must not decide what is sampled, nor add spans to a trace. Probes, pages
// and assets have no span.
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
