package http_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/store"
)

// openStreams is how many streams s counts.
func openStreams(t *testing.T, s *takthttp.Server) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.Metrics())
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "takt_http_streams" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(t, "no such figure")
	return 0
}

func worker(id string) takthttp.Event {
	return takthttp.Event{Topic: "worker:updated", Data: store.WorkerUpdate{WorkerID: id, Status: store.Idle}}
}

// eventServer is a server of which nothing but events is asked.
func eventServer(t *testing.T, change ...func(*takthttp.Config)) (*takthttp.Server, string) {
	t.Helper()
	s, _ := newServer(t, takthttp.Deps{}, change...)
	url, _ := serve(t, s, listen(t))
	return s, url + "/api/events"
}

func TestEventsGoOnWhereTheClientWas(t *testing.T) {
	t.Parallel()
	s, url := eventServer(t)
	first := tune(t, newClient(t), url, key())
	start := <-first.events
	require.Equal(t, sse{id: start.id}, start, "a position, which is no event")
	first.cancel()
	for i := range 600 { // more than are sent at once
		s.Publish(worker(fmt.Sprint(i)))
	}
	again := tune(t, newClient(t), url, key("Last-Event-ID", start.id))
	var last sse
	for i := range 600 {
		last = again.next()
		require.Contains(t, last.data, fmt.Sprintf("%q", fmt.Sprint(i)))
	}
	two := tune(t, newClient(t), url, key())
	<-two.events // the position
	s.Publish(worker("live"))
	for _, l := range []*listener{again, two} {
		e := l.next()
		require.Equal(t, []string{"worker:updated", `{"worker_id":"live","status":"idle"}`}, []string{e.name, e.data})
		require.True(t, strings.HasSuffix(e.id, "-601"), e.id)
	}
	later := tune(t, newClient(t), url, key("Last-Event-ID", last.id))
	require.Contains(t, later.next().data, "live")
}

func TestEventsThatWereForgottenAreAReset(t *testing.T) {
	t.Parallel()
	s, url := eventServer(t)
	first := tune(t, newClient(t), url, key())
	start := <-first.events
	first.cancel()
	for i := range 10_001 {
		s.Publish(worker(fmt.Sprint(i)))
	}
	ours, _, _ := strings.Cut(start.id, "-")
	var reset []*listener
	for _, lost := range []string{start.id, "another-3", "nonsense", ours + "-x", ours + "-10002", ours + "-99999999999999999999"} {
		l := tune(t, newClient(t), url, key("Last-Event-ID", lost))
		require.Equal(t, sse{id: ours + "-10001", name: "reset", data: "{}"}, l.next(), lost)
		reset = append(reset, l)
	}
	oldest := tune(t, newClient(t), url, key("Last-Event-ID", ours+"-1"))
	require.Equal(t, ours+"-2", oldest.next().id, "the last 10 000 are there")
	s.Publish(worker("live"))
	for _, l := range reset {
		require.Equal(t, ours+"-10002", l.next().id, "one reset, then live")
	}
	_, url = eventServer(t)
	require.Equal(t, "reset", tune(t, newClient(t), url, key("Last-Event-ID", ours+"-0")).next().name, "another start")
}

func TestEventsAreFiltered(t *testing.T) {
	t.Parallel()
	s, url := eventServer(t, func(c *takthttp.Config) { c.StreamPing = 20 * time.Millisecond })
	l := tune(t, newClient(t), url+"?topics=build:updated,queue:updated", key())
	s.Publish(worker("w"))
	require.Eventually(t, func() bool {
		e := <-l.events
		return e.comment == "ping" && strings.HasSuffix(e.id, "-1")
	}, waitFor, tick, "signs of life move the position on")
	s.Publish(takthttp.Event{Topic: "build:updated", Data: store.BuildUpdate{BuildID: "b", State: store.Pending}})
	require.JSONEq(t, `{"build_id":"b","state":"pending"}`, l.next().data)
	for _, bad := range []string{"build", "build:updated,", "x:y", "settings:changed"} {
		r := send(t, newClient(t), "GET", url+"?topics="+bad, key(), nil)
		require.Equal(t, 400, r.status, bad)
	}
}
