package edge

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/http/api"
	"takt/store"
	"takt/store/metrics"
	"takt/store/tracing"
)

// serverMetrics are the server's own metrics.
type serverMetrics struct {
	metrics.Set
	requests      *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	running       *prometheus.GaugeVec
	refused       prometheus.Counter // bodies
	connections   prometheus.Counter // refused ones
	wrongKeys     prometheus.Counter
	missingScopes prometheus.Counter
	streams       prometheus.Gauge
}

func newMetrics(tls *Certificate, ring *store.KeyRing) *serverMetrics {
	m := &serverMetrics{}
	m.requests = m.Counter("takt_http_requests_total")
	m.seconds = m.Histogram("takt_http_request_duration_seconds")
	m.running = m.Gauge("takt_http_requests_running")
	m.refused = m.Counter("takt_http_bodies_drained_total").WithLabelValues()
	m.connections = m.Counter("takt_http_connections_refused_total").WithLabelValues()
	m.wrongKeys = m.Counter("takt_http_wrong_keys_total").WithLabelValues()
	m.missingScopes = m.Counter("takt_http_missing_scopes_total").WithLabelValues()
	if ring != nil {
		m.Read(func(show metrics.Show) { show("takt_keys", float64(ring.Active())) })
	}
	m.streams = m.Gauge("takt_http_streams").WithLabelValues()
	if tls != nil {
		m.Read(func(show metrics.Show) { show("takt_http_tls_not_after_seconds", float64(tls.NotAfter().Unix())) })
	}
	return m
}

// Metrics returns the server's metrics, to be registered once.
func (s *Server) Metrics() *metrics.Set { return &s.metrics.Set }

// routeMetrics are the metrics of one route. Each series is made when it is first needed,
// because most routes are never used and would fill the scrape, and only once, because
// looking up labels costs more than counting.
type routeMetrics struct {
	seconds func() prometheus.Observer
	running prometheus.Gauge
	status  [6]func() prometheus.Counter // by class; 0 is for no status
}

func (m *serverMetrics) of(r *Route, method string) routeMetrics {
	rm := routeMetrics{
		seconds: sync.OnceValue(func() prometheus.Observer { return m.seconds.WithLabelValues(method, r.Path) }),
		running: m.running.WithLabelValues(r.Class.String()),
	}
	for i, class := range [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		rm.status[i] = sync.OnceValue(func() prometheus.Counter { return m.requests.WithLabelValues(method, r.Path, class) })
	}
	return rm
}

// ended counts a request; a request without a reply has no class.
func (m routeMetrics) ended(ctx context.Context, reply *echo.Response, took time.Duration) {
	m.running.Dec()
	metrics.Observe(ctx, m.seconds(), took)
	class := reply.Status / 100
	if !reply.Committed || class < 1 || class > 5 {
		class = 0
	}
	m.status[class]().Inc()
}

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
