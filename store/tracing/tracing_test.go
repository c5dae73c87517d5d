package tracing_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/tracing"
)

// record makes spans until the test ends and returns what keeps them.
func record(t *testing.T, options ...sdktrace.TracerProviderOption) *tracetest.SpanRecorder {
	t.Helper()
	kept := tracetest.NewSpanRecorder()
	tracing.Use(sdktrace.NewTracerProvider(append(options, sdktrace.WithSpanProcessor(kept), sdktrace.WithIDGenerator(tracing.IDs{}))...))
	t.Cleanup(func() { tracing.Use(nil) })
	return kept
}

// Without a collector nothing is made: what stands on the way of each poll allocates
// nothing.
func TestOffCostsNothing(t *testing.T) {
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		ctx, span := tracing.Start(ctx, trace.SpanKindInternal, "wait for a place")
		if span.IsRecording() {
			t.Error("recording")
		}
		tracing.End(span, errOf)
		ctx = tracing.Build(tracing.Below(ctx, ""), "b", 1)
		if tracing.On() || tracing.ID(ctx)+tracing.BuildID("b") != "" || tracing.Traceparent(ctx) != "" {
			t.Error("on")
		}
		tracing.Changed(store.BuildUpdate{State: store.Failed})
	}))
	// A job's ids are passed on nevertheless, because the controller may make spans.
	const sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	require.Equal(t, sent, tracing.Traceparent(tracing.Below(ctx, sent)))
	for _, bad := range []string{"x", sent[:20], strings.Replace(sent, "00-", "ff-", 1), "00-" + strings.Repeat("0", 32) + sent[35:]} {
		require.Empty(t, tracing.Traceparent(tracing.Below(ctx, bad)), bad)
	}
}

var errOf = errors.New("an error")

// The ids of a build's spans follow from its id, and all others are new.
func TestIDsOfABuild(t *testing.T) {
	parents := func() (out []string) {
		record(t)
		for _, attempt := range []int{0, 1, 2} {
			out = append(out, tracing.Traceparent(tracing.Build(t.Context(), "b1", attempt)))
		}
		return append(out, tracing.Traceparent(tracing.Build(t.Context(), "b2", 0)))
	}
	first := parents()
	require.Equal(t, first, parents(), "after a restart, or at another controller")
	require.Equal(t, first[0][:35], first[1][:35], "one trace")
	seen := map[string]bool{}
	for _, p := range first {
		require.Regexp(t, "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$", p)
		require.False(t, seen[p])
		seen[p] = true
	}
	kept := record(t)
	ctx := tracing.Build(t.Context(), "b1", 1)
	for range 2 {
		_, span := tracing.Start(ctx, trace.SpanKindInternal, "step")
		span.End()
	}
	steps := kept.Ended()
	require.Len(t, steps, 2)
	require.NotEqual(t, steps[0].SpanContext().SpanID(), steps[1].SpanContext().SpanID())
}

// A trace that is not sampled makes no spans anywhere below it, and no new traces.
func TestUnsampledTraces(t *testing.T) {
	kept := record(t, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0))))
	ctx, request := tracing.Start(t.Context(), trace.SpanKindServer, "GET /")
	below, span := tracing.Start(ctx, trace.SpanKindInternal, "inside")
	require.Equal(t, ctx, below)
	require.Empty(t, tracing.ID(below))
	span.End()
	request.End()
	require.Equal(t, "00", tracing.Traceparent(tracing.Build(t.Context(), "b1", 1))[53:])
	require.Empty(t, kept.Ended())
}

// Spans of calls to strangers hold neither queries nor credentials nor what errors say,
// and the stranger gets no ids.
func TestOutgoingCallsKeepSecrets(t *testing.T) {
	kept := record(t)
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	call := func(url string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, http.NoBody)
		require.NoError(t, err)
		req.SetBasicAuth("user", "s3cret")
		resp, err := tracing.Outgoing(http.DefaultTransport).RoundTrip(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	require.NoError(t, call(strings.Replace(server.URL, "//", "//user:s3cret@", 1)+"/path?token=s3cret"))
	require.Empty(t, (<-headers).Get(tracing.Header))
	require.Error(t, call("http://127.0.0.1:1/s?s3cret"))
	spans := kept.Ended()
	require.Len(t, spans, 2)
	said := map[string]string{}
	for _, s := range spans {
		require.Equal(t, "PUT", s.Name())
		require.Equal(t, "Error", s.Status().Code.String())
		require.Empty(t, s.Status().Description)
		require.Empty(t, s.Events())
		for _, a := range s.Attributes() {
			require.NotContains(t, a.Value.String(), "s3cret")
			said[string(a.Key)] = a.Value.String()
		}
	}
	require.Contains(t, said, "http.request.method")
	require.Equal(t, "418", said["http.response.status_code"])
	require.Equal(t, "127.0.0.1", said["server.address"])
}

// An error is known by its kind.
func TestKindsOfErrors(t *testing.T) {
	for want, err := range map[string]error{
		"unavailable": store.NewUnavailable("s3cret", errOf), "canceled": context.Canceled, "timeout": context.DeadlineExceeded,
		"*errors.errorString": errOf,
	} {
		kept := record(t)
		_, span := tracing.Start(t.Context(), trace.SpanKindInternal, "x")
		tracing.End(span, err)
		attributes := kept.Ended()[0].Attributes()
		require.Len(t, attributes, 1)
		require.Equal(t, want, attributes[0].Value.String())
	}
}
