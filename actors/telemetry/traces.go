package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/metrics"
	"takt/store/tracing"
)

const (
	// maxSpans is how many ended spans may wait for the collector. Further ones are dropped.
	maxSpans = 8192
	// sendTimeout bounds one request to the collector, with its repeats.
	sendTimeout = 10 * time.Second
	// flushTimeout is how long Close may take to send the waiting spans.
	flushTimeout = 5 * time.Second
)

// TracesConfig says where spans go. The SDK reads the rest from the standard variables,
// such as OTEL_EXPORTER_OTLP_HEADERS and OTEL_TRACES_SAMPLER.
type TracesConfig struct {
	// Endpoint is the collector's URL without /v1/traces. "" leaves it to the SDK.
	Endpoint string
	// Service and Version name this program.
	Service, Version string
	Metrics          *metrics.Metrics
	Logger           zerolog.Logger
}

// Traces sends spans to a collector (OTLP over HTTP). It never delays work: spans that
// the collector does not accept in time are dropped and counted.
type Traces struct {
	cfg      TracesConfig
	provider *sdktrace.TracerProvider
	exporter sdktrace.SpanExporter
	waiting  atomic.Int64 // spans that have ended and are not sent
	failing  atomic.Bool  // the collector did not accept the last ones
	late     atomic.Bool  // Close has stopped sending

	mu       sync.Mutex // guards requests
	requests map[trace.SpanID]sdktrace.ReadWriteSpan
}

// OpenTraces makes this process's spans go to a collector until Close. It does not connect.
func OpenTraces(ctx context.Context, cfg TracesConfig) (*Traces, error) {
	var options []otlptracehttp.Option
	if cfg.Endpoint != "" {
		at, err := url.JoinPath(cfg.Endpoint, "v1/traces")
		if err != nil {
			return nil, fmt.Errorf("address of the collector: %w", err)
		}
		options = append(options, otlptracehttp.WithEndpointURL(at))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("opening traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(cfg.Service), semconv.ServiceVersion(cfg.Version), semconv.ServiceInstanceID(store.NewID())),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("opening traces: %w", err)
	}
	t := &Traces{cfg: cfg, exporter: exporter, requests: map[trace.SpanID]sdktrace.ReadWriteSpan{}}
	queue := sdktrace.NewBatchSpanProcessor(outlet{exporter, t}, sdktrace.WithMaxQueueSize(maxSpans), sdktrace.WithExportTimeout(sendTimeout))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn().Err(err).Msg("tracing failed") }))
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(tracing.IDs{}), sdktrace.WithResource(about), sdktrace.WithSpanProcessor(inlet{queue, t}))
	tracing.Use(t.provider)
	return t, nil
}

// Close sends the waiting spans, for at most 5 s, and ends tracing. Nothing is sent
// after it has returned. It may be nil.
func (t *Traces) Close(ctx context.Context) {
	if t == nil {
		return
	}
	tracing.Use(nil)
	ctx = context.WithoutCancel(ctx)
	// The provider would go on sending if its Shutdown ran out of time.
	defer time.AfterFunc(flushTimeout, func() {
		t.late.Store(true)
		_ = t.exporter.Shutdown(ctx) // ends the request under way
	}).Stop()
	err := t.provider.Shutdown(ctx)
	if lost := t.waiting.Load(); err != nil || lost > 0 {
		t.cfg.Logger.Warn().Err(err).Int64("spans", lost).Msg("last spans not delivered to the collector")
	}
}

// Take handles an event of pubsub: it records what has ended of a build, and notes the
// restart of a part of the tree in the spans of all requests that are under way.
func (t *Traces) Take(e pubsub.Event) {
	switch data := e.Data.(type) {
	case store.BuildUpdate:
		tracing.Changed(data)
	case SupervisorEvent:
		if data.Event == otp.EventRestarting.String() {
			t.restarted(data)
		}
	}
}

func (t *Traces) restarted(e SupervisorEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.requests {
		s.AddEvent("restart", trace.WithTimestamp(e.At), trace.WithAttributes(
			attribute.String("takt.process.path", e.Path), attribute.Int("takt.process.restarts", e.Restarts)))
	}
}

// inlet receives spans when they begin and end. It bounds the waiting ones, so the
// queue behind it is never full.
type inlet struct {
	sdktrace.SpanProcessor
	traces *Traces
}

func (i inlet) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if s.SpanKind() != trace.SpanKindServer || tracing.IsDerived(ctx) {
		return
	}
	i.traces.mu.Lock()
	defer i.traces.mu.Unlock()
	i.traces.requests[s.SpanContext().SpanID()] = s
}

func (i inlet) OnEnd(s sdktrace.ReadOnlySpan) {
	t := i.traces
	if s.SpanKind() == trace.SpanKindServer {
		t.mu.Lock()
		delete(t.requests, s.SpanContext().SpanID())
		t.mu.Unlock()
	}
	if t.waiting.Add(1) > maxSpans {
		t.waiting.Add(-1)
		t.cfg.Metrics.SpansDropped.WithLabelValues("full").Inc()
		return
	}
	i.SpanProcessor.OnEnd(s)
}

// outlet counts the spans that the collector accepts and those that it does not.
type outlet struct {
	sdktrace.SpanExporter
	traces *Traces
}

func (o outlet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	t, n := o.traces, len(spans)
	err := context.DeadlineExceeded
	if !t.late.Load() {
		err = o.SpanExporter.ExportSpans(ctx, spans)
	}
	if err == nil || !t.late.Load() {
		t.waiting.Add(-int64(n)) // otherwise Close logs how many were lost
	}
	if err != nil {
		t.cfg.Metrics.SpansDropped.WithLabelValues("refused").Add(float64(n))
	} else {
		t.cfg.Metrics.SpansSent.WithLabelValues().Add(float64(n))
	}
	if was := t.failing.Swap(err != nil); was != (err != nil) {
		t.cfg.Logger.Warn().Err(err).Bool("failing", err != nil).Msg("sending spans to the collector")
	}
	return nil // counted and logged, once per change
}
