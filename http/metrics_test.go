package http_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.Collectors()...)
	url, stop := serve(t, s, listen(t))
	c := newClient(t)
	send(t, c, "GET", url+"/livez", nil, nil)
	send(t, c, "GET", url+"/api/builds/secret-id/status", nil, nil)
	require.NoError(t, stop())

	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		if name := f.GetName(); name == "takt_http_request_duration_seconds" || name == "takt_http_requests_total" {
			require.Len(t, f.GetMetric(), 2, "%s: only routes that were used have series", name)
		}
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				require.NotContains(t, l.GetValue(), "secret-id", "a label for each build would never end")
				key += " " + l.GetValue()
			}
			counted[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.InDelta(t, 1, counted["takt_http_requests_total GET /livez 2xx"], 0)
	require.InDelta(t, 1, counted["takt_http_requests_total GET /api/builds/:id/status 4xx"], 0)
	require.Zero(t, counted["takt_http_requests_running ops"])
}
