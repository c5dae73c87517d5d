package http_test

import (
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// promise is what a route answers to a request: a success, or an error with the text that old
// clients read.
type promise struct {
	status        int
	text, request string // such as "Invalid status" and "GET /api/builds?status=x"
	header        map[string]string
	body          string
}

// promises asks for them in turn and remembers which routes have answered with a success.
type promises struct {
	*cast
	kept map[string]bool
}

func (p *promises) check(all ...promise) {
	t := p.b.t
	t.Helper()
	for _, a := range all {
		method, path, _ := strings.Cut(a.request, " ")
		header := map[string]string{}
		if method != http.MethodGet {
			header["Content-Type"] = "application/json"
		}
		maps.Copy(header, a.header)
		p.answered(a.status, a.text, a.request, p.b.send(method, path, header, a.body))
	}
}

// answered checks the answer to a request.
func (p *promises) answered(status int, text, request string, r reply) {
	t := p.b.t
	t.Helper()
	require.Equal(t, status, r.status, "%s: %s: %s", request, text, r.body)
	require.NotContains(t, r.body, `": `, "%s: JSON is compact", request)
	if text == "" {
		require.Less(t, status, 400, "a success")
		path, _, _ := strings.Cut(request, "?")
		p.kept[routeOf(p.b.server, path)] = true
		return
	}
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"), request)
	require.Contains(t, r.body, `"error":"`+text+`"`, request)
	require.Contains(t, r.body, `"detail":"`+text+`"`, request)
	require.Regexp(t, `"code":"[a-z_]+"`, r.body, request)
	require.Equal(t, status == 503, r.header.Get("Retry-After") != "", request)
}

// routeOf returns the route of a request: of those that match, the one with the fewest
// parameters.
func routeOf(s *takthttp.Server, request string) (route string) {
	for _, r := range s.Routes() {
		at := r.Method + " " + r.Path
		pattern := "^" + regexp.MustCompile(`:\w+`).ReplaceAllString(at, `[^/]+`) + "$"
		if regexp.MustCompile(pattern).MatchString(request) && (route == "" || strings.Count(at, ":") < strings.Count(route, ":")) {
			route = at
		}
	}
	return route
}

// upload sends parts to a route for results, with the fields that are not "".
func (p *promises) upload(status int, text, path, build, worker, success string, parts ...part) {
	p.b.t.Helper()
	for name, v := range map[string]string{"build_id": build, "worker_id": worker, "success": success} {
		parts = append(parts, part{name: name, content: v}) // file first, as the mock worker does
	}
	p.answered(status, text, "POST "+path, p.b.form(path, key(), parts...))
}

func TestEveryRouteAnswersAsPromised(t *testing.T) {
	t.Parallel()
	c := newCast(t, func(c *takthttp.Config) {
		c.MaxSource, c.MaxCerts, c.MaxResult, c.MaxJSON = 1000, 500, 1000, 2000
		c.HubSpotSecret = clientSecret
	})
	p := &promises{c, map[string]bool{}}
	p.ofSubmissions()
	p.ofReads()
	p.ofHolders()
	p.ofWorkers()
	p.ofDeployments()
	p.ofThrottle()
	p.ofOutages()
	for _, route := range registered(t) {
		method, path, _ := strings.Cut(route, " ")
		known := strings.HasPrefix(path, "/api/") || path == "/health" || path == "/public/stats"
		if known && method != http.MethodHead && path != "/api/events" { // a stream without end
			require.True(t, p.kept[route], "%s: no success is promised", route)
		}
		p.ofUnknown(method, path)
	}
}

// ofUnknown is what a route answers if nothing has the id in its path.
func (p *promises) ofUnknown(method, path string) {
	about := map[string]string{"/api/builds/:id": "Build", "/api/workers/:id": "Worker", "/api/diagnostics/:worker_id": "Worker", "/api/deployments/:id": "Deployment"}
	for prefix, what := range about {
		if !strings.HasPrefix(path, prefix) || method == http.MethodHead {
			continue
		}
		request := method + " " + strings.NewReplacer(":id", "unknown", ":worker_id", "unknown", ":type", "result").Replace(path)
		body := map[string]string{"PATCH": `{"priority":1}`}[method]
		switch {
		case strings.HasSuffix(path, "/heartbeat"):
			request += "?worker_id=w"
		case strings.HasSuffix(path, "/requeue"):
			body = `{"reason":"stuck"}`
		case request == "POST /api/builds/unknown/logs":
			body = `{"level":"info","message":"x"}`
		case strings.HasSuffix(path, "/telemetry"):
			body = `{"type":"heartbeat","timestamp":"t","data":{}}`
		}
		p.check(promise{404, what + " not found", request, key("X-Worker-Id", p.holder.ID, "X-Build-Id", "unknown", "X-Admin-Key", adminKey), body})
	}
}

func (p *promises) ofSubmissions() {
	p.check(promise{400, "Content must be multipart/form-data", "POST /api/builds", key(), `{"platform":"ios"}`})
	big := func(n int) string { return strings.Repeat("x", n) }
	for path, ok := range map[string]int{"/api/builds": 201, "/api/builds/submit": 200} {
		for _, parts := range [][]part{
			{source("s"), {"profile", "p", "x"}, {name: "appleId", content: "a"}, {name: "applePassword", content: "b"}, ios()},
			{source(big(1000)), {"certs", "c", big(500)}, ios()},
		} {
			r := p.b.form(path, key(), parts...)
			p.answered(ok, "", "POST "+path, r)
			p.check(promise{200, "", "POST /api/builds/" + decode[api.Submitted](p.b.t, r).ID + "/cancel", key(), ""})
		}
	}
}

func (p *promises) ofReads() {
	const lost = "Original build source no longer available. Please submit a new build."
	at := func(s api.Submitted) string { return "/api/builds/" + s.ID }
	token := func(s api.Submitted) map[string]string { return map[string]string{"X-Build-Token": s.AccessToken} }
	admin, wrong := key("X-Admin-Key", adminKey), map[string]string{"X-API-Key": "wrong", "X-Build-Token": "wrong"}
	const denied, reason = "Invalid or expired build token", `{"reason":"stuck"}`
	p.check(promise{200, "", "PATCH " + at(p.waiting), key(), `{"priority":-10}`}) // behind what is submitted from now on
	gone, w := p.b.assigned()
	require.Equal(p.b.t, 200, p.b.finish(gone.ID, w.ID, "app").status)
	p.b.remove("builds/" + gone.ID)
	p.check(
		promise{200, "", "GET /api/builds", key(), ""},
		promise{200, "", "GET /api/builds/", key(), ""},
		promise{200, "", "GET /api/builds?status=failed&platform=ios&worker_id=w&limit=5&format=object", key(), ""},
		promise{400, "Invalid request: limit must be a positive whole number", "GET /api/builds?limit=0", key(), ""},
		promise{200, "", "GET /api/builds/active", key(), ""},
		promise{200, "", "GET /api/builds/statistics", key(), ""},
		promise{200, "", "GET " + at(p.held), key(), ""},
		promise{401, "Missing X-API-Key header", "GET " + at(p.held), token(p.held), ""},
		promise{401, "Missing X-API-Key or X-Build-Token header", "GET " + at(p.held) + "/status", nil, ""},
		promise{403, "Invalid API key", "GET " + at(p.held), map[string]string{"X-API-Key": "wrong"}, ""},
		promise{401, "Missing X-Admin-Key header", "GET /admin/tree", key(), ""},
		promise{403, "Invalid admin key", "GET /admin/tree", map[string]string{"X-Admin-Key": apiKey}, ""},
		promise{400, "Invalid worker_id", "GET /api/builds?worker_id=../x", key(), ""},
		promise{400, "Build not completed", "GET " + at(p.held) + "/download", key(), ""},
		promise{400, "Build not completed", "GET " + at(p.held) + "/download/result", key(), ""},
		promise{400, "Invalid file type", "GET " + at(p.held) + "/download/certs", key(), ""},
		promise{200, "", "GET " + at(p.finished) + "/download/source", token(p.finished), ""},
		promise{404, "Build result not found", "GET " + at(gone) + "/download", key(), ""},
		promise{404, "Build result not found", "GET " + at(gone) + "/download/result", key(), ""},
		promise{404, "Source not found", "GET " + at(gone) + "/download/source", key(), ""},
		promise{400, "Invalid request: priority required", "PATCH " + at(p.waiting), key(), `{}`},
		promise{400, "Invalid request: priority must be -10 to 10", "PATCH " + at(p.waiting), key(), `{"priority":11}`},
		promise{409, "Build is not pending", "PATCH " + at(p.cancelled), key(), `{"priority":1}`},
		promise{400, "Build already finished", "POST " + at(p.cancelled) + "/cancel", key(), ""},
		promise{200, "", "POST /api/builds/cancel?label=no=one", key(), ""},
		promise{200, "", "POST /api/builds/retry?label=no=one", key(), ""},
		promise{400, "Invalid request: label required, as name=value", "POST /api/builds/cancel", key(), ""},
		promise{400, "Invalid request: reason is required", "POST " + at(p.waiting) + "/requeue", admin, `{}`},
		promise{409, "No worker holds the build, its state is pending", "POST " + at(p.waiting) + "/requeue", admin, reason},
		promise{400, lost, "POST " + at(gone) + "/retry", key(), ""},
	)
	for _, path := range []string{"/status", "/why", "/timeline", "/logs", "/download", "/download/result", "/retry"} {
		method := map[bool]string{true: "POST ", false: "GET "}[path == "/retry"]
		for _, header := range []map[string]string{key(), token(p.finished)} {
			p.check(promise{200, "", method + at(p.finished) + path, header, ""})
			_, err := p.b.pool.Exec(p.b.t.Context(), `UPDATE builds SET state = 'cancelled', completed_at = now() WHERE retry_root IS NOT NULL`)
			require.NoError(p.b.t, err)
		}
		p.check(
			promise{403, denied, method + at(p.finished) + path, token(p.held), ""},
			promise{403, denied, method + at(p.finished) + path, wrong, ""},
			promise{404, "Build not found", method + "/api/builds/unknown" + path, token(p.held), ""},
		)
	}
}

func (p *promises) ofHolders() {
	const line, figures = `{"level":"info","message":"x"}`, `{"type":"heartbeat","timestamp":"t","data":{}}`
	b, at := p.b, func(id, what string) string { return "/api/builds/" + id + what }
	mine := func(more ...string) map[string]string {
		return key(append([]string{"X-Worker-Id", p.holder.ID, "X-Build-Id", p.held.ID}, more...)...)
	}
	for what, body := range map[string]string{"GET source": "", "GET certs": "", "GET certs-secure": "", "GET inputs": "", "POST logs": line, "POST telemetry": figures} {
		method, what, _ := strings.Cut(what, " ")
		request, nobodys := method+" "+at(p.held.ID, "/"+what), method+" "+at(p.waiting.ID, "/"+what)
		p.check(
			promise{400, "Invalid X-Build-Attempt header", request, mine("X-Build-Attempt", "x"), body},
			promise{401, "Missing X-Worker-Id header", request, key("X-Build-Id", p.held.ID), body},
			promise{403, "Unknown worker", request, mine("X-Worker-Id", "wrong-worker"), body},
			promise{403, "Build not assigned to this worker", request, mine("X-Worker-Id", p.idle.ID), body},
			promise{403, "Build not assigned to this worker", nobodys, mine("X-Build-Id", p.waiting.ID), body},
			promise{409, "A newer attempt of this build exists", request, mine("X-Build-Attempt", "1"), body},
		)
		if what == "certs-secure" || what == "telemetry" {
			p.check(
				promise{401, "Missing X-Build-Id header", request, key("X-Worker-Id", p.holder.ID), body},
				promise{403, "X-Build-Id does not match the build", request, mine("X-Build-Id", "other"), body},
			)
		}
	}
	bare, by := b.assigned()
	b.remove("builds/" + bare.ID)
	its := key("X-Worker-Id", by.ID, "X-Build-Id", bare.ID)
	lost, with := b.assigned(part{"certs", "c.zip", "x"})
	b.remove("builds/" + lost.ID + "/certs.zip")
	packed, owner := b.assigned(certsZip(b.t, "c.p12", "x"))
	for _, what := range []string{"/certs", "/certs-secure"} {
		p.check(
			promise{404, "Certs not found", "GET " + at(bare.ID, what), its, ""},
			promise{404, "Certs not found", "GET " + at(lost.ID, what), key("X-Worker-Id", with.ID, "X-Build-Id", lost.ID), ""},
			promise{200, "", "GET " + at(packed.ID, what), key("X-Worker-Id", owner.ID, "X-Build-Id", packed.ID), ""},
		)
	}
	logs, telemetry, heartbeat := "POST "+at(p.held.ID, "/logs"), "POST "+at(p.held.ID, "/telemetry"), "POST "+at(p.held.ID, "/heartbeat")
	p.check(
		promise{404, "Source not found", "GET " + at(bare.ID, "/source"), its, ""},
		promise{422, "Failed to process certs file", "GET " + at(p.held.ID, "/certs-secure"), mine(), ""},
		promise{200, "", "GET " + at(p.held.ID, "/source"), mine("X-Build-Attempt", "2"), ""},
		promise{200, "", "GET " + at(p.held.ID, "/inputs"), mine(), ""},
		promise{200, "", logs, mine(), line},
		promise{200, "", logs, mine(), `{"logs":[` + line + `,{"level":"debug","message":"x"}]}`},
		promise{200, "", telemetry, mine(), figures},
		promise{200, "", heartbeat + "?worker_id=" + p.holder.ID, key(), `{"progress":50}`},
		promise{200, "", heartbeat + "?worker_id=" + p.holder.ID, key(), ``},
		promise{403, "Build not assigned to this worker", heartbeat + "?worker_id=other", key(), ``},
		promise{400, "Invalid body: wrong type of progress", heartbeat + "?worker_id=" + p.holder.ID, key(), `{"progress":"half"}`},
	)
	for path, body := range map[string]string{"POST /api/workers/fail": `{"build_id":"ID","error":"x"}`, "POST /api/workers/heartbeat": `{"build_id":"ID"}`} {
		of := func(id string) string { return strings.Replace(body, "ID", id, 1) }
		p.check(
			promise{404, "Build not found", path, key(), of("unknown")},
			promise{403, "Build not assigned to a worker", path, key(), of(p.waiting.ID)},
			promise{200, "", path, key("X-Worker-Id", with.ID), of(lost.ID)},
		)
	}
	file := part{"result", "app.ipa", "app"}
	for _, path := range []string{"/api/workers/upload", "/api/workers/result"} {
		p.upload(404, "Build not found", path, "unknown", p.holder.ID, "true", file)
		p.upload(404, "Worker not found", path, p.held.ID, "unknown", "true", file)
		p.upload(403, "Build not assigned to this worker", path, p.held.ID, p.idle.ID, "true", file)
		p.upload(409, "Build already finished", path, p.cancelled.ID, p.gone.ID, "true", file)
	}
	for _, path := range []string{"/api/workers/upload", "/api/workers/result"} {
		p.upload(200, "", path, p.held.ID, p.holder.ID, "true", file)
		p.upload(200, "", path, bare.ID, by.ID, "false")
	}
	p.check(promise{200, "", "POST " + at(packed.ID, "/requeue"), key("X-Admin-Key", adminKey), `{"reason":"stuck"}`})
}

func (p *promises) ofWorkers() {
	const register, unregister, report = "POST /api/workers/register", "POST /api/workers/unregister", "POST /api/diagnostics/report"
	b, token := p.b, func(token string) map[string]string { return key("X-Worker-Token", token) }
	p.check(
		promise{201, "", "POST /api/workers/enroll", shownKey(b.named("token", store.ScopeEnroll).Key).headers(), `{"name":"w"}`},
		promise{403, "A worker enrolls with a token of takt keys enroll", "POST /api/workers/enroll", key(), `{"name":"w"}`},
		promise{200, "", register, key(), `{"name":"w","capabilities":{}}`},
		promise{200, "", register, key(), `{"name":"w","capabilities":{},"id":"mine","publicIdentifier":"x","apiKey":"y"}`},
		promise{200, "", unregister, token(b.register("w").AccessToken), ""},
		promise{200, "", "POST /api/workers/leaving", token(b.register("w").AccessToken), ""},
		promise{401, "Missing X-Worker-Token header", "POST /api/workers/leaving", key(), ""},
		promise{200, "", "GET /api/attention", key(), ""},
		promise{200, "", "GET /api/workers?status=idle&limit=5", key(), ""},
		promise{400, "Invalid status", "GET /api/workers?status=tired", key(), ""},
		promise{400, "Invalid state", "GET /api/workers?state=tired", key(), ""},
		promise{400, "Invalid request: limit must be a positive whole number", "GET /api/workers?limit=x", key(), ""},
		promise{404, "Worker not found", "DELETE /api/workers/..%2fw", key(), ""},
	)
	for _, method := range []string{"GET", "POST"} {
		w, poll := b.register("w"), method+" /api/workers/poll"
		p.check(
			promise{200, "", poll, token(w.AccessToken), ""},
			promise{200, "", poll + "?worker_id=" + w.ID, key(), ""},
			promise{400, "X-Worker-Token header or worker_id required", poll, key(), ""},
			promise{400, "Invalid request: wait must be 0 to 60 seconds", poll + "?worker_id=w&wait=61", key(), ""},
			promise{400, "Invalid request: active must be a list of build ids", poll + "?worker_id=w&active=a%20b", key(), ""},
			promise{401, "Invalid worker token", poll, token("unknown"), ""},
			promise{404, "Worker not found", poll + "?worker_id=unknown", key(), ""},
		)
	}
	w := b.register("w").ID
	reports := "GET /api/diagnostics/" + w
	p.check(promise{404, "No diagnostic reports found", reports + "/latest", key(), ""})
	p.answered(200, "", report, b.diagnose(w, "critical"))
	p.check(
		promise{200, "", reports + "?limit=1", key(), ""},
		promise{400, "Invalid request: limit must be a positive whole number", reports + "?limit=0", key(), ""},
		promise{200, "", reports + "/latest", key(), ""},
		promise{200, "", "GET /api/workers/" + w, key(), ""},
		promise{200, "", "GET /api/workers/" + w + "/stats", key(), ""},
		promise{200, "", "POST /api/workers/" + w + "/drain", key(), ""},
		promise{200, "", "POST /api/workers/" + w + "/resume", key(), ""},
		promise{200, "", "POST /api/workers/" + w + "/unregister", key(), ""},
		promise{200, "", "DELETE /api/workers/" + w, key(), ""},
	)
}

func (p *promises) ofDeployments() {
	const all = "/api/deployments"
	const one, create = all + "/d1", "POST " + all
	p.check(
		promise{400, "Invalid request: source_org and target_org required", create, key(), ""},
		promise{400, "Invalid request: source_org must be the name of an organisation", create, key(), "{}"},
		promise{400, "Invalid JSON body", create, key(), "{"},
		promise{202, "", create, key(), `{"source_org":"a","target_org":"b","token":"t"}`},
		promise{200, "", "GET " + all, key(), ""},
		promise{400, "Invalid request: limit must be 1 to 500", "GET " + all + "?limit=501", key(), ""},
		promise{200, "", "GET " + one, key(), ""},
		promise{409, "Deployment is planning, not paused", "POST " + one + "/resume", key(), ""},
		promise{409, "Nothing to try again", "POST " + one + "/retry", key(), ""},
		promise{200, "", "POST " + one + "/pause", key(), ""},
		promise{409, "Deployment is paused", "POST " + one + "/pause", key(), ""},
		promise{200, "", "POST " + one + "/resume", key(), ""},
		promise{200, "", "POST " + one + "/cancel", key(), ""},
		promise{409, "Deployment is cancelled already", "POST " + one + "/cancel", key(), ""},
		promise{200, "", "GET " + one + "/events", key(), ""},
		promise{200, "", "POST " + one + "/retry", key(), ""},
	)
}

func (p *promises) ofThrottle() {
	const none, one, action = "Configuration not found", "/api/config/62515/7", "POST /api/hubspot/action"
	const portal, definition = "Invalid request: portal_id must be a positive integer", "Invalid request: action_id must be a positive integer"
	b, body, own := p.b, string(webhook("c1").Body()), map[string]string{"Cookie": "takt_install=browser"}
	p.answered(400, "No configuration for this portal and action", action, b.fire(body, clientSecret))
	p.check(
		promise{200, "", "POST /api/config", key(), tenASecond},
		promise{400, portal, "POST /api/config", key(), "{}"},
		promise{400, "Invalid JSON body", "POST /api/config", key(), "{"},
		promise{200, "", "GET /api/config/62515", key(), ""},
		promise{400, portal, "GET /api/config/x", key(), ""},
		promise{200, "", "GET " + one, key(), ""},
		promise{400, definition, "GET /api/config/1/x", key(), ""},
		promise{404, none, "GET /api/config/1/2", key(), ""},
		promise{400, definition, "DELETE /api/config/1/x", key(), ""},
		promise{404, none, "DELETE /api/config/1/2", key(), ""},
		promise{401, "Invalid signature", action, nil, body},
		promise{200, "", "GET /api/oauth/callback?state=s&code=c", own, ""},
		promise{400, "Invalid request: state is unknown, too old or another browser's: begin again", "GET /api/oauth/callback?state=x&code=c", own, ""},
	)
	p.answered(204, "", action, b.fire(body, clientSecret))
	p.answered(400, "Invalid JSON body", action, b.fire("{", clientSecret))
	p.answered(401, "Invalid signature", action, b.fire(body, "another secret"))
	p.check(promise{204, "", "DELETE " + one, key(), ""})
	stay := *b.client
	stay.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	p.answered(302, "", "GET /api/oauth/authorize", send(b.t, &stay, "GET", b.url+"/api/oauth/authorize", nil, nil))
}

// ofOutages is what is answered while the queue is full, and while the database is away.
func (p *promises) ofOutages() {
	b := p.b
	submit := func(path string) reply { return b.form(path, key(), source("s"), ios()) }
	for i := 0; submit("/api/builds").status == 201; i++ {
		require.Less(b.t, i, 100, "the queue has a limit")
	}
	const full = "Build queue full, try again later"
	p.answered(503, full, "POST /api/builds", submit("/api/builds"))
	p.answered(503, full, "POST /api/builds/submit", submit("/api/builds/submit"))
	p.check(promise{503, full, "POST /api/builds/" + p.finished.ID + "/retry", key(), ""})
	for _, path := range []string{"/health", "/api/health"} {
		p.check(promise{200, "", "GET " + path, map[string]string{"X-API-Key": "wrong", "Origin": "https://example.org"}, ""})
		b.db.Drop(nil)
		p.check(promise{503, "Database unavailable, try again later", "GET " + path, nil, ""})
		b.db.Use(b.pool)
	}
	for _, path := range []string{"/api/stats", "/public/stats"} {
		p.check(promise{200, "", "GET " + path, nil, ""})
	}
}
