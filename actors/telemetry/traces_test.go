package telemetry_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"takt/actors/pubsub"
	"takt/actors/telemetry"
	"takt/store"
	"takt/store/metrics"
	"takt/store/tracing"
	"takt/store/tracing/tracingtest"
)

// open makes the spans of this process go to an address.
func open(t *testing.T, at string) (*telemetry.Traces, *metrics.Metrics) {
	t.Helper()
	m := metrics.New()
	traces, err := telemetry.OpenTraces(t.Context(), telemetry.TracesConfig{Endpoint: at, Service: "takt", Metrics: m, Logger: zerolog.Nop()})
	require.NoError(t, err)
	return traces, m
}

// The requests under way show that a part of the tree was restarted, and a build's life
// is in its trace, whichever process records it.
func TestTracesOfRestartsAndBuilds(t *testing.T) {
	collector := tracingtest.Start(t)
	traces, m := open(t, collector.Endpoint)
	restart := func(event string) {
		traces.Take(pubsub.Event{Topic: pubsub.SupervisorEvent, Data: telemetry.SupervisorEvent{Event: event, Path: "takt/heijunka", Restarts: 2, At: time.Now()}})
	}
	ctx, request := tracing.Start(t.Context(), trace.SpanKindServer, "GET /a")
	_, done := tracing.Start(t.Context(), trace.SpanKindServer, "GET /b")
	done.End()
	_, inside := tracing.Start(ctx, trace.SpanKindInternal, "inside")
	restart("exit")
	restart("restarting")
	inside.End()
	request.End()

	submitted := time.Now().Add(-time.Minute)
	update := func(state store.BuildState, attempt int, began time.Time) {
		traces.Take(pubsub.Event{Topic: pubsub.BuildUpdated, Data: store.BuildUpdate{BuildID: "b1", Platform: store.IOS, State: state, Was: store.BuildRef{
			SubmittedAt: submitted, Attempt: attempt, WorkerID: "w1", StartedAt: began,
		}}})
	}
	update(store.Pending, 1, submitted.Add(time.Second))
	update(store.Building, 2, submitted.Add(2*time.Second))
	update(store.Failed, 2, submitted.Add(2*time.Second))
	_, step := tracing.Start(tracing.Below(t.Context(), tracing.Traceparent(tracing.Build(t.Context(), "b1", 2))), trace.SpanKindInternal, "step")
	step.End()
	traces.Close(t.Context())
	require.False(t, tracing.On())

	spans, _ := collector.Spans()
	require.Len(t, spans, 7)
	require.InDelta(t, 7, figure(t, m.SpansSent.WithLabelValues()), 0)
	events := map[string]int{}
	byName := map[string][]tracingtest.Span{}
	for _, s := range spans {
		events[s.Name] = len(s.Events)
		byName[s.Name] = append(byName[s.Name], s)
	}
	require.Equal(t, map[string]int{"GET /a": 1, "GET /b": 0, "inside": 0, "attempt": 0, "BUILD ios": 0, "step": 0}, events)
	event := byName["GET /a"][0].Events[0]
	require.Equal(t, "restart", event.Name)
	require.Equal(t, "takt/heijunka", event.Attributes.Get("takt.process.path"))

	build, attempts := byName["BUILD ios"][0], byName["attempt"]
	require.Equal(t, submitted.UnixNano(), build.Begin)
	require.Equal(t, "failure", build.Attributes.Get("cicd.pipeline.result"))
	require.Equal(t, "b1", build.Attributes.Get("cicd.pipeline.run.id"))
	for i, result := range []string{"error", "failure"} {
		require.Equal(t, []string{build.Trace, build.ID}, []string{attempts[i].Trace, attempts[i].Parent})
		require.Equal(t, result, attempts[i].Attributes.Get("cicd.pipeline.task.run.result"))
	}
	require.Equal(t, attempts[0].ID, attempts[1].Links[0].Span)
	require.Equal(t, attempts[1].ID, byName["step"][0].Parent)
}

// A sampler that decides by the trace decides alike about all spans of a build, in every
// process.
func TestSamplingOfBuilds(t *testing.T) {
	collector := tracingtest.Start(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.1")
	var decided [2][]string
	for i := range decided { // two processes, as it were
		traces, _ := open(t, collector.Endpoint)
		for n := range 1000 {
			ctx := tracing.Build(t.Context(), "build-"+strconv.Itoa(n), 1)
			_, span := tracing.Start(ctx, trace.SpanKindInternal, "step")
			require.Equal(t, tracing.ID(ctx) != "", span.IsRecording())
			span.End()
			require.NotEmpty(t, tracing.Traceparent(ctx), "the worker is told not to sample, too")
			decided[i] = append(decided[i], tracing.ID(ctx))
		}
		traces.Close(t.Context())
	}
	require.Equal(t, decided[0], decided[1])
	sampled := len(slices.DeleteFunc(decided[0], func(id string) bool { return id == "" }))
	require.InDelta(t, 100, sampled, 50)
	spans, _ := collector.Spans()
	require.Len(t, spans, 2*sampled)
}

// A collector that does not answer costs no request any time: what does not fit is
// dropped and counted, and the end waits only so long.
func TestTracesNeverBlock(t *testing.T) {
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(stuck)
	traces, m := open(t, server.URL)
	const n = 20_000
	begun := time.Now()
	for range n {
		_, span := tracing.Start(t.Context(), trace.SpanKindInternal, "x")
		span.End()
	}
	// Each 512 spans would take 10 s, if they waited for the collector.
	require.Less(t, time.Since(begun), 2*time.Minute)
	full := figure(t, m.SpansDropped.WithLabelValues("full"))
	require.Positive(t, full)
	require.GreaterOrEqual(t, full+figure(t, m.SpansDropped.WithLabelValues("refused")), float64(n-8192), "so many wait at most")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil) // a stop outlives the context of what is stopped
	begun = time.Now()
	traces.Close(ctx)
	require.Less(t, time.Since(begun), time.Minute)
	require.Zero(t, figure(t, m.SpansSent.WithLabelValues()))
	lost := full + figure(t, m.SpansDropped.WithLabelValues("refused"))
	require.InDelta(t, n, lost, 0, "Close leaves nothing behind that goes on sending")
}

// What a collector refuses, or what can't reach one, is counted as well.
func TestSpansThatAreRefusedAreCounted(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusing := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})}
	go refusing.Serve(ln)  //nolint:errcheck // it is closed below
	defer refusing.Close() // a listener's
	traces, m := open(t, "http://"+ln.Addr().String())
	for range 3 {
		_, span := tracing.Start(t.Context(), trace.SpanKindInternal, "x")
		span.End()
	}
	traces.Close(t.Context())
	require.InDelta(t, 3, figure(t, m.SpansDropped.WithLabelValues("refused")), 0)
}

// figure returns the value of a counter.
func figure(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	require.NoError(t, c.Write(&out))
	return out.GetCounter().GetValue()
}
