package edge

import (
	"context"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"takt/store/metrics"
)

// serverMetrics are the server's own metrics.
type serverMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	running  *prometheus.GaugeVec
	refused  prometheus.Counter
	// connections counts the refused connections.
	connections prometheus.Counter
	wrongKeys   prometheus.Counter
	streams     prometheus.Gauge
	all         []prometheus.Collector
}

func newMetrics(tls *Certificate) serverMetrics {
	m := serverMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "takt_http_requests_total", Help: "Requests answered, by route and class of status.",
		}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(metrics.Histogram("takt_http_request_duration_seconds",
			"Time from a request's header to the end of its handler.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}), []string{"method", "route"}),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "takt_http_requests_running", Help: "Requests under way, parked polls included, by domain.",
		}, []string{"domain"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "takt_http_streams", Help: "Streams of server-sent events that are open.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "takt_http_bodies_drained_total", Help: "Refused bodies that were read to their end.",
		}),
		connections: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "takt_http_connections_refused_total", Help: "Connections closed because too many were open.",
		}),
	}
	m.wrongKeys = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "takt_http_wrong_keys_total", Help: "Requests with a wrong API key or admin key.",
	})
	m.all = []prometheus.Collector{m.wrongKeys, m.requests, m.seconds, m.running, m.streams, m.refused, m.connections}
	if tls != nil {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "takt_http_tls_not_after_seconds", Help: "When the TLS certificate in use expires, in seconds since 1970.",
		}, func() float64 { return float64(tls.NotAfter().Unix()) }))
	}
	return m
}

// Collectors returns the server's metrics. Register them once.
func (s *Server) Collectors() []prometheus.Collector { return s.metrics.all }

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
