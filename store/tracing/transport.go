package tracing

import (
	"net/http"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Outgoing returns base with a span for each request, until its reply begins. Servers of
// strangers learn nothing of our traces.
func Outgoing(base http.RoundTripper) http.RoundTripper { return transport{base} }

type transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	_, span := Start(req.Context(), trace.SpanKindClient, req.Method)
	if span.IsRecording() {
		span.SetAttributes(requestAttributes(req)...)
	}
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil && span.IsRecording() {
		span.SetAttributes(semconv.HTTPResponseStatusCode(resp.StatusCode))
		if resp.StatusCode >= http.StatusBadRequest {
			span.SetStatus(codes.Error, "")
			span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(resp.StatusCode)))
		}
	}
	End(span, err)
	return resp, err
}

// CloseIdleConnections is what [http.Client] looks for.
func (t transport) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// requestAttributes describes a request without its query, which may hold secrets.
func requestAttributes(req *http.Request) []attribute.KeyValue {
	at := url.URL{Scheme: req.URL.Scheme, Host: req.URL.Host, Path: req.URL.Path}
	attributes := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(req.Method), semconv.URLFull(at.String()), semconv.ServerAddress(req.URL.Hostname()),
	}
	if port, err := strconv.Atoi(req.URL.Port()); err == nil {
		attributes = append(attributes, semconv.ServerPort(port))
	}
	return attributes
}
