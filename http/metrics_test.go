package http_test

import (
	"compress/gzip"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge/edgetest"
	"takt/store"
	"takt/store/storetest/faketime"
)

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.Metrics())
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

// measured is a registry with a large metric that has exemplars, and the count of its
// renderings.
func measured() (prometheus.Gatherer, *atomic.Int64) {
	registry, gathered := prometheus.NewRegistry(), &atomic.Int64{}
	traced := prometheus.NewCounter(prometheus.CounterOpts{Name: "traced_total", Help: strings.Repeat("long ", 10<<10)})
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "traced_seconds", NativeHistogramBucketFactor: 1.1, Buckets: []float64{1}})
	trace := prometheus.Labels{"trace_id": "0123456789abcdef"}
	traced.(prometheus.ExemplarAdder).AddWithExemplar(1, trace)          // client_golang promises it
	seconds.(prometheus.ExemplarObserver).ObserveWithExemplar(.5, trace) // client_golang promises it
	registry.MustRegister(traced, seconds)
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		gathered.Add(1)
		return registry.Gather()
	}), gathered
}

var scrape = edgetest.Request("GET /metrics")

func TestMetricsAreRenderedOnceASecondForEverybody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gatherer, gathered := measured()
		ln, _ := setupFakeTime(t, func(d *takthttp.Deps) { d.Metrics = gatherer })
		for range slowClients {
			ln.Dial(t, "").Send(scrape) // and they don't read
		}
		synctest.Wait()
		for second := range 3 {
			begin := time.Now()
			for range 2 {
				got := ln.Dial(t, "").Ask(scrape)
				require.Equal(t, 200, got.Status)
				require.Contains(t, got.Body, "traced_total 1\n")
			}
			require.Zero(t, time.Since(begin))
			require.EqualValues(t, second+1, gathered.Load())
			faketime.Pass(time.Second)
		}
	})
}

// Exemplars show whose trace took how long, so a key needs the scope read; a valid key without it
// gets the metrics as everybody does.
func TestExemplarsNeedTheScopeRead(t *testing.T) {
	t.Parallel()
	gatherer, _ := measured()
	b := setupWith(t, func(d *takthttp.Deps) { d.Metrics = gatherer })
	keys := map[string]bool{apiKey: true, "": false}
	for _, scope := range append(store.Scopes(), store.ScopeEnroll) {
		keys[b.named("only-"+string(scope), scope).Key] = scope == store.ScopeRead || scope == store.ScopeAdmin
	}
	build := b.submit()
	for key, sees := range keys {
		for _, header := range []string{"X-API-Key", "X-Admin-Key"} {
			if key == apiKey && header == "X-Admin-Key" {
				continue
			}
			r := b.send("GET", "/metrics", map[string]string{"Accept": "application/openmetrics-text;version=1.0.0", header: key, "X-Build-Token": build.AccessToken}, "")
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, sees, strings.Contains(r.body, "trace_id"), "%s %s", header, key)
		}
	}
}

func TestExemplarsNeedAKey(t *testing.T) {
	t.Parallel()
	gatherer, _ := measured()
	url := served(t, takthttp.Deps{Metrics: gatherer})
	client := browserClient(t)
	for format, accept := range map[string]string{
		"text/plain; version=0.0.4; charset=utf-8":                                                     "*/*",
		"application/openmetrics-text; version=1.0.0; charset=utf-8":                                   "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
		"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited": "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		ask := func(more ...string) string {
			header := map[string]string{"Accept": accept, "Accept-Encoding": "gzip"}
			for i := 0; i < len(more); i += 2 {
				header[more[i]] = more[i+1]
			}
			r := send(t, client, "GET", url+"/metrics", header, nil)
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, format, r.header.Get("Content-Type"))
			if r.header.Get("Content-Encoding") == "" {
				return r.body
			}
			zip, err := gzip.NewReader(strings.NewReader(r.body))
			require.NoError(t, err)
			body, err := io.ReadAll(zip)
			require.NoError(t, err)
			require.Less(t, len(r.body), len(body))
			return string(body)
		}
		require.NotContains(t, ask(), "trace_id", accept)
		require.Equal(t, ask(), ask("Accept-Encoding", "identity"))
		for header, key := range map[string]string{"X-API-Key": apiKey, "X-Admin-Key": adminKey} {
			shown := strings.Contains(ask(header, key), "trace_id")
			require.Equal(t, accept != "*/*", shown, accept)
			require.Equal(t, 403, send(t, client, "GET", url+"/metrics", map[string]string{header: key + "x"}, nil).status)
		}
	}
}
