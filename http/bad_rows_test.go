package http_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/dashboard"
	"takt/http/hubspottest"
	"takt/store/postgres"
)

// written lists everything with which a client stores text or a number: METHOD PATH of a
// request, and its body with § for a value in JSON. Names in braces are ids of a fixture. A body
// with = is a form. Where § is part of a text, so is the value's text.
func written() map[string][]string {
	return map[string][]string{
		"POST /api/workers/register": {
			`{"name":§,"capabilities":{}}`, `{"id":§,"name":"w","capabilities":{}}`, `{"name":"w","capabilities":{"x":§}}`,
			`{"name":"w","capabilities":{"labels":{"a":§}}}`, `{"name":"w","capabilities":{"labels":§}}`, `{"name":"w","capabilities":{"platforms":[§]}}`,
			`{"name":"w","capabilities":{"maxConcurrentBuilds":§}}`, `{"name":"w","instance":§,"capabilities":{}}`, `{"name":"w","capabilities":§}`,
			`{"id":"n","name":"w","instance":"i","registration":§,"capabilities":{}}`, `{"id":"{build_worker}","name":"w","active_builds":["{build}",§],"capabilities":{}}`,
		},
		"POST /api/builds": {
			`platform=§`, `platform=ios&labels={"a":§}`, `platform=ios&labels={§:"a"}`, `platform=ios&labels=§`, `platform=ios&priority=§`,
			`platform=ios&require=§`, `platform=ios&require=a=§`, `platform=ios&prefer=a=§`, `platform=ios&idempotency=§`, `platform=ios&require=§=a`,
			`platform=ios&params={"A":§}`, `platform=ios&params={§:"a"}`, `platform=ios&params=§`, `platform=ios&secrets={§:"env"}`, `platform=ios&secrets={"A_SECRET":§}`,
			`platform=ios&timeout=§`, `platform=ios&max_attempts=§`, `platform=ios&retry_on=[§]`, `platform=ios&commit=§`, `platform=ios&branch=§`, `platform=ios&remote=§`,
		},
		"PATCH /api/builds/{waiting}":                 {`{"priority":§}`, `{"priority":1,"reason":§}`},
		"POST /api/builds/{waiting}/cancel":           {`{"reason":§}`},
		"POST /api/builds/{finished}/retry":           {`{"reason":§}`, `{"params":{"A":§}}`},
		"POST /api/builds/{build}/heartbeat":          {`{"progress":§}`},
		"POST /api/builds/{build}/logs":               {`{"level":"info","message":§}`, `{"level":§,"message":"x"}`, `{"logs":[{"level":"error","message":§}]}`},
		"POST /api/workers/{build_worker}/unregister": nil, "POST /api/workers/unregister": nil, "POST /api/workers/leaving": nil, "POST /api/workers/heartbeat": nil, // they store no value
		"GET /api/workers/poll": nil, "POST /api/workers/poll": nil, "POST /api/builds/submit": nil, "POST /api/workers/result": nil, // as others
		"POST /api/builds/{build}/telemetry": {
			`{"type":§,"timestamp":"t","data":{}}`, `{"type":"heartbeat","timestamp":§,"data":{}}`, `{"type":"heartbeat","timestamp":"t","data":{"stage":§}}`,
			`{"type":"heartbeat","timestamp":"t","data":{"uptime_seconds":§,"heartbeat_count":§}}`, `{"type":"cpu_snapshot","timestamp":"t","data":§}`,
			`{"type":"heartbeat","timestamp":"t","data":{"metrics":{"cpu_percent":§}}}`, `{"type":"heartbeat","timestamp":"t","data":{"metrics":{"memory_mb":§}}}`,
			`{"type":"heartbeat","timestamp":"t","data":{"metrics":{"disk_percent":§}}}`, `{"type":"heartbeat","timestamp":"t","data":{"metrics":{"processes":§}}}`,
		},
		"POST /api/diagnostics/report": {
			`{"worker_id":"{build_worker}","status":§,"run_at":1,"duration_ms":1,"checks":[]}`, `{"worker_id":"{build_worker}","status":"healthy","run_at":§,"duration_ms":1,"checks":[]}`,
			`{"worker_id":"{build_worker}","status":"critical","run_at":1,"duration_ms":§,"checks":[]}`, `{"worker_id":"{build_worker}","status":"healthy","run_at":1,"duration_ms":1,"checks":§}`,
			`{"worker_id":"{build_worker}","status":"warning","run_at":1,"duration_ms":1,"checks":[{"name":§,"status":"fail","message":"x"}]}`,
			`{"worker_id":"{build_worker}","status":"critical","run_at":1,"duration_ms":1,"checks":[{"name":"disk","status":"fail","message":§,"details":§}]}`,
			`{"worker_id":"{build_worker}","status":"critical","run_at":1,"duration_ms":1,"checks":[{"name":"disk","status":§,"message":"x","duration_ms":§}]}`,
		},
		"POST /api/workers/fail":   {`{"build_id":"{failing}","error":§}`, `{"build_id":"{failing}","error":"x","exit_code":§,"signal":§,"timed_out":§}`},
		"POST /api/workers/upload": {`build_id={failing}&worker_id={failing_worker}&success=false&error_message=§`, `build_id={failing}&worker_id={failing_worker}&success=false&fault=§`, `build_id={failing}&worker_id={failing_worker}&success=false&exit_code=§`},
		"POST /api/config": {
			`{"portal_id":§,"action_id":7,"max_throughput":1,"time_period":1,"time_unit":"day"}`, `{"portal_id":62515,"action_id":§,"max_throughput":1,"time_period":1,"time_unit":"day"}`,
			`{"portal_id":62515,"action_id":8,"max_throughput":§,"time_period":1,"time_unit":"day"}`, `{"portal_id":62515,"action_id":9,"max_throughput":1,"time_period":§,"time_unit":"second"}`,
			`{"portal_id":62515,"action_id":10,"max_throughput":1,"time_period":1,"time_unit":§}`,
		},
		"POST /api/hubspot/action": {
			`{"callbackId":§,"origin":{"portalId":62515,"actionDefinitionId":7},"context":{"workflowId":3}}`, `{"callbackId":"d","origin":{"portalId":62515,"actionDefinitionId":7},"context":{"workflowId":§}}`,
			`{"callbackId":"e","origin":{"portalId":62515,"actionDefinitionId":7,"actionExecutionIndexIdentifier":{"actionExecutionIndex":§}},"context":{"workflowId":3}}`,
			`{"callbackId":"f","origin":{"portalId":62515,"actionDefinitionId":7},"context":{"workflowId":3},"inputFields":{"maxThroughPut":§}}`,
		},
		"POST /admin/keys": {
			`{"name":§,"scopes":["read"]}`, `{"name":"k{n}","scopes":[§]}`, `{"name":"l{n}","scopes":["submit"],"expires":§}`, `{"name":"m{n}","scopes":["submit"],"weight":§}`,
			`{"name":"o{n}","scopes":["submit"],"max_pending":§}`, `{"name":"p{n}","scopes":["submit"],"reason":§}`,
		},
		"PATCH /admin/keys/known":  {`{"weight":§}`, `{"max_pending":§}`, `{"weight":1,"reason":§}`},
		"DELETE /admin/keys/none":  {`{"reason":§}`},
		"POST /api/workers/enroll": {`{"name":§}`},
		"POST /admin/notices": {
			`{"url":§}`, `{"url":"https://example.com/?§"}`, `{"url":"https://example.com","events":[§]}`, `{"url":"https://example.com","platforms":[§]}`,
			`{"url":"https://example.com","labels":{"a":§}}`, `{"url":"https://example.com","labels":§}`, `{"url":"https://example.com","github_token":§}`, `{"url":"https://example.com","reason":§}`,
		},
		"PATCH /admin/notices/{notices}":        {`{"events":[§]}`, `{"labels":{"b":§}}`, `{"enabled":false,"reason":§}`},
		"POST /admin/notices/{notices}/redrive": {`{"reason":§}`}, "POST /admin/notices/{notices}/rotate": {`{"reason":§}`},
		"POST /admin/notices/{notices}/test": {`{"reason":§}`}, "DELETE /admin/notices/none": {`{"reason":§}`},
		"POST /admin/throttle/queues/{queue}/pause":  {`{"reason":§}`},
		"POST /admin/throttle/queues/{queue}/resume": {`{"reason":§}`}, "POST /admin/throttle/queues/{queue}/redrive": {`{"reason":§}`},
		"POST /api/workers/{build_worker}/drain": {`{"reason":§}`}, "POST /api/workers/{build_worker}/resume": {`{"reason":§}`}, "DELETE /api/workers/none": {`{"reason":§}`},
		"POST /api/builds/{lost}/requeue": {`{"reason":§}`}, "DELETE /api/config/62515/8": {`{"reason":§}`},
		"POST /api/deployments/{deployment}/cancel": {`{"reason":§}`}, "POST /api/deployments/{deployment}/pause": {`{"reason":§}`},
		"POST /api/deployments/{deployment}/resume": {`{"reason":§}`}, "POST /api/deployments/{deployment}/retry": {`{"reason":§}`, `{"repo":§}`},
		"POST /api/deployments":                {`{"source_org":"a","target_org":"b","token":"t","include":[§]}`, `{"source_org":"a","target_org":"b","token":"t","concurrency":§}`},
		"PUT /admin/heartbeat":                 {`{"build_timeout":300,"reason":§}`}, // nothing checks times here
		"PUT /admin/secrets/{secret}":          {`{"value":§,"all_keys":true}`, `{"value":"MTIzNDU2","keys":[§]}`, `{"value":"MTIzNDU2","all_keys":true,"reason":§}`},
		"POST /admin/attention/acknowledge":    {`{"kind":"full","for":"1h","reason":§}`, `{"kind":§,"for":"1h","reason":"x"}`, `{"kind":"full","subjects":[§],"for":"1h","reason":"x"}`},
		"POST /admin/attention/recall":         {`{"kind":§}`, `{"kind":"full","subjects":[§]}`, `{"kind":"full","reason":§}`},
		"DELETE /admin/secrets/none":           {`{"reason":§}`},
		"POST /api/builds/cancel?label=no=one": {`{"reason":§}`}, "POST /api/builds/retry?label=no=one": {`{"reason":§}`},
		"POST /login":       {`key=` + apiKey + `&name=§`},
		"POST /builds/bulk": {`act=cancel&reason=§&id=§`},
	}
}

// extremes are values that have broken something somewhere.
func extremes() []string {
	deep := func(open, end string) string { return strings.Repeat(open, 3000) + "1" + strings.Repeat(end, 3000) }
	return []string{
		`""`, `"\u0000"`, `"\ud800"`, "\"\xff\xfe\"", `"\u202e\u2028\ufeff"`, `"\u001b[31m\r\n\u0007"`, `"'\"\\{{.}}%s%00$1<script>alert(1)</script>"`, `"a,b=c;d"`,
		`"` + strings.Repeat("日", 66) + `"`, `"` + strings.Repeat("x", 9000) + `"`, `"infinity"`, `"36500d"`,
		"0", "-1", "2147483648", "9223372036854775807", "1e308", "5e-324", "123456789012345678901234567890", "null", `{"":{"a":[null,1e5]}}`, `{"a":"\u0000"}`, deep("[", "]"),
	}
}

// rows is a server in which bad rows are stored.
type rows struct {
	*dash
	browser, checking *http.Client
	round             int
	names             map[string]string // what stands in braces
	made              map[string]bool   // paths of what was made in this round, without /api
}

func newRows(t *testing.T) *rows {
	t.Helper()
	tree, check := newTreeWithOrders(), &invariants{}
	b := setupPages(t, func(s dashboard.Store) dashboard.Store { return s }, func(d *takthttp.Deps) {
		d.Tree, d.Operator, d.Heartbeat, d.Heijunka, d.Auditor = tree.tree, tree, tree, &lever{}, check
	}, func(c *takthttp.Config) { c.HubSpotSecret, c.PollRate = clientSecret, -1 })
	check.Invariants = postgres.NewInvariants(b.db, nil)
	r := &rows{dash: &dash{fixture: b}, browser: browserClient(t), checking: b.client, names: map[string]string{}, made: map[string]bool{}}
	r.client = r.browser
	r.cookie, _, _ = strings.Cut(r.login(adminKey, "tester", nil).header.Get("Set-Cookie"), ";")
	require.NotEmpty(t, r.cookie)
	r.client = r.checking
	finished, w := r.assigned()
	require.Equal(t, 200, r.fixture.finish(finished.ID, w.ID, "app").status)
	r.names["finished"], r.names["secret"] = finished.ID, "A_SECRET"
	require.Equal(t, 200, r.json("POST", "/api/config", key(), tenASecond).status)
	action := hubspottest.Webhook{PortalID: 62515, ActionID: 7, WorkflowID: 3, CallbackID: "c"}
	require.Equal(t, 204, r.fire(string(action.Body()), clientSecret).status)
	queues := r.send("GET", "/admin/throttle/queues?portal=62515", operatorKeys(), "")
	r.names["queue"] = decode[api.ThrottleQueues](t, queues).Queues[0].ID
	require.Equal(t, 201, r.json("POST", "/admin/keys", operatorKeys(), `{"name":"known","scopes":["submit"]}`).status)
	deployment := r.json("POST", "/api/deployments", operatorKeys(), `{"source_org":"a","target_org":"b","token":"t"}`)
	r.names["deployment"] = decode[api.Deployment](t, deployment).ID
	notices := r.json("POST", "/admin/notices", operatorKeys(), `{"url":"https://example.com"}`)
	r.names["notices"] = decode[api.MadeSubscription](t, notices).ID
	return r
}

// invariants check the database, which is there later.
type invariants struct{ *postgres.Invariants }

func operatorKeys() map[string]string { return key("X-Admin-Key", adminKey) }

// store sends a value in every place. What is refused must be refused well.
func (r *rows) store(value string) {
	r.t.Helper()
	r.round++
	r.client = r.checking
	for _, name := range []string{"build", "failing", "lost"} { // others' builds are handed out as ever
		b, w := r.assigned()
		r.names[name], r.names[name+"_worker"] = b.ID, w.ID
		r.made["/builds/"+b.ID], r.made["/workers/"+w.ID] = true, true
	}
	r.names["waiting"], r.names["n"] = r.submit().ID, strconv.Itoa(r.round)
	text := value
	if json.Unmarshal([]byte(value), &text) != nil {
		text = value
	}
	all := written()
	for _, to := range slices.Sorted(maps.Keys(all)) {
		for _, body := range all[to] {
			r.write(r.fill(to), r.fill(body), value, text)
		}
	}
}

// fill puts names into braces.
func (r *rows) fill(s string) string {
	for name, v := range r.names {
		s = strings.ReplaceAll(s, "{"+name+"}", v)
	}
	return s
}

func (r *rows) write(to, body, value, text string) {
	r.t.Helper()
	method, path, _ := strings.Cut(to, " ")
	header := operatorKeys()
	for _, name := range []string{"build", "failing", "lost"} {
		if strings.Contains(path+body, r.names[name]) {
			header["X-Worker-Id"], header["X-Build-Id"] = r.names[name+"_worker"], r.names[name]
		}
	}
	var got reply
	if fields, form := formOf(body, value, text); !form {
		body = inText.ReplaceAllLiteralString(body, strings.Trim(value, `"`))
		body = strings.ReplaceAll(body, "§", value)
		if path == "/api/hubspot/action" {
			got = r.fire(body, clientSecret)
		} else {
			got = r.json(method, path, header, body)
		}
	} else if strings.HasPrefix(path, "/api/") {
		parts := []part{source("x")}
		if path == "/api/workers/upload" {
			parts = nil
		}
		for name, v := range fields {
			if name == "idempotency" {
				if sendable(v[0]) && !strings.ContainsFunc(v[0], unicode.IsControl) {
					header["Idempotency-Key"] = v[0]
				}
			} else {
				parts = append(parts, part{name: name, content: v[0]})
			}
		}
		if got = r.form(path, header, parts...); strings.Contains(got.body, "queue_full") { // no worker can take these builds
			r.cancel()
			got = r.form(path, header, parts...)
		}
	} else {
		r.client = r.browser
		got = r.ask(method, path, fields, nil)
		r.client = r.checking
	}
	if got.status >= 500 { // and go on, to see what else it breaks
		r.t.Errorf("%s %.200q: %s", to, body, r.cause())
	}
	var made struct{ ID string }
	if got.status < 300 && json.Unmarshal([]byte(got.body), &made) == nil && made.ID != "" {
		if kind := kinds[path]; kind != "" {
			r.made[kind+made.ID] = true
		} else if strings.HasSuffix(path, "/retry") {
			r.made["/builds/"+made.ID] = true
		}
	}
}

// kinds are the beginnings of paths of what requests make.
var kinds = map[string]string{
	"/api/builds": "/builds/", "/api/workers/register": "/workers/", "/api/deployments": "/deployments/", "/admin/notices": "/admin/notices/",
}

// inText is a place that is part of a text.
var inText = regexp.MustCompile(`\?§`)

// formOf reads a body that is a form.
func formOf(body, value, text string) (url.Values, bool) {
	if strings.HasPrefix(body, "{") {
		return nil, false
	}
	fields := url.Values{}
	for field := range strings.SplitSeq(body, "&") {
		name, v, _ := strings.Cut(field, "=")
		if strings.HasPrefix(v, "{") {
			text = value
		}
		fields.Set(name, strings.ReplaceAll(v, "§", text))
	}
	return fields, true
}

// read reads everything: the lists and pages, and what was made in this round.
func (r *rows) read(value string) {
	r.t.Helper()
	param, files := regexp.MustCompile(`:\w+|\*`), regexp.MustCompile(`/(source|certs|download(/:type)?)$`)
	for _, route := range r.server.Routes() {
		if route.Method != http.MethodGet || strings.HasSuffix(route.Path, "/events") || strings.HasPrefix(route.Path, "/admin/debug") || strings.HasPrefix(route.Path, "/api/oauth") || files.MatchString(route.Path) {
			continue // those that never end, or read no row that a value is in
		}
		paths := []string{route.Path}
		if at := param.FindStringIndex(route.Path); at != nil {
			paths = nil
			for made := range r.made {
				kind := strings.NewReplacer("/fleet/", "/workers/", "/api/diagnostics/", "/workers/", "/api", "").Replace(route.Path[:at[0]])
				if id, ok := strings.CutPrefix(made, kind); ok {
					paths = append(paths, strings.Replace(param.ReplaceAllString(route.Path[:at[1]], id)+route.Path[at[1]:], ":type", "source", 1))
				}
			}
		}
		for _, path := range paths {
			r.get(path, value)
		}
	}
}

func (r *rows) get(path, value string) {
	r.t.Helper()

	page := !strings.HasPrefix(path, "/api/") && !strings.HasPrefix(path, "/admin/")
	var got reply
	for try := 0; try == 0 || got.status == 503 && try < 20; try++ { // a machine that stood still is no bad row
		if page {
			r.client = r.browser
			got = r.dash.get(path)
			r.client = r.checking
		} else {
			got = r.send("GET", path, operatorKeys(), "")
		}
	}
	if got.status >= 500 {
		r.t.Errorf("%s after %.200q: %s", path, value, r.cause())
	}
	if strings.Contains(got.header.Get("Content-Type"), "html") {
		require.Contains(r.t, got.body, "</html>", "%s after %.200q", path, value)
		require.NotContains(r.t, got.body, "<script>alert", path)
	}
	if strings.Contains(got.header.Get("Content-Type"), "json") {
		require.True(r.t, json.Valid([]byte(got.body)), "%s after %.200q: %s", path, value, got.body)
	}
}

// cause is the last line of the log that is an error.
func (r *rows) cause() string {
	all := strings.Split(r.logs.String(), "\n")
	for _, line := range slices.Backward(all) {
		if strings.Contains(line, `"level":"error"`) {
			return line
		}
	}
	return "nothing was logged"
}

// cancel ends the builds that were made.
func (r *rows) cancel() {
	for made := range r.made {
		if strings.HasPrefix(made, "/builds/") {
			r.send("POST", "/api"+made+"/cancel", key(), "")
		}
	}
}

// clear ends what was made, so that limits of numbers play no part.
func (r *rows) clear() {
	r.t.Helper()
	r.cancel()
	for made := range r.made {
		if strings.HasPrefix(made, "/admin/notices/") {
			require.Equal(r.t, 204, r.send("DELETE", made, operatorKeys(), "").status)
		}
	}
	clear(r.made)
}

func TestBadRowsBreakNothingThatOthersRead(t *testing.T) {
	t.Parallel()
	r := newRows(t)
	for _, value := range extremes() {
		r.store(value)
		r.read(value)
		r.clear()
	}
}

// Every request that stores something is in the table.
func TestBadRowsAreTriedOnEveryRoute(t *testing.T) {
	t.Parallel()
	known, param := map[string]bool{}, regexp.MustCompile(`:\w+|\{\w+\}|known|none|62515|\b8\b`)
	for to := range written() {
		to, _, _ = strings.Cut(to, "?")
		known[param.ReplaceAllString(to, "x")] = true
	}
	for _, route := range api.Routes() {
		for method := range strings.FieldsSeq(route.Method) {
			skip := strings.Contains(route.Path, "tree") || strings.Contains(route.Path, "heijunka") || strings.Contains(route.Path, "/audit") // of memory, or without a value
			if method != http.MethodGet && method != http.MethodHead && !skip {
				require.True(t, known[method+" "+param.ReplaceAllString(route.Path, "x")], "%s %s", method, route.Path)
			}
		}
	}
}

func FuzzRows(f *testing.F) {
	f.Add([]byte(`"x"`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if !json.Valid(value) {
			raw, err := json.Marshal(string(value))
			require.NoError(t, err)
			value = raw
		}
		r := newRows(t)
		r.store(string(value))
		r.read(string(value))
	})
}
