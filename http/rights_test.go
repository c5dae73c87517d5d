package http_test

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// readRights reads testdata/rights.txt: the credentials that may use a route, such as
// "GET /api/builds".
func readRights(t *testing.T) map[string][]string {
	t.Helper()
	file, err := os.Open("testdata/rights.txt")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	groups, rights := map[string][]string{}, map[string][]string{}
	expand := func(names string) (all []string) {
		for name := range strings.FieldsSeq(names) {
			if strings.HasPrefix(name, "@") {
				require.Contains(t, groups, name)
				all = append(all, groups[name]...)
			} else {
				all = append(all, name)
			}
		}
		return all
	}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if name, names, group := strings.Cut(line, "="); group && line[0] == '@' {
			groups[strings.TrimSpace(name)] = expand(names)
			continue
		}
		route, names, ok := strings.Cut(line, "|")
		require.True(t, ok, line)
		fields := strings.Fields(route)
		for _, method := range fields[:len(fields)-1] {
			at := method + " " + fields[len(fields)-1]
			require.NotContains(t, rights, at, "twice")
			rights[at] = expand(names)
		}
	}
	return rights
}

// scopeIn returns the scope that a line of the table lets in, "" if it lets in all or none, and
// whether a key that submits is let in to its own builds: any such key to a list.
func scopeIn(names []string) (scope store.Scope, own bool) {
	for _, s := range append(store.Scopes(), store.ScopeEnroll) {
		switch {
		case !slices.Contains(names, string(s)), s == store.ScopeAdmin && scope != "":
		case scope != "" && scope != store.ScopeSubmit:
			return "", false
		default:
			scope = s
		}
	}
	return scope, scope != store.ScopeSubmit && slices.Contains(names, "own")
}

// asInTable returns the path by which the table names a declared one: orders to the tree share a
// line.
func asInTable(path string) string {
	if i := strings.IndexByte(path, '*'); i >= 0 {
		return path[:i+1]
	}
	return path
}

// credential is what a request shows, as headers, and the build in its path.
type credential struct {
	name   string
	header map[string]string
	build  string
}

// cards makes the credentials that testdata/rights.txt names, and a worker that holds a build.
func cards(t *testing.T, d *dash) (all []credential, held api.Submitted, worker api.Registered) {
	t.Helper()
	certs := part{"certs", "c.zip", "precious"}
	held, worker = d.assigned(certs)
	build := held.ID
	add := func(name string, header ...string) {
		c := credential{name, map[string]string{}, build}
		for i := 0; i+1 < len(header); i += 2 {
			c.header[header[i]] = header[i+1]
		}
		all = append(all, c)
	}
	keyOf := func(name string, scopes ...store.Scope) string { return d.named(name, scopes...).Key }
	revoke := func(name string) {
		require.Equal(t, 204, d.send("DELETE", "/admin/keys/"+name, map[string]string{"X-Admin-Key": adminKey}, "").status)
	}
	login := func(name, key string) {
		r := d.login(key, "tester", nil)
		require.Equal(t, 303, r.status, r.body)
		cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
		add(name, "Cookie", cookie)
	}
	own, readOwn := keyOf("own", "submit"), keyOf("s-own", "submit", "read")
	first, second := d.by(shownKey(own)), d.by(shownKey(readOwn))
	build = second.ID
	login("s:own", readOwn)
	build = first.ID
	add("own", "X-API-Key", own)
	add("token", "X-Build-Token", first.AccessToken)
	add("token'", "X-Build-Token", second.AccessToken)
	add("worker-token", "X-Worker-Token", worker.AccessToken)

	const madeUp = "takt_made-up-0123456789-0123456789"
	add("none")
	add("wrong", "X-API-Key", madeUp)
	add("wrong!", "X-Admin-Key", madeUp)
	add("api", "X-API-Key", apiKey)
	add("api!", "X-Admin-Key", apiKey)
	add("root", "X-Admin-Key", adminKey)
	add("root'", "X-API-Key", adminKey)
	login("s:api", apiKey)
	login("s:root", adminKey)
	for _, scope := range []store.Scope{"submit", "read", "worker", "webhook", "operate", "admin", "enroll"} {
		key := keyOf("only-"+string(scope), scope)
		add(string(scope), "X-API-Key", key)
		add(string(scope)+"!", "X-Admin-Key", key)
		if scope != "enroll" {
			login("s:"+string(scope), keyOf("s-"+string(scope), "read", scope))
		}
	}
	ended := keyOf("ended", "admin")
	add("revoked", "X-API-Key", ended)
	add("revoked!", "X-Admin-Key", ended)
	login("s:revoked", ended)
	revoke("ended")
	short := keyOf("short", "admin")
	_, err := d.pool.Exec(t.Context(), `UPDATE access_keys SET expires_at = now() + interval '10 ms' WHERE name = 'short'`)
	require.NoError(t, err)
	keyOf("last", "read") // by which the controller reads all keys again
	add("expired", "X-API-Key", short)
	require.Eventually(t, func() bool { return d.send("GET", "/api/builds", shownKey(short).headers(), "").status == 403 }, waitFor, tick)
	return all, held, worker
}

// Every route is asked with every credential, over HTTP, and the table that was written by hand
// says who is let in. Nothing here asks the code for the scope of a route.
func TestRightsOfEachRouteAndCredential(t *testing.T) {
	t.Parallel()
	rights, d := readRights(t), setupDash(t, "")
	all, held, worker := cards(t, d)
	var routes []string
	for _, r := range d.server.Routes() {
		routes = append(routes, r.Method+" "+r.Path)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(rights)), routes, "each route has a line, and each line a route")
	known := map[string]bool{}
	for _, c := range all {
		known[c.name] = true
	}
	for at, names := range rights {
		for _, name := range names {
			require.True(t, known[name], "%s: there is no credential %s", at, name)
		}
	}
	const enroll = "POST /api/workers/enroll"
	judge := func(at string) {
		for _, c := range all {
			in, what := lets(t, d, at, c, held.ID, worker.ID)
			if want := slices.Contains(rights[at], c.name); in != want {
				t.Errorf("%s with %s: let in %v, but the table says %v (%s)", at, c.name, in, want, what)
			}
		}
	}
	var asks sync.WaitGroup
	for part := range slices.Chunk(routes, len(routes)/4+1) {
		asks.Go(func() {
			for _, at := range part {
				if at != enroll {
					judge(at)
				}
			}
		})
	}
	asks.Wait()
	judge(enroll)               // last, because it spends a token
	for _, at := range routes { // a route for GET alone is none for HEAD
		if path, get := strings.CutPrefix(at, "GET "); get && rights["HEAD "+path] == nil {
			require.Contains(t, []int{404, 405}, d.send("HEAD", pathFor(at, all[0].build, held.ID), key(), "").status, at)
		}
	}
}

// pathFor returns the path of a route with a build in it, or else what is not there. Routes of workers
// are about the build that is held.
func pathFor(at, build, held string) string {
	method, path, _ := strings.Cut(at, " ")
	last := path[strings.LastIndexByte(path, '/')+1:]
	if strings.HasPrefix(path, "/api/builds/") && (slices.Contains([]string{"source", "certs", "certs-secure", "inputs", "heartbeat", "telemetry"}, last) || method == "POST" && last == "logs") {
		build = held
	}
	for _, of := range []string{"/api/builds/:id", "/builds/:id"} {
		if rest, ok := strings.CutPrefix(path, of); ok {
			path = strings.TrimSuffix(of, ":id") + build + rest
		}
	}
	return strings.NewReplacer(":type", "source", ":portal_id", "1", ":action_id", "2", ":id", "nobody", ":worker_id", "nobody", ":name", "nobody", "*", "takt/start").Replace(path)
}

// lets asks a route with a credential and reports whether it was let in: a request that
// is wrong otherwise was.
func lets(t *testing.T, d *dash, at string, c credential, held, worker string) (in bool, what string) {
	t.Helper()
	method, _, _ := strings.Cut(at, " ")
	path := pathFor(at, c.build, held)
	header := map[string]string{"X-Worker-Id": worker, "X-Build-Id": held, "X-Worker-Token": "made-up", "Sec-Fetch-Site": "same-origin"}
	maps.Copy(header, c.header)
	body := ""
	if method != "GET" && method != "HEAD" {
		header["Content-Type"] = "application/x-www-form-urlencoded"
		if strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/admin/") {
			header["Content-Type"], body = "application/json", "{}"
		}
	}
	if path == "/api/workers/enroll" {
		body = `{"name":"w"}`
	}
	req, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		return false, err.Error()
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close() // some are streams
	what = resp.Status + " " + resp.Header.Get("Location")
	switch resp.StatusCode {
	case http.StatusSeeOther:
		return !strings.HasPrefix(resp.Header.Get("Location"), "/login?next="), what
	case http.StatusUnauthorized, http.StatusForbidden:
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), `"not_assigned"`) || strings.Contains(string(text), `"invalid_token"`), what + string(text[:min(len(text), 200)])
	}
	return true, what
}
