package http_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge"
)

// registered lists the routes of a server, as "GET /api/builds/:id".
func registered(t *testing.T) (routes []string) {
	t.Helper()
	s, _ := newServer(t, takthttp.Deps{})
	for _, r := range s.Routes() {
		routes = append(routes, r.Method+" "+r.Path)
	}
	slices.Sort(routes)
	return routes
}

// operations lists the endpoints with each of their methods. Parameters of a path are x.
func operations() map[string]api.Route {
	all, param := map[string]api.Route{}, regexp.MustCompile(`:\w+|\*`)
	for _, r := range api.Routes() {
		for method := range strings.FieldsSeq(r.Method) {
			all[method+" "+param.ReplaceAllString(r.Path, "x")] = r
		}
	}
	return all
}

// An endpoint that is declared has a handler, and a route that is no page is declared.
func TestEveryEndpointIsServed(t *testing.T) {
	t.Parallel()
	s, err := takthttp.New(takthttp.Deps{}, takthttp.Config{Config: edge.Config{APIKey: apiKey}}) // without pages
	require.NoError(t, err)
	var served, declared []string
	for _, r := range s.Routes() {
		served = append(served, r.Method+" "+r.Path)
	}
	for _, r := range api.Routes() {
		for method := range strings.FieldsSeq(r.Method) {
			declared = append(declared, method+" "+asInTable(r.Path))
		}
	}
	slices.Sort(declared)
	slices.Sort(served)
	require.Equal(t, slices.Compact(declared), served)
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

func TestRoutesThatAreUnknown(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	c := newClient(t)
	for _, path := range []string{"/index.html", "/api", "/api/nothing", "/api/builds/b/nothing", "/admin", "/%2e%2e/etc/passwd", "/livez//"} {
		r := send(t, c, "GET", url+path, nil, nil)
		require.Equal(t, 404, r.status, path)
		requireProblem(t, r, "Not found", "not_found")
	}
	require.Equal(t, 200, send(t, c, "GET", url+"/livez/", nil, nil).status, "a slash at the end is accepted")
	require.Equal(t, 401, send(t, c, "GET", url+"/api/builds/", nil, nil).status)
	r := send(t, c, "DELETE", url+"/api/builds", key(), nil)
	require.Equal(t, 405, r.status)
	requireProblem(t, r, "Method not allowed", "method_not_allowed")
	require.Contains(t, r.header.Get("Allow"), "POST")
	ids := map[string]bool{}
	for _, id := range []string{"mine-1", "not sane", ""} {
		ids[send(t, c, "GET", url+"/livez", map[string]string{"X-Request-Id": id}, nil).header.Get("X-Request-Id")] = true
	}
	require.Len(t, ids, 3)
	require.True(t, ids["mine-1"])
	require.False(t, ids["not sane"] || ids[""], "these were replaced")
}

func TestReadyFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	ready := false
	url := served(t, takthttp.Deps{Ready: func() bool { return ready }})
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
