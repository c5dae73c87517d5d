package http_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/dashboard"
	"takt/store"
	"takt/store/postgres"
)

// dash is a server with a dashboard, and a browser of sorts.
type dash struct {
	*fixture
	cookie string
	lever  *lever
	tree   *treeWithOrders
}

// setupDash logs in with key; "" is nobody.
func setupDash(t *testing.T, key string, with ...func(*takthttp.Config)) *dash {
	t.Helper()
	return setupDashWith(t, key, func(s dashboard.Store) dashboard.Store { return s }, with...)
}

// setupDashWith is setupDash with something else in the place of the pages' data.
func setupDashWith(t *testing.T, key string, pages func(dashboard.Store) dashboard.Store, with ...func(*takthttp.Config)) *dash {
	t.Helper()
	tree, load := newTreeWithOrders(), &lever{}
	b := setupPages(t, pages, func(d *takthttp.Deps) { d.Tree, d.Operator, d.Heartbeat, d.Heijunka = tree.tree, tree, tree, load }, with...)
	d := &dash{fixture: b, lever: load, tree: tree}
	b.client = browserClient(t)
	if key != "" {
		r := d.login(key, "tester", nil)
		require.Equal(t, 303, r.status, r.body)
		d.cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	}
	return d
}

// browserClient follows no redirect. It is not the client of the other tests, which
// holds all to the OpenAPI document.
func browserClient(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// ask sends what a browser would.
func (d *dash) ask(method, path string, form url.Values, more map[string]string) reply {
	d.t.Helper()
	h := map[string]string{"Sec-Fetch-Site": "same-origin", "Cookie": d.cookie}
	if form != nil {
		h["Content-Type"] = "application/x-www-form-urlencoded"
	}
	maps.Copy(h, more)
	return d.send(method, path, h, form.Encode())
}

func (d *dash) get(path string) reply {
	d.t.Helper()
	return d.ask("GET", path, nil, nil)
}

// act sends a form.
func (d *dash) act(path, form string) reply {
	d.t.Helper()
	fields, err := url.ParseQuery(form)
	require.NoError(d.t, err)
	return d.ask("POST", path, fields, nil)
}

// audited returns the newest entries of the audit.
func (d *dash) audited(n int) (entries []store.AuditEntry, acts []string) {
	d.t.Helper()
	entries, _, err := postgres.NewAudit(d.db).List(d.t.Context(), "", store.Page{Limit: n})
	require.NoError(d.t, err)
	for _, e := range entries {
		acts = append(acts, strings.Join([]string{e.Action, e.Target, e.Reason, e.Outcome}, ", "))
	}
	return entries, acts
}

func (d *dash) login(key, name string, more map[string]string) reply {
	d.t.Helper()
	return d.ask("POST", "/login", url.Values{"key": {key}, "name": {name}, "next": {"/queue"}}, more)
}

func TestDashboardIsForWhoHasAKey(t *testing.T) {
	t.Parallel()
	d := setupDash(t, "")
	r := d.get("/builds?state=failed")
	require.Equal(t, 303, r.status)
	require.Equal(t, "/login?next=%2Fbuilds%3Fstate%3Dfailed", r.header.Get("Location"))
	require.Equal(t, 401, d.ask("GET", "/builds", nil, map[string]string{"Accept": "text/event-stream"}).status)
	require.Equal(t, 401, d.act("/builds/x/cancel", "").status)
	require.Equal(t, 401, d.ask("HEAD", "/builds/x/download", nil, nil).status)
	for _, path := range []string{"/builds/x/download", "/builds/x/download/source"} {
		r := d.get(path)
		require.Equal(t, 303, r.status, path)
		require.Equal(t, "/login?next="+url.QueryEscape(path), r.header.Get("Location"))
	}
	require.Empty(t, regexp.MustCompile(`"level":"error".*`).FindString(d.logs.String()), "unknown clients can't fill the log")
	require.Equal(t, 200, d.get("/login").status)
}

// Numbers in a query are whole 64-bit numbers for the handlers and for the database.
func TestQueriesWithHugeNumbersAreNoServerErrors(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	id := d.submit().ID
	w := d.register("one").ID
	headers := key("X-Admin-Key", adminKey, "X-Worker-Id", w, "X-Build-Id", id, "Cookie", d.cookie, "Sec-Fetch-Site", "same-origin")
	ids := strings.NewReplacer("/workers/:id", "/workers/"+w, "/fleet/:id", "/fleet/"+w, ":worker_id", w, ":id", id, ":type", "source", ":name", "dash.css", "*", "takt")
	for _, r := range d.server.Routes() {
		switch {
		case r.Method != http.MethodGet:
			continue
		case strings.Contains(r.Path, "/debug"), strings.HasPrefix(r.Path, "/admin/he"), r.Path == "/heijunka", r.Path == "/admin/audit/check", r.Path == "/api/events":
			continue // they read no database, and this server lacks what they show
		}
		path := ids.Replace(r.Path)
		for _, huge := range []string{"9223372036854775807", "2147483648", "-9223372036854775808", "1e400", "99999999999999999999"} {
			path := strings.NewReplacer(":portal_id", huge, ":action_id", huge).Replace(path)
			for _, name := range []string{"limit", "before", "after", "after_id", "line", "portal", "q", "age", "timeout", "wait", "worker_id", "cursor"} {
				got := d.send(http.MethodGet, path+"?"+name+"="+huge, headers, "")
				require.NotEqual(t, 500, got.status, "%s?%s=%s: %s", path, name, huge, got.body)
			}
		}
	}
}

func TestDashboardLogin(t *testing.T) {
	t.Parallel()
	t.Run("gives a cookie that only we get, and only from our pages", func(t *testing.T) {
		t.Parallel()
		d := setupDash(t, adminKey)
		r := d.login(adminKey, "tester", nil)
		require.Equal(t, "/queue", r.header.Get("Location"))
		require.Regexp(t, `^__Host-takt=[^;]+; Path=/; Max-Age=43200; HttpOnly; Secure; SameSite=Strict$`, r.header.Get("Set-Cookie"))
		require.NotContains(t, r.header.Get("Set-Cookie"), adminKey)
		require.Equal(t, 200, d.get("/builds").status)
		require.Equal(t, 303, d.ask("GET", "/builds", nil, map[string]string{"Sec-Fetch-Site": "cross-site"}).status)
		require.Equal(t, 303, d.ask("GET", "/builds", nil, map[string]string{"Sec-Fetch-Site": "same-site"}).status)
		require.Equal(t, 403, d.ask("POST", "/builds/x/cancel", url.Values{}, map[string]string{"Sec-Fetch-Site": "cross-site"}).status)
		require.Equal(t, 403, d.ask("POST", "/builds/x/cancel", url.Values{}, map[string]string{"Sec-Fetch-Site": "", "Origin": "https://elsewhere.example"}).status)
		d.cookie += "x"
		require.Equal(t, 303, d.get("/builds").status)
	})
	t.Run("slows wrong keys, never a right one", func(t *testing.T) {
		t.Parallel()
		d := setupDash(t, "", func(c *takthttp.Config) { c.WrongKeys = 0 }) // what everybody has
		for range 10 {
			require.Equal(t, 403, d.login("wrong-wrong-wrong", "x", nil).status)
		}
		refused := d.login("wrong-wrong-wrong", "x", nil)
		require.Equal(t, 429, refused.status)
		require.Contains(t, refused.body, "Too many wrong keys: try again in "+refused.header.Get("Retry-After")+" s")
		require.Equal(t, 303, d.login(apiKey, "x", nil).status)
		require.Equal(t, 400, d.login(apiKey, " ", nil).status, "a name is needed")
		require.Equal(t, 303, d.login(apiKey, strings.Repeat("ö", 64), nil).status, "its limit is in characters")
		require.Equal(t, 400, d.login(apiKey, strings.Repeat("ö", 65), nil).status)
	})
	t.Run("is refused over plain HTTP from elsewhere, and says why", func(t *testing.T) {
		t.Parallel()
		d := setupDash(t, "")
		req, err := http.NewRequestWithContext(t.Context(), "GET", d.url+"/login", nil)
		require.NoError(t, err)
		req.Host = "takt.example"
		body := func() string {
			resp, err := d.client.Do(req)
			require.NoError(t, err)
			r, err := readReply(resp)
			require.NoError(t, err)
			return r.body
		}
		require.Contains(t, body(), "You can't log in over this connection")
		require.NotContains(t, body(), `name="key"`)
		req.Header.Set("X-Forwarded-Proto", "https")
		require.Contains(t, body(), `name="key"`)
	})
}

// Somebody who is logged in is led on: from an error back to where they came from, from an
// unknown address and from the login to the pages.
func TestDashboardLeadsOn(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	html := map[string]string{"Accept": "text/html,*/*"}
	r := d.ask("GET", "/nosuchpage", nil, html)
	require.Equal(t, 404, r.status)
	require.Contains(t, r.body, "There is no page at this address")
	require.Contains(t, r.body, `<a class="button" href="/overview">Back</a>`)
	for path, accept := range map[string]string{"/nosuchpage": "*/*", "/api/nosuch": "text/html", "/admin/nosuch": "text/html"} {
		r := d.ask("GET", path, nil, map[string]string{"Accept": accept})
		require.Equal(t, "application/problem+json", r.header.Get("Content-Type"), path)
	}
	for referer, back := range map[string]string{
		d.url + "/builds?state=failed": "/builds?state=failed", "http://elsewhere.example/queue": "/overview",
		d.url + "/builds/nothing": "/overview", d.url + "/login": "/overview", "": "/overview",
	} {
		r := d.ask("GET", "/builds/nothing", nil, map[string]string{"Referer": referer})
		require.Equal(t, 404, r.status)
		require.Contains(t, r.body, `href="`+back+`">Back</a>`, referer)
		require.Equal(t, "same-origin", r.header.Get("Referrer-Policy"))
	}
	for path, to := range map[string]string{"/login": "/overview", "/login?next=%2Fqueue": "/queue", "/login?next=%2F%2Felsewhere.example": "/overview"} {
		r := d.get(path)
		require.Equal(t, 303, r.status)
		require.Equal(t, to, r.header.Get("Location"))
	}
	require.Contains(t, d.get("/").body, `<a href="/login">Dashboard</a>`, "the public page leads to both")

	id := d.submit().ID
	first := d.act("/builds/"+id+"/retry", "").header.Get("Location")
	require.NotEqual(t, "/builds/"+id, first)
	again := d.act("/builds/"+id+"/retry", "")
	require.Equal(t, 303, again.status, "a second click")
	require.Equal(t, first, again.header.Get("Location"), "leads to the retry that waits")
	require.Contains(t, again.header.Get("Set-Cookie"), "takt-done=waits")
	found := d.get("/builds?state=pending&q=" + path.Base(first)).body // what the form on the queue's page asks
	require.Contains(t, found, path.Base(first))
	require.NotContains(t, found, `<tr id="b-`+id)
	require.Regexp(t, `<form class="filter" action="/builds"><input type="hidden" name="state" value="pending">.*name="q"`, d.get("/queue").body)

	require.Contains(t, d.get("/builds/"+id).body, `id="live-sign"`)
	log := d.get("/builds/" + id + "/log").body
	require.NotContains(t, log, `id="live-sign"`, "its lines do not follow")
	require.Contains(t, log, "New lines are not added here")

	for q, says := range map[string]string{"nonsense": "Search for a queue&#39;s id, or a portal&#39;s number.", "-1": "Search for", "queue:none": "No queue matches", "62515": "No queue matches"} {
		r := d.get("/throttle?q=" + q)
		require.Equal(t, 200, r.status)
		require.Contains(t, r.body, says)
		require.Contains(t, r.body, `name="q" value="`+q+`"`, "the form stays")
	}
}

// The page after an order says what is not running yet.
func TestDashboardSaysWhatIsStillStarting(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	require.Contains(t, d.get("/tree/order?action=terminate&path=database/postgres").body, "Everything depends on this process")
	done := func() string {
		return d.ask("GET", "/tree", nil, map[string]string{"Cookie": d.cookie + "; takt-done=start"}).body
	}
	require.Contains(t, done(), ">Started.<")
	for _, id := range []string{"a", "b"} {
		d.tree.set("takt/heijunka/"+id, func(n *api.TreeNode) { n.Status = "restarting" })
	}
	require.Contains(t, done(), ">Started. 2 processes still starting.<")
	require.Contains(t, done(), "2 processes need attention: ")
}

// A process that was terminated says who did it, when and why, those above it are not well, and
// those that wait for it are not as many problems.
func TestDashboardSaysWhoTerminatedAProcess(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	d.tree.after = func(n *api.TreeNode) { n.Status = "terminated" }
	require.Equal(t, 303, d.act("/tree/heijunka/a/terminate", "reason=it+leaks").status)
	d.tree.set("takt/heijunka/b", func(n *api.TreeNode) { n.Status = "suspended" })
	page := d.get("/tree").body
	require.Regexp(t, `<b>a</b> <span class="badge terminated">terminated</span> <span class="error"><time [^>]*>just now</time> by tester \(admin\)@127.0.0.1: it leaks</span>\s*<span class="figures"><span title="restarts">`, page, "and it has no uptime")
	require.Contains(t, page, `<b>heijunka</b> <span class="badge degraded">running</span> <small>1 terminated, 1 suspended below</small>`)
	require.Contains(t, page, `<b>database</b> <span class="badge running">running</span>`)
	require.Contains(t, page, "1 process needs attention: takt/heijunka/a is terminated. 1 other process waits for that, suspended.")
	reader := d.login(apiKey, "reader", nil)
	d.cookie, _, _ = strings.Cut(reader.header.Get("Set-Cookie"), ";")
	require.Regexp(t, `just now</time> by an operator</span>`, d.get("/tree").body, "the audit is for operators")
	d.tree.set("takt/heijunka/a", func(n *api.TreeNode) { n.Status = "restarting" })
	require.NotContains(t, d.get("/tree").body, "by an operator")
}

// A build without plots says why: they are in memory.
func TestDashboardSaysWhyPlotsAreLost(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	s, w := d.assigned()
	require.Contains(t, d.get("/builds/"+s.ID).body, "No machine metrics for this build.")
	require.Equal(t, 200, d.finish(s.ID, w.ID, "app").status)
	set := func(sql string) string {
		_, err := d.pool.Exec(t.Context(), `UPDATE builds SET `+sql)
		require.NoError(t, err)
		return d.get("/builds/" + s.ID).body
	}
	require.Contains(t, set(`completed_at = now() - interval '61 min'`), "Not kept: machine metrics are kept for an hour.")
	require.Regexp(t, `Not kept: takt was restarted at <time [^>]*>\d\d:\d\d:\d\d UTC</time>, and`, set(`started_at = started_at - interval '1 hour'`))
}

func TestDashboardPagesLoadNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	id := d.submit().ID
	w := d.register("one").ID
	for _, path := range []string{"/overview", "/fleet", "/fleet/" + w, "/queue", "/builds", "/builds/" + id, "/builds/" + id + "/log", "/tree", "/system", "/throttle", "/deployments", "/audit", "/keys", "/notices", "/search?q=x", "/builds/nothing", "/login"} {
		if path == "/login" {
			d.cookie = ""
		}
		r := d.get(path)
		require.Equal(t, "text/html; charset=utf-8", r.header.Get("Content-Type"), path)
		require.Contains(t, r.header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; style-src 'self'", path)
		require.Contains(t, r.header.Get("Content-Security-Policy"), "frame-ancestors 'none'", path)
		require.Equal(t, "no-store", r.header.Get("Cache-Control"), path)
		require.NotRegexp(t, `<script>|<style|style="|\son\w+="|(src|href)="(https?:)?//`, r.body, path)
	}
	r := d.get("/assets/dash.js")
	require.Equal(t, "text/javascript; charset=utf-8", r.header.Get("Content-Type"))
	require.LessOrEqual(t, strings.Count(r.body, "\n"), 500)
	require.Equal(t, 404, d.get("/assets/home.html").status)
}

func TestDashboardShowsWhyAWorkerIsQuarantinedAndEndsIt(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	s, w := d.assigned()
	const why = "1 of the last 1 attempts ended by this worker&#39;s own fault. The last one (engine): podman: exec format error"
	require.Equal(t, 200, d.giveUp(s.ID, w.ID, "engine").status)
	for _, path := range []string{"/fleet", "/fleet?state=quarantined&sort=state", "/fleet/" + w.ID} {
		page := d.get(path).body
		require.Contains(t, page, why, path)
		require.Contains(t, page, `<span class="badge quarantined">quarantined</span>`, path)
		require.Regexp(t, `Trial build due <time [^>]*>in \d+ s`, page, path)
		require.Contains(t, page, "Resume", path)
	}
	require.Equal(t, 303, d.act("/fleet/"+w.ID+"/resume", "reason=engine+is+back").status)
	page := d.get("/fleet/" + w.ID).body
	require.NotContains(t, page, why)
	require.Contains(t, page, `<span class="badge idle">idle</span>`)
}

func TestDashboardShowsASuspectAndRetriesWhatFailedThere(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	s, w := d.assigned()
	require.Equal(t, 200, d.giveUp(s.ID, w.ID, "build").status)
	other := d.submit()
	suspect := func(served bool) {
		_, err := d.pool.Exec(t.Context(), `UPDATE workers SET suspect = 'all 14 failures of 1 h ran here', suspect_since = now(), suspect_served = $1, rests_until = now() + interval '1 min'`, served)
		require.NoError(t, err)
	}
	suspect(false)
	_, err := d.pool.Exec(t.Context(), `UPDATE builds SET suspect = true WHERE id = $1`, s.ID)
	require.NoError(t, err)
	for _, path := range []string{"/fleet?state=suspect&sort=state", "/fleet/" + w.ID} {
		page := d.get(path).body
		require.Contains(t, page, "all 14 failures of 1 h ran here", path)
		require.Contains(t, page, `<span class="badge suspect">suspect</span>`, path)
		require.Regexp(t, `Trial build due <time [^>]*>in \d+ s`, page, path)
		require.Contains(t, page, "Drain", path)
	}
	require.Contains(t, d.get("/builds").body, "suspect worker")
	require.Contains(t, d.get("/overview").body, `<td data-label="Worker"><a href="/fleet/`+w.ID+`">w</a></td><td data-label="Ended">`, "where what ended has run")
	require.Contains(t, d.get("/fleet?state=suspect&sort=name").body, `<td data-label="Success" class="num">0 %`, "one failure is no reason for alarm")
	_, err = d.pool.Exec(t.Context(), `UPDATE workers SET failed = 14, completed = 1`)
	require.NoError(t, err)
	require.Contains(t, d.get("/fleet?state=suspect&sort=seen").body, `<td data-label="Success" class="num bad">7 % <small>of 15`)
	require.Contains(t, d.get("/builds/"+s.ID).body, "It failed on a suspect worker")
	require.NotContains(t, d.get("/builds/"+other.ID).body, "a suspect worker")
	shown := d.worker(w.ID)
	require.Equal(t, []any{"suspect", "all 14 failures of 1 h ran here", false}, []any{shown.State, shown.Suspect.Reason, shown.Suspect.Served})
	require.NotEmpty(t, shown.Suspect.Until)
	suspect(true)
	require.Contains(t, d.get("/fleet/"+w.ID).body, "It gets builds as before, because too few others can take them.")
	require.Empty(t, d.worker(w.ID).Suspect.Until)

	n := d.count()
	require.Equal(t, 303, d.act("/fleet/"+w.ID+"/retry", "reason=sick&suspect="+w.ID+"&back=/fleet/"+w.ID).status)
	require.Equal(t, n+1, d.count())
	_, acts := d.audited(10)
	require.Equal(t, "retry, builds of a suspect, sick, done", acts[0])
	require.Equal(t, 303, d.act("/fleet/"+w.ID+"/retry", "reason=again&suspect="+w.ID).status)
	require.Equal(t, n+1, d.count(), "it is retried already")
	require.Equal(t, 303, d.act("/fleet/"+w.ID+"/resume", "reason=mended").status)
	require.Nil(t, d.worker(w.ID).Suspect)
}

func TestDashboardActsAreAuditedWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	w := d.register("one").ID
	r := d.act("/fleet/"+w+"/drain", "back=//elsewhere.example")
	require.Equal(t, 400, r.status)
	require.Contains(t, r.body, "a reason is required")
	r = d.act("/fleet/"+w+"/drain", "reason=new+disks&back=//elsewhere.example")
	require.Equal(t, 303, r.status, r.body)
	require.Equal(t, "/overview", r.header.Get("Location"), "never elsewhere")
	require.Regexp(t, `^takt-done=drain; Path=/; Max-Age=60; HttpOnly; Secure; SameSite=Strict$`, r.header.Get("Set-Cookie"))
	shown := d.ask("GET", "/fleet/"+w, nil, map[string]string{"Cookie": d.cookie + "; takt-done=drain"})
	require.Contains(t, shown.body, "The worker gets no more builds")
	require.Contains(t, shown.header.Get("Set-Cookie"), "takt-done=; Path=/; Max-Age=0", "only once")
	entries, acts := d.audited(10)
	require.Equal(t, []string{"drain, worker/" + w + ", new disks, done"}, acts)
	require.Equal(t, "tester (api)@127.0.0.1", entries[0].Actor)
	require.Contains(t, string(entries[0].Detail), `"role": "api"`)
	require.Contains(t, string(entries[0].Detail), `"session"`)

	id := d.submit().ID
	require.Equal(t, 303, d.act("/builds/"+id+"/priority", "priority=-3").status)
	require.Equal(t, 400, d.act("/builds/"+id+"/priority", "priority=high").status)
	require.Equal(t, 303, d.act("/builds/"+id+"/cancel", "").status)
	require.Equal(t, "cancelled", d.state(id))
	require.Equal(t, 403, d.act("/builds/"+id+"/requeue", "reason=stuck").status, "for operators only")
	worker := d.register("two").ID
	done := d.submit().ID
	require.Equal(t, 200, d.finish(done, worker, "app").status)
	require.Equal(t, "app", d.get("/builds/"+done+"/download").body)
}

// Whatever a form holds, its act finds its endpoint and answers as that does.
func TestDashboardActsCallTheirEndpoints(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	ids := strings.NewReplacer("/builds/:id", "/builds/"+d.submit().ID, "/fleet/:id", "/fleet/"+d.register("one").ID, ":id", "none", ":name", "query", "*", "takt/heijunka/a/restart")
	for _, r := range d.server.Routes() {
		if r.Method == http.MethodPost && !strings.HasPrefix(r.Path, "/api/") && !strings.HasPrefix(r.Path, "/admin/") && !strings.HasPrefix(r.Path, "/log") {
			got := d.act(ids.Replace(r.Path), "reason=a+test")
			require.Less(t, got.status, 500, "%s: %s", r.Path, got.body)
		}
	}
}

func TestDashboardActsReadTheirForms(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	l := d.lever
	held, _ := d.assigned()
	require.Contains(t, d.get("/builds/"+held.ID).body, `action="/builds/`+held.ID+`/requeue"`)
	require.Contains(t, d.get("/system").body, "5 min without a heartbeat")
	require.Regexp(t, `scaled <time datetime="1970-01-01T00:00:01Z"`, d.get("/heijunka").body)
	for _, act := range []struct {
		path, form string
		status     int
		order      string // what comes of it
	}{
		{"/heijunka/limits", "soft_limit=+30+&hard_limit=&reserved=0.25&for=2h&reason=busy", 303, "limits 30 null 0.25 for 2h0m0s"},
		{"/heijunka/limits", "reset=true&reason=busy", 303, "reset limits"},
		{"/heijunka/limits", "soft_limit=many&reason=busy", 400, "soft_limit must be a number"},
		{"/heijunka/limits", "reserved=inf&reason=busy", 400, ""},
		{"/heijunka/limits", "soft_limit=30", 400, "reason is required"},
		{"/heijunka/pools/query", "by=-2&reason=calm", 303, "scale query by -2 to null"},
		{"/throttle/none/rate", "portal_id=1&action_id=7&max_throughput=5&time_period=1&time_unit=minute&reason=slow", 303, ""},
		{"/throttle/none/rate", "portal_id=1&action_id=7&max_throughput=5&time_period=1&time_unit=minute", 400, "a reason is required"},
		{"/throttle/none/rate", "portal_id=1&reason=slow", 400, "must be a positive integer"},
		{"/system/timeouts", "build_timeout=60", 400, "a reason is required"},
		{"/system/timeouts", "build_timeout=0.5&reason=x", 400, ""},
		{"/system/timeouts", "build_timeout=60&worker_timeout=&reason=short+builds", 303, ""},
		{"/builds/" + held.ID + "/requeue", "", 400, "a reason is required"},
		{"/builds/" + held.ID + "/requeue", "reason=no+output", 303, ""},
	} {
		l.orders = nil
		r := d.act(act.path, act.form)
		require.Equal(t, act.status, r.status, "%s %s: %s", act.path, act.form, r.body)
		if act.status == 400 {
			require.Contains(t, r.body, act.order)
			require.Empty(t, l.orders)
		} else if act.order != "" {
			require.Equal(t, []string{act.order}, l.orders)
		}
	}
	_, acts := d.audited(9)
	require.Equal(t, []string{
		"requeue, build/" + held.ID + ", no output, done", "set, heartbeat, short builds, done", "set, heartbeat, x, build_timeout is too short",
		"set rate, 1/7, slow, done",
		"scale, heijunka/pools/query, calm, done", "set, heijunka/limits, busy, done", "set, heijunka/limits, busy, done",
	}, acts, "each act once")

	require.Contains(t, d.get("/system").body, "1 min without a heartbeat")
	require.Equal(t, "pending", d.state(held.ID))
	require.Contains(t, d.get("/builds/"+held.ID).body, "an operator took it from worker ", "its timeline")
	require.NotContains(t, d.get("/builds/"+held.ID).body, "/requeue")

	for path, location := range map[string]string{
		"/tree/takt/heijunka/a/restart": "/tree",
		"/tree/takt/endpoint/restart":   "/tree?path=endpoint", // it answers first
	} {
		r := d.act(path, "reason=stuck&back=/tree?path=endpoint&timeout=5")
		require.Equal(t, 303, r.status, r.body)
		require.Equal(t, location, r.header.Get("Location"))
		require.Equal(t, strings.Contains(path, "endpoint"), r.closes, "%s: the next page comes on a new connection", path)
	}
	require.Equal(t, 400, d.act("/tree/takt/heijunka/a/restart", "reason=stuck&timeout=0").status)
}

// state is a build's state.
func (d *dash) state(id string) (state string) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `SELECT state FROM builds WHERE id = $1`, id).Scan(&state))
	return state
}

// follow opens the stream of a page and calls got for each part, until it returns true.
func (d *dash) follow(path string, got func(id, html string) bool) {
	d.t.Helper()
	d.stream(path, func(event, data string) bool {
		if event != "part" {
			return false
		}
		var part struct{ ID, HTML string }
		require.NoError(d.t, json.Unmarshal([]byte(data), &part))
		return got(part.ID, part.HTML)
	})
}

// stream opens the stream of a page and calls got for each event, until it returns true.
func (d *dash) stream(path string, got func(event, data string) bool) {
	d.t.Helper()
	event := ""
	d.streamLines(path, "", func(line string) bool {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(line, "data: ")
		return ok && got(event, data)
	})
}

// streamLines is stream for who wants each line of it, and has got the event with id last.
func (d *dash) streamLines(path, last string, got func(line string) bool) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), waitFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", d.url+path, nil)
	require.NoError(d.t, err)
	req.Header = http.Header{"Accept": {"text/event-stream"}, "Sec-Fetch-Site": {"same-origin"}, "Cookie": {d.cookie}}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := d.client.Do(req)
	require.NoError(d.t, err)
	defer resp.Body.Close()
	require.Equal(d.t, 200, resp.StatusCode)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 2<<20)
	for lines.Scan() {
		if got(lines.Text()) {
			return
		}
	}
	require.NoError(d.t, lines.Err(), "the stream of %s", path)
	require.Fail(d.t, "the stream of "+path+" has ended")
}

// A stream says every few seconds how old what it shows is, also if nothing changes.
func TestDashboardStreamSendsItsAge(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	begun, ages := time.Now(), 0
	var first, last time.Time // when what is shown was read
	d.stream("/audit", func(event, data string) bool {
		if event != "part" {
			age, err := strconv.Atoi(data)
			require.NoError(t, err)
			last = time.Now().Add(-time.Duration(age) * time.Millisecond)
			if ages++; ages == 1 {
				first = last
			}
		}
		return ages >= 3 && last.Sub(first) > time.Second // it was read again
	})
	require.Greater(t, time.Since(begun), 5*time.Second, "seldom")
}

// A page that was just read is never replaced by what its view's other viewers were
// shown before.
func TestDashboardStreamNeverTakesAPageBack(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	w := d.register("one").ID
	at := "/fleet/" + w
	d.follow(at, func(id, html string) bool {
		if id != "live-worker" {
			return false
		}
		require.Contains(t, html, "idle")
		require.Equal(t, 303, d.act(at+"/drain", "reason=a+test").status)
		require.Contains(t, d.get(at).body, "draining")
		d.follow(at, func(id, html string) bool {
			if id == "live-worker" {
				require.Contains(t, html, "draining")
			}
			return id == "live-worker"
		})
		return true
	})
}

// outage is a store of pages whose database can be away.
type outage struct {
	dashboard.Store
	away atomic.Bool
}

func (o *outage) Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) ([]store.WorkerDetail, store.Cursor, map[string]int, error) {
	if o.away.Load() {
		return nil, "", nil, store.NewError(store.Unavailable, "The database is not available")
	}
	return o.Store.Fleet(ctx, f, p)
}

func (o *outage) Waiting(ctx context.Context, p store.Page) ([]store.PendingBuild, store.Cursor, error) {
	if o.away.Load() {
		return nil, "", store.NewError(store.Unavailable, "The database is not available")
	}
	return o.Store.Waiting(ctx, p)
}

// While the database is away a page shows what it showed last, or says that it will
// appear; its stream brings it.
func TestDashboardPagesOutliveTheDatabase(t *testing.T) {
	t.Parallel()
	o := &outage{}
	d := setupDashWith(t, adminKey, func(s dashboard.Store) dashboard.Store {
		o.Store = s
		return o
	})
	d.register("one")
	require.Contains(t, d.get("/fleet?sort=used").body, "one</a>")
	o.away.Store(true)

	r := d.get("/fleet?sort=used")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "one</a>")
	require.Regexp(t, `The database is unavailable\..* This page shows data from <time`, r.body)

	r = d.get("/fleet?state=idle")
	require.Equal(t, 503, r.status)
	require.Equal(t, "5", r.header.Get("Retry-After"))
	require.Contains(t, r.body, "The database is unavailable.")
	require.NotContains(t, r.body, "shows data from <time")
	require.Contains(t, r.body, `<noscript><meta http-equiv="refresh"`)
	require.Contains(t, r.body, `<body data-live="away">`)
	r = d.get("/queue")
	require.Equal(t, 503, r.status)
	require.Contains(t, r.body, "Time waited by those that started", "memory holds the plots")
	d.follow("/fleet?state=idle", func(id, html string) bool {
		if o.away.Load() {
			if id == "live-nav" {
				require.Contains(t, html, ">Fleet")
				return false
			}
			require.Equal(t, "live-stale", id, "there is nothing else to show")
			require.Contains(t, html, "The database is unavailable.")
			o.away.Store(false)
		}
		return id == "live-fleet" && strings.Contains(html, "one</a>")
	})
	require.Equal(t, 200, d.get("/fleet?state=idle").status)
}

// The overview is there during an outage, too, and says so first.
func TestDashboardOverviewOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	o := &outage{}
	d := setupDashWith(t, apiKey, func(s dashboard.Store) dashboard.Store {
		o.Store = s
		return o
	})
	_, w := d.assigned()
	r := d.get("/overview")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "All is well: 1 worker online, nothing waiting.")
	require.Contains(t, r.body, `href="/fleet/`+w.ID+`"`, "what runs")
	o.away.Store(true)
	require.Eventually(t, func() bool { return strings.Contains(d.get("/overview").body, `data-kind="database"`) }, waitFor, tick)
	r = d.get("/overview")
	require.Equal(t, 200, r.status)
	require.Regexp(t, `The lists and numbers were read <time`, r.body)
	require.Equal(t, 1, strings.Count(r.body, "is lost.</b>")+strings.Count(r.body, "The database is unavailable"), "once")
	require.Contains(t, r.body, `href="/fleet/`+w.ID+`"`, "as it was known last")
	require.Contains(t, r.body, "<title>(1 problem) Overview · takt</title>")
	require.Contains(t, r.body, "icon-bad.svg")
	r = d.get("/tree")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "<title>(1 problem) ", "every page says so")
	o.away.Store(false)
	d.follow("/overview", func(id, html string) bool { return id == "live-problems" && strings.Contains(html, "All is well") })
}

// The navigation counts what needs attention, and leaves out what was never used.
func TestDashboardNavigationCounts(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	nav := func() string {
		_, after, _ := strings.Cut(d.get("/queue").body, "<nav")
		before, _, _ := strings.Cut(after, "</nav>")
		return before
	}
	require.NotContains(t, nav(), "/throttle")
	require.NotContains(t, nav(), "/deployments")
	require.NotContains(t, nav(), "count")
	failed, w := d.assigned()
	require.Equal(t, 200, d.json("POST", "/api/workers/fail", key("X-Worker-Id", w.ID), `{"build_id":"`+failed.ID+`"}`).status)
	d.submit()
	for _, sql := range []string{
		`UPDATE workers SET last_seen_at = now() - interval '10 min'`,
		`INSERT INTO deployments (id, request, credential_id) VALUES ('d', '{}', 'x')`,
	} {
		_, err := d.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	for _, want := range []string{`title="1 with a problem"`, `title="1 waiting"`, `title="1 failed in the last hour"`, `href="/deployments"`} {
		require.Eventually(t, func() bool { return strings.Contains(nav(), want) }, waitFor, tick, want)
	}
	require.NotContains(t, nav(), "/throttle")
	overview := d.get("/overview").body
	for _, want := range []string{
		`<a class="silent" href="/fleet?state=silent">1 silent</a>`, `<a href="/queue">1 waiting, oldest a few seconds</a>`,
		`<a href="/builds?state=failed&amp;age=1h">1 of 1 failed in the last hour</a>`, `<a href="/fleet">0 slots: 0 busy, 0 free</a>`, `data-kind="stuck"`,
	} {
		require.Contains(t, overview, want)
	}
}

// A cancel is no error, and a build leads to what it repeats and to what repeats it.
func TestDashboardShowsWhoCancelledABuildAndItsRetries(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	s, w := d.assigned()
	require.Equal(t, 303, d.act("/builds/"+s.ID+"/cancel", "reason=superseded+%3Cb%3E").status)
	require.Equal(t, 200, d.json("POST", "/api/builds/"+s.ID+"/logs", key("X-Worker-Id", w.ID), `{"level":"info","message":"late"}`).status)
	require.Equal(t, 303, d.act("/builds/"+s.ID+"/retry", "").status)
	again := d.status(s.ID).Retries[0]
	const who = "Cancelled by tester (api): superseded &lt;b&gt;"
	page := d.get("/builds/" + s.ID).body
	require.Contains(t, page, `<p class="note"><b>`+who+`</b></p>`)
	require.NotContains(t, page, "Error:")
	require.NotContains(t, page, store.MessageCancelled)
	require.Regexp(t, `(?s)<li class="done"><b>Cancelled by tester \(api\)</b>.*<li class="done"><b><a href="/builds/`+again+`">Retried as build `+again+`</a></b>`, page)
	require.Regexp(t, `(?s)Build cancelled by tester \(api\): superseded &lt;b>.*late`, page, "in the log, above what came after it")
	require.Contains(t, d.get("/builds/"+s.ID+"/log/raw").body, "Build cancelled by tester (api): superseded <b>\nlate\n")
	require.Contains(t, d.get("/builds/"+again).body, `<dt>Retry of</dt><dd><a class="id" href="/builds/`+s.ID+`">`+s.ID+`</a>`)
	for _, path := range []string{"/builds", "/overview"} {
		page := d.get(path).body
		require.Contains(t, page, who, path)
		require.NotContains(t, page, store.MessageCancelled, path)
	}
	require.Contains(t, d.get("/builds").body, `<a class="label" href="/builds/`+s.ID+`">retry of `+s.ID[:8]+`…</a>`)

	_, err := d.pool.Exec(t.Context(), `UPDATE builds SET submitted_at = now() - interval '23 min', waiting_since = now() - interval '30 s' WHERE id = $1`, again)
	require.NoError(t, err)
	for path, shown := range map[string]string{
		"/builds/" + again: "<dt>Waiting</dt><dd>30 s</dd>", "/queue": `<td data-label="Waiting">30 s</td>`, "/overview": `<td data-label="Waiting">30 s</td>`,
	} {
		require.Contains(t, d.get(path).body, shown, path)
	}
}

func TestDashboardFiltersBuilds(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	labelled := d.submit(part{name: "labels", content: `{"branch":"main","commit":"abcdef123456","os":"17"}`}).ID
	cancelled, pending := d.submit().ID, d.submit().ID
	require.Equal(t, 303, d.act("/builds/"+cancelled+"/cancel", "").status)
	rows := func(query string) (ids []string) {
		body := d.get("/builds" + query).body
		for _, m := range regexp.MustCompile(`<tr id="b-([^"]+)"`).FindAllStringSubmatch(body, -1) {
			ids = append(ids, m[1])
		}
		require.Contains(t, body, "<b>"+plural(len(ids), "build")+"</b>", query)
		return ids
	}
	require.Equal(t, []string{pending, cancelled, labelled}, rows(""))
	require.Equal(t, []string{pending, cancelled, labelled}, rows("?state=pending&state=cancelled"))
	require.Equal(t, []string{cancelled}, rows("?state=failed&state=cancelled"))
	require.Equal(t, []string{labelled}, rows("?q=MAIN"))
	require.Equal(t, []string{labelled}, rows("?q=os&label=branch%3dmain&age=1h&platform=ios&state=pending"))
	require.Equal(t, []string{labelled}, rows("?label=branch%3dmain&label=os%3d17"))
	require.Empty(t, rows("?label=branch%3dmain&label=os%3d18"))
	require.Contains(t, d.get("/builds?label=branch%3dmain&label=os%3d17").body, `<label>Label <input name="label" value="os=17" placeholder="branch=main"></label>
<label>Label <input name="label" value="" placeholder`)
	for query, message := range map[string]string{
		"?label=branch":     "Write a label as name=value, such as branch=main.",
		"?state=broken":     "Unknown state: broken. Use one of: pending, ",
		"?platform=windows": "Unknown platform: windows. Use one of: ios, android.",
		"?age=1y":           "Unknown age: 1y. ",
	} {
		require.Equal(t, []string{pending, cancelled, labelled}, rows(query), "the rest of the filter holds")
		r := d.get("/builds" + query)
		require.Equal(t, 200, r.status)
		require.Contains(t, r.body, message)
		require.Contains(t, r.body, `<form class="filter"`)
	}
	require.Contains(t, d.get("/builds?state=pending&state=failed").body, `value="failed" checked`)
	require.Contains(t, d.get("/fleet?state=broken&sort=none").body, "Unknown sort: none. ")
	page := d.get("/builds").body
	require.Contains(t, page, `>main@abcdef1</a> <span class="num"><span class="id" title="`+labelled+`">`+labelled[:8]+`…</span>`)
	require.Contains(t, page, `<span class="label">os=17</span>`)
	require.Contains(t, d.get("/builds/"+labelled).body, "Build main@abcdef1 · takt</title>")
	require.Contains(t, d.get("/builds/"+pending).body, "Build "+pending+" · takt</title>")
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", one, "s")
}

// Several builds are cancelled and retried at once, each as if alone, and the page says which
// were not and why.
func TestDashboardRetriesAndCancelsBuildsTogether(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	one, two, other := d.submit().ID, d.submit().ID, d.submit().ID
	form := "id=" + one + "&id=" + two + "&id=nothing&act="
	require.Contains(t, d.get("/builds").body, `<input type="checkbox" name="id" value="`+one+`" form="bulk"`)
	r := d.act("/builds/bulk", form+"cancel")
	require.Equal(t, 400, r.status)
	require.Contains(t, r.body, "a reason is required")
	require.Contains(t, d.act("/builds/bulk", "act=cancel&reason=x").body, "No build was selected.")
	r = d.act("/builds/bulk", form+"cancel&reason=wrong+branch&back=/builds%3fstate%3dpending")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, "2 builds cancelled.")
	require.Contains(t, r.body, "1 build could not be cancelled:")
	require.Contains(t, r.body, "Build not found")
	require.Contains(t, r.body, `href="/builds?state=pending"`)
	require.Equal(t, []string{"cancelled", "cancelled", "pending"}, []string{d.state(one), d.state(two), d.state(other)})
	r = d.act("/builds/bulk", "id="+one+"&id=nothing&act=retry&reason=again")
	require.Contains(t, r.body, "1 build submitted again.")
	require.Contains(t, r.body, "1 build could not be retried:")
	require.Equal(t, 4, d.count())
	entries, acts := d.audited(10)
	require.Equal(t, []string{
		"retry, 2 builds, again, 1 done, failed: nothing (Build not found)", "cancel, 3 builds, wrong branch, 2 done, failed: nothing (Build not found)",
	}, acts, "one entry for a form")
	require.Contains(t, string(entries[1].Detail), two)
}

// A form names few builds, and its session needs a scope for what it does before any of them is
// looked up.
func TestDashboardBulkFormIsSmallAndNeedsAScope(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	many := strings.Repeat("id=nothing&", 100) + "act=cancel&reason=x"
	require.Contains(t, d.act("/builds/bulk", many).body, "100 builds could not be cancelled")
	r := d.act("/builds/bulk", "id=more&"+many)
	require.Equal(t, 400, r.status)
	require.Contains(t, r.body, "At most 100 builds can be retried or cancelled at once, got 101")
	_, acts := d.audited(1000)
	require.Len(t, acts, 1)
	require.Less(t, len(acts[0]), 500)

	r = d.login(d.named("reader", store.ScopeRead).Key, "tester", nil)
	require.Equal(t, 303, r.status, r.body)
	d.cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	require.Equal(t, 403, d.act("/builds/bulk", "id=nothing&act=cancel&reason=x").status)
	_, acts = d.audited(1000)
	require.Equal(t, "create key, key/reader, , done", acts[0])
	require.Len(t, acts, 2, "nothing was begun")
}
