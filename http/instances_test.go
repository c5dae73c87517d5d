package http_test

import (
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store/metrics"
)

func TestAnotherProcessOfAWorkerIsRefused(t *testing.T) {
	t.Parallel()
	observed := metrics.New()
	b := setupWith(t, func(d *takthttp.Deps) { d.Observed = observed })
	registration := func(instance string) string {
		return `{"id":"w1","name":"one","capabilities":{},"active_builds":[],"instance":"` + instance + `"}`
	}
	first := decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), registration("a")))
	build := b.submit()
	job := b.send("POST", "/api/workers/poll", key("X-Worker-Token", first.AccessToken, "X-Worker-Instance", "a"), "")
	require.Contains(t, job.body, build.ID)
	token := decode[api.PollReply](t, job).AccessToken

	refused := func(r reply) {
		t.Helper()
		require.Equal(t, 409, r.status, r.body)
		p := decode[api.Problem](t, r)
		require.Equal(t, "duplicate_worker", p.Code)
		require.Equal(t, "Another process uses this worker id", p.Error)
		wait, err := strconv.Atoi(r.header.Get("Retry-After"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, wait, 1)
		require.LessOrEqual(t, wait, 30)
	}
	heartbeat := func(instance string) reply {
		return b.json("POST", "/api/builds/"+build.ID+"/heartbeat?worker_id=w1", key("X-Worker-Instance", instance), "{}")
	}
	holder := key("X-Worker-Id", "w1", "X-Build-Id", build.ID, "X-Worker-Instance", "b")
	for range 2 {
		refused(b.json("POST", "/api/workers/register", key(), registration("b")))
	}
	refused(b.send("POST", "/api/workers/poll", key("X-Worker-Token", token, "X-Worker-Instance", "b"), ""))
	refused(b.send("POST", "/api/workers/poll?worker_id=w1", key("X-Worker-Instance", "b"), ""))
	refused(heartbeat("b"))
	refused(b.json("POST", "/api/workers/heartbeat", key("X-Worker-Instance", "b"), `{"build_id":"`+build.ID+`"}`))
	refused(b.json("POST", "/api/builds/"+build.ID+"/logs", holder, `{"level":"info","message":"from b"}`))
	refused(b.json("POST", "/api/builds/"+build.ID+"/telemetry", holder, `{"type":"heartbeat","timestamp":"t","data":{}}`))
	refused(b.send("GET", "/api/builds/"+build.ID+"/source", holder, ""))

	require.Equal(t, 200, heartbeat("a").status, "the first goes on")
	require.Equal(t, "building", b.status(build.ID).Status)
	require.NotContains(t, b.messages(build.ID), "from b")
	require.Equal(t, 1, strings.Count(b.logs.String(), "registration refused: another process uses this worker id"))
	var counted dto.Metric
	require.NoError(t, observed.DuplicateWorkers.WithLabelValues().Write(&counted))
	require.InDelta(t, 9, counted.GetCounter().GetValue(), 0)
	shown := b.worker("w1").Conflict
	require.NotNil(t, shown)
	require.Equal(t, "127.0.0.1", shown.From)

	// Unregistering frees the id at once.
	require.Equal(t, 200, b.send("POST", "/api/workers/unregister", key("X-Worker-Token", token), "").status)
	require.Equal(t, 200, b.json("POST", "/api/workers/register", key(), registration("b")).status)
	refused(heartbeat("a"))
}

func TestInstancesAreIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	for _, bad := range []string{"a b", strings.Repeat("a", 65)} {
		for _, path := range []string{"/api/workers/poll?worker_id=" + w.ID, "/api/builds/" + s.ID + "/heartbeat?worker_id=" + w.ID} {
			r := b.json("POST", path, key("X-Worker-Instance", bad), "{}")
			require.Equal(t, 400, r.status)
			require.Contains(t, r.body, "Invalid X-Worker-Instance header")
		}
	}
	for _, bad := range []string{`"a b"`, `""`, `7`} {
		r := b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":{},"instance":`+bad+`}`)
		require.Equal(t, 422, r.status)
		require.Contains(t, r.body, "instance must be 1 to 64 characters")
	}
}

func TestALateRegistrationIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	registration := func(number string) reply {
		return b.json("POST", "/api/workers/register", key(), `{"id":"w1","name":"one","capabilities":{},"active_builds":[],"instance":"a","registration":`+number+`}`)
	}
	r := registration("9007199254740991") // the highest
	require.Equal(t, 200, r.status, r.body)
	token := decode[api.Registered](t, r).AccessToken
	for _, number := range []string{"7", "9007199254740991"} {
		r = registration(number)
		require.Equal(t, 409, r.status, r.body)
		requireProblem(t, r, "A later registration of this process was executed", "late_registration")
	}
	require.Equal(t, 200, b.send("POST", "/api/workers/poll", key("X-Worker-Token", token), "").status)
	require.NotContains(t, b.send("GET", "/api/workers/w1", key(), "").body, `"conflict"`)

	for _, bad := range []string{"0", "-1", "1.5", `"7"`, "9007199254740992", "1e400", `1,"instance":null`} {
		r = registration(bad)
		require.Equal(t, 422, r.status, bad)
		require.Contains(t, r.body, "registration must be a whole number from 1 to 9007199254740991, and needs an instance")
	}
}

func TestDashboardShowsADuplicateWorker(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	for _, instance := range []string{"a", "b"} {
		d.json("POST", "/api/workers/register", key(), `{"id":"w1","name":"one","capabilities":{},"instance":"`+instance+`"}`)
	}
	require.Contains(t, d.ask("GET", "/fleet", nil, nil).body, "duplicate id")
	require.Contains(t, d.ask("GET", "/fleet/w1", nil, nil).body, "Another process at 127.0.0.1 tried to use this worker")
	require.NotContains(t, d.ask("GET", "/fleet/"+d.register("other").ID, nil, nil).body, "Another process")
}
