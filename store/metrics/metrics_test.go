package metrics_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"takt/store/metrics"
)

// An observation fills classic and native buckets, and names its trace if somebody keeps
// that.
func TestObserve(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	id := trace.TraceID{1, 2, 3}
	in := func(flags trace.TraceFlags) context.Context {
		return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{4}, TraceFlags: flags}))
	}
	to := m.ConnectionWait.WithLabelValues()
	metrics.Observe(t.Context(), to, 2*time.Millisecond)
	metrics.Observe(in(0), to, 20*time.Millisecond)
	metrics.Observe(in(trace.FlagsSampled), to, 200*time.Millisecond)
	metrics.Observe(t.Context(), to, -time.Second) // of two clocks

	var out dto.Metric
	require.NoError(t, to.(prometheus.Metric).Write(&out)) // client_golang promises it
	h := out.GetHistogram()
	require.EqualValues(t, 4, h.GetSampleCount())
	require.InDelta(t, .222, h.GetSampleSum(), 1e-9)
	require.NotEmpty(t, h.GetPositiveSpan(), "native buckets")
	var traced []string
	for _, b := range h.GetBucket() {
		for _, l := range b.GetExemplar().GetLabel() {
			traced = append(traced, l.GetName()+" "+l.GetValue())
		}
	}
	require.Equal(t, []string{"trace_id " + id.String()}, traced)
}
