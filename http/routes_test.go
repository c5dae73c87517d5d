package http_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
)

func TestRoutesAreTheGoldenList(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	var got []string
	for _, r := range s.Routes() {
		got = append(got, r.Method+" "+r.Path)
	}
	slices.Sort(got)
	want, err := os.ReadFile(filepath.Join("testdata", "routes.txt"))
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), strings.Join(got, "\n"))
}

// protected lists every route that needs a key, with what it says without one.
func protected() map[string]string {
	const key, admin = "Missing X-API-Key header", "Missing X-Admin-Key header"
	const either = "Missing X-API-Key or X-Build-Token header"
	return map[string]string{
		"POST /api/builds": key, "POST /api/builds/submit": key, "GET /api/builds": key,
		"GET /api/builds/b/status": either, "GET /api/builds/b/logs": either,
		"GET /api/builds/b/download": either, "GET /api/builds/b/download/source": either,
		"PATCH /api/builds/b": key, "POST /api/builds/b/cancel": key, "POST /api/builds/b/requeue": admin, "GET /api/builds/b/source": key, "GET /api/builds/b/certs": key,
		"POST /api/builds/b/logs": key, "POST /api/builds/b/heartbeat": key,
		"POST /api/deployments": key, "GET /api/deployments": key, "GET /api/deployments/d": key, "GET /api/deployments/d/events": key,
		"POST /api/deployments/d/cancel": key, "POST /api/deployments/d/pause": key, "POST /api/deployments/d/resume": key,
		"POST /api/deployments/d/retry": key,
		"POST /api/workers/register":    key, "POST /api/workers/unregister": key,
		"POST /api/workers/w/unregister": key, "GET /api/workers/poll": key, "POST /api/workers/poll": key,
		"GET /api/builds/active": key, "GET /api/builds/statistics": key, "GET /api/builds/b": key, "POST /api/builds/b/retry": either,
		"GET /api/builds/b/certs-secure": key, "POST /api/builds/b/telemetry": key,
		"POST /api/workers/fail": key, "POST /api/workers/heartbeat": key, "GET /api/workers": key, "GET /api/workers/w": key,
		"GET /api/workers/w/stats": key, "POST /api/workers/w/drain": key, "POST /api/workers/w/resume": key, "DELETE /api/workers/w": key,
		"POST /api/diagnostics/report": key, "GET /api/diagnostics/w": key, "GET /api/diagnostics/w/latest": key,
		"POST /api/workers/upload": key, "POST /api/workers/result": key, "GET /admin/tree": admin, "GET /admin/tree/takt": admin,
		"POST /admin/tree/takt/database/restart": admin, "GET /admin/heartbeat": admin, "PUT /admin/heartbeat": admin, "GET /admin/audit": admin, "GET /admin/audit/check": admin, "POST /admin/audit/check": admin, "POST /admin/drill": admin,
		"GET /admin/heijunka": admin, "PUT /admin/heijunka/limits": admin, "POST /admin/heijunka/pools/fleet/scale": admin,
		"POST /admin/heijunka/rebalance": admin, "PUT /admin/heijunka/affinity": admin, "POST /admin/heijunka/surge": admin,
		"GET /admin/debug": admin, "GET /admin/debug/pprof/heap": admin,
		"POST /api/config": key, "GET /api/config/1": key, "GET /api/config/1/2": key, "DELETE /api/config/1/2": key,
		"GET /admin/throttle/queues": admin, "GET /admin/throttle/queues/queue:1:2:3:0": admin,
		"POST /admin/throttle/queues/q/pause": admin, "POST /admin/throttle/queues/q/resume": admin, "POST /admin/throttle/queues/q/redrive": admin,
	}
}

func TestRoutesNeedTheirKeys(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	for route, missing := range protected() {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			method, path, _ := strings.Cut(route, " ")
			r := send(t, c, method, url+path, nil, nil)
			require.Equal(t, 401, r.status)
			requireProblem(t, r, missing, "unauthorized")

			wrong := map[string]string{"X-API-Key": "wrong", "X-Admin-Key": apiKey}
			text, code := "Invalid API key", "invalid_api_key"
			if strings.Contains(missing, "Admin") {
				text, code = "Invalid admin key", "forbidden"
			}
			r = send(t, c, method, url+path+"?api_key="+apiKey, wrong, nil)
			require.Equal(t, 403, r.status)
			requireProblem(t, r, text, code)
		})
	}
}

func TestWorkerRoutesNeedAWorker(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	for _, route := range []string{
		"GET /api/builds/b/source", "GET /api/builds/b/certs", "POST /api/builds/b/logs",
		"GET /api/builds/b/certs-secure", "POST /api/builds/b/telemetry",
	} {
		method, path, _ := strings.Cut(route, " ")
		r := send(t, c, method, url+path, map[string]string{"X-API-Key": apiKey}, nil)
		require.Equal(t, 401, r.status)
		requireProblem(t, r, "Missing X-Worker-Id header", "unauthorized")
		r = send(t, c, method, url+path, map[string]string{"X-API-Key": apiKey, "X-Worker-Id": "../w", "X-Build-Id": "b"}, nil)
		require.Equal(t, 403, r.status)
	}
}

func TestUnsetAdminKeyOpensNothing(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{}, func(c *takthttp.Config) { c.AdminKey = "" })
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	require.Equal(t, 401, send(t, c, "GET", url+"/admin/tree", map[string]string{"X-Admin-Key": ""}, nil).status)
	require.Equal(t, 403, send(t, c, "GET", url+"/admin/tree", map[string]string{"X-Admin-Key": "x"}, nil).status)
}

func requireProblem(t *testing.T, r reply, text, code string) {
	t.Helper()
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"))
	p := decode[api.Problem](t, r)
	require.Equal(t, text, p.Error)
	require.Equal(t, text, p.Detail)
	require.Equal(t, code, p.Code)
	require.Equal(t, r.status, p.Status)
	require.Equal(t, http.StatusText(r.status), p.Title)
	require.Equal(t, r.header.Get("X-Request-Id"), p.RequestID)
	require.NotContains(t, r.body, `": `, "JSON is compact")
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	for _, path := range []string{"/index.html", "/api", "/api/nothing", "/api/builds/b/nothing", "/admin", "/%2e%2e/etc/passwd"} {
		r := send(t, c, "GET", url+path, nil, nil)
		require.Equal(t, 404, r.status, path)
		requireProblem(t, r, "Not found", "not_found")
	}
	r := send(t, c, "DELETE", url+"/api/builds", map[string]string{"X-API-Key": apiKey}, nil)
	require.Equal(t, 405, r.status)
	requireProblem(t, r, "Method not allowed", "method_not_allowed")
	require.Contains(t, r.header.Get("Allow"), "POST")
}

func TestTrailingSlashIsAccepted(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	require.Equal(t, 200, send(t, c, "GET", url+"/livez/", nil, nil).status)
	require.Equal(t, 401, send(t, c, "GET", url+"/api/builds/", nil, nil).status)
	require.Equal(t, 404, send(t, c, "GET", url+"/livez//", nil, nil).status)
}

func TestRequestIDIsTakenOverOrMade(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	r := send(t, c, "GET", url+"/livez", map[string]string{"X-Request-Id": "mine-1"}, nil)
	require.Equal(t, "mine-1", r.header.Get("X-Request-Id"))
	a := send(t, c, "GET", url+"/livez", map[string]string{"X-Request-Id": "not sane"}, nil).header.Get("X-Request-Id")
	b := send(t, c, "GET", url+"/livez", nil, nil).header.Get("X-Request-Id")
	require.NotEmpty(t, a)
	require.NotEqual(t, "not sane", a)
	require.NotEqual(t, a, b)
}

func TestPagesOfAnyOriginMayAsk(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	origin := map[string]string{"Origin": "https://example.org"}

	r := send(t, c, "GET", url+"/livez", origin, nil)
	require.Equal(t, 200, r.status)
	require.Equal(t, "https://example.org", r.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "true", r.header.Get("Access-Control-Allow-Credentials"))
	require.Equal(t, "Origin", r.header.Get("Vary"))

	r = send(t, c, "GET", url+"/api/builds", origin, nil)
	require.Equal(t, 401, r.status)
	require.Equal(t, "https://example.org", r.header.Get("Access-Control-Allow-Origin"), "errors are to be seen, too")

	r = send(t, c, "OPTIONS", url+"/api/builds", map[string]string{
		"Origin": "https://example.org", "Access-Control-Request-Method": "POST",
		"Access-Control-Request-Headers": "x-api-key, content-type",
	}, nil)
	require.Equal(t, 204, r.status)
	require.Equal(t, "GET,HEAD,PUT,PATCH,POST,DELETE", r.header.Get("Access-Control-Allow-Methods"))
	require.Equal(t, "x-api-key, content-type", r.header.Get("Access-Control-Allow-Headers"))

	r = send(t, c, "GET", url+"/admin/tree", origin, nil)
	require.Empty(t, r.header.Get("Access-Control-Allow-Origin"), "operators' routes are not for other pages")
	require.Empty(t, send(t, c, "GET", url+"/livez", nil, nil).header.Get("Access-Control-Allow-Origin"))
}

func TestReadyFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	ready := false
	s, _ := newServer(t, takthttp.Deps{Ready: func() bool { return ready }})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	for _, path := range []string{"/readyz", "/healthz"} {
		r := send(t, c, "GET", url+path, nil, nil)
		require.Equal(t, 503, r.status)
		require.NotEmpty(t, r.header.Get("Retry-After"))
	}
	requireBody(t, `{"status":"ok"}`, send(t, c, "GET", url+"/livez", nil, nil))
	ready = true
	requireBody(t, `{"status":"ready"}`, send(t, c, "GET", url+"/readyz", nil, nil))
	require.Equal(t, 200, send(t, c, "HEAD", url+"/readyz", nil, nil).status)
}

func TestTreeAndMetricsAreShown(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{Tree: func(all bool) api.TreeNode {
		n := api.TreeNode{ID: "takt", Path: "takt", Type: "supervisor", Status: "running", ChildCount: 3}
		if all {
			n.Children = []api.TreeNode{{ID: "database", Path: "takt/database", Type: "supervisor", Status: "running", Children: []api.TreeNode{
				{ID: "pool", Path: "takt/database/pool", Type: "worker", Status: "running"},
			}}}
		}
		return n
	}})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	key := map[string]string{"X-Admin-Key": adminKey}
	r := send(t, c, "GET", url+"/admin/tree", key, nil)
	require.Equal(t, 200, r.status)
	require.Equal(t, 3, decode[api.TreeNode](t, r).ChildCount)
	r = send(t, c, "GET", url+"/admin/tree?children=all", key, nil)
	require.Len(t, decode[api.TreeNode](t, r).Children, 1)
	for path, id := range map[string]string{"takt": "takt", "takt/database": "database", "takt/database/pool/": "pool", "database/pool": "pool", "": "takt"} {
		r = send(t, c, "GET", url+"/admin/tree/"+path+"?children=all", key, nil)
		require.Equal(t, 200, r.status, path)
		require.Equal(t, id, decode[api.TreeNode](t, r).ID)
	}
	for _, path := range []string{"x", "takt/x", "takt/database/pool/x", "takt/databasep"} {
		require.Equal(t, 404, send(t, c, "GET", url+"/admin/tree/"+path+"?children=all", key, nil).status, path)
	}
	require.Equal(t, 200, send(t, c, "GET", url+"/metrics", nil, nil).status)
}
