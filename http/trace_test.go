package http_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"takt/http/api"
	"takt/store/tracing"
)

// Requests have spans: a client's with a key in its trace, a submit in that of its build, too; a
// worker's calls below what their traceparent names; those of unknown clients in traces of their own.
func TestSpansOfRequests(t *testing.T) {
	kept := tracetest.NewSpanRecorder()
	tracing.Use(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(kept), sdktrace.WithIDGenerator(tracing.IDs{})))
	defer tracing.Use(nil)
	b := setup(t)
	ended := func(name string) sdktrace.ReadOnlySpan {
		var found sdktrace.ReadOnlySpan
		require.Eventually(t, func() bool { // a span ends after its reply
			for _, s := range kept.Ended() {
				if s.Name() == name {
					found = s
				}
			}
			return found != nil
		}, waitFor, tick, name)
		kept.Reset()
		return found
	}
	const client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	clientTrace, clientSpan := client[3:35], client[36:52]

	r := b.form("/api/builds", key("traceparent", client), source("zip"), part{name: "platform", content: "ios"})
	require.Equal(t, 201, r.status, r.body)
	id := decode[api.Submitted](t, r).ID
	submit := ended("submit")
	require.Equal(t, tracing.BuildID(id), submit.SpanContext().TraceID().String())
	require.Equal(t, tracing.Traceparent(tracing.Build(t.Context(), id, 0))[36:52], submit.Parent().SpanID().String())
	require.Len(t, submit.Links(), 1)
	require.Equal(t, clientTrace, submit.Links()[0].SpanContext.TraceID().String())
	require.Equal(t, 400, b.form("/api/builds", key(), source("zip"), part{name: "platform", content: "none"}).status)
	require.Equal(t, codes.Error, ended("submit").Status().Code)

	require.Equal(t, 200, b.send("GET", "/api/builds/"+id+"/status?secret=s3cret", key("traceparent", client), "").status)
	status := ended("GET /api/builds/:id/status")
	require.Equal(t, []string{clientTrace, clientSpan}, []string{status.SpanContext().TraceID().String(), status.Parent().SpanID().String()})
	said := map[string]string{}
	for _, a := range status.Attributes() {
		said[string(a.Key)] = a.Value.String()
	}
	require.Equal(t, map[string]string{
		"http.request.method": "GET", "http.route": "/api/builds/:id/status", "http.response.status_code": "200",
	}, said)

	// An unknown client neither joins a trace nor decides what is sampled, and one without the
	// key leaves no span.
	require.Equal(t, 200, b.send("GET", "/api/stats", map[string]string{"traceparent": client}, "").status)
	require.NotEqual(t, clientTrace, ended("GET /api/stats").SpanContext().TraceID().String())
	require.Equal(t, 403, b.send("GET", "/api/builds/"+id+"/status", map[string]string{"X-Build-Token": "junk", "traceparent": client}, "").status)
	require.NotEqual(t, clientTrace, ended("GET /api/builds/:id/status").SpanContext().TraceID().String())
	require.Equal(t, 403, b.send("POST", "/api/builds/"+id+"/retry", map[string]string{"X-Build-Token": "junk", "traceparent": client}, "").status)
	require.NotEqual(t, clientTrace, ended("POST /api/builds/:id/retry").SpanContext().TraceID().String())
	require.Equal(t, 401, b.send("GET", "/api/builds", map[string]string{"traceparent": client}, "").status)
	require.Equal(t, 200, b.send("GET", "/livez", nil, "").status)

	// The job says what its worker's calls are below. The old client ignores it.
	reg := decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":{}}`))
	poll := decode[api.PollReply](t, b.send("POST", "/api/workers/poll", key("X-Worker-Token", reg.AccessToken), ""))
	require.Equal(t, tracing.Traceparent(tracing.Build(t.Context(), id, 1)), poll.Job.Traceparent)
	ended("POST /api/workers/poll")
	for _, s := range kept.Ended() {
		require.NotContains(t, []string{"GET /api/builds", "GET /livez"}, s.Name())
	}
	require.WithinDuration(t, time.Now(), submit.StartTime(), time.Minute)
}

// Without a collector a job says nothing of traces, as before.
func TestJobsWithoutTraces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.submit()
	reg := decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":{}}`))
	r := b.send("POST", "/api/workers/poll", key("X-Worker-Token", reg.AccessToken), "")
	require.Contains(t, r.body, `"source_url"`)
	require.NotContains(t, r.body, "traceparent")
}
