package dashboard

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"takt/store/metrics"
)

func TestSystemCountsBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	registry, set := prometheus.NewRegistry(), &metrics.Set{}
	registry.MustRegister(set)
	answered, took := set.Counter("takt_http_requests_total"), set.Histogram("takt_http_request_duration_seconds")
	d := &Dashboard{}
	d.deps.Metrics = registry
	read := func() reading {
		r, err := d.readMetrics()
		require.NoError(t, err)
		return r
	}
	request := func(route string, seconds float64) {
		answered.WithLabelValues("GET", route, "2xx").Inc()
		took.WithLabelValues("GET", route).Observe(seconds)
	}
	request("/api/builds", 3) // before
	r := rates{from: read()}
	require.Equal(t, "–", rates{r.from, r.from}.Quantile(0.5), "no requests")
	for range 98 {
		request("/api/builds", 0.004)
	}
	request("/api/builds", 2)
	request("/api/builds", 1000)
	request("/api/workers/poll", 30)
	r.to = read()
	r.to.at = r.from.at.Add(10 * time.Second)
	require.InDelta(t, 10.1, r.Rate("takt_http_requests_total"), 1e-9)
	require.InDelta(t, 102, r.Now("takt_http_requests_total"), 0)
	require.Equal(t, "3.8 ms", r.Quantile(0.5))
	require.Regexp(t, `^[12] s$`, r.Quantile(0.985))
	require.Equal(t, "more than 5 min", r.Quantile(0.999))
}
