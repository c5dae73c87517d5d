package http_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/hubspottest"
	"takt/store"
)

func (b *hooked) actions() (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM action_executions`).Scan(&n))
	return n
}

func TestHostileActionsAreRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	b := hookServer(t)
	require.Equal(t, 200, b.configure(tenASecond).status)
	with := func(change func(callback, origin, execution, workflow map[string]any)) string {
		execution, workflow := map[string]any{"actionExecutionIndex": 0}, map[string]any{"workflowId": 3}
		origin := map[string]any{"portalId": 62515, "actionDefinitionId": 7, "actionExecutionIndexIdentifier": execution}
		call := map[string]any{"callbackId": "c", "origin": origin, "context": workflow}
		change(call, origin, execution, workflow)
		raw, err := json.Marshal(call)
		require.NoError(t, err)
		return string(raw)
	}
	for i, name := range hostileNames() {
		bodies := map[string]string{
			"callbackId":           with(func(c, _, _, _ map[string]any) { c["callbackId"] = name }),
			"workflowId":           with(func(c, _, _, w map[string]any) { c["callbackId"], w["workflowId"] = "w"+name, name }),
			"actionExecutionIndex": with(func(c, _, e, _ map[string]any) { c["callbackId"], e["actionExecutionIndex"] = "i"+name, name }),
			"portalId":             with(func(_, o, _, _ map[string]any) { o["portalId"] = name }),
			"actionDefinitionId":   with(func(_, o, _, _ map[string]any) { o["actionDefinitionId"] = name }),
			"maxThroughPut":        with(func(c, _, _, _ map[string]any) { c["inputFields"] = map[string]any{"maxThroughPut": name} }),
			"the whole":            name,
		}
		if i%8 != 0 { // numbers are fuzzed elsewhere
			delete(bodies, "portalId")
			delete(bodies, "actionDefinitionId")
			delete(bodies, "maxThroughPut")
			delete(bodies, "actionExecutionIndex")
		}
		for what, body := range bodies {
			r := b.fire(body, clientSecret)
			require.Contains(t, []int{204, 400}, r.status, "%s: %.200q: %s", what, name, r.body)
			if what != "callbackId" && what != "workflowId" && what != "actionExecutionIndex" {
				require.Equal(t, 400, r.status, "%s: %.200q", what, name)
			}
		}
		r := b.send("GET", "/api/oauth/callback?code=c&state="+url.QueryEscape(name), nil, "")
		require.Equal(t, 400, r.status, "%.200q: %s", name, r.body)
		if !sendable(name) {
			continue
		}
		header := []string{"X-HubSpot-Signature", "X-HubSpot-Signature-v3", "X-HubSpot-Signature-Version", "X-HubSpot-Request-Timestamp"}[i%4]
		r = b.send("POST", "/api/hubspot/action", map[string]string{"X-HubSpot-Signature-Version": "v2", header: name}, `{}`)
		require.Equal(t, 401, r.status, "%s: %.200q", header, name)
	}
	list, _, err := b.pacer.Queues(t.Context(), 0, true, store.Page{})
	require.NoError(t, err)
	for _, q := range list {
		require.Equal(t, 4, strings.Count(q.ID, ":"), "%q", q.ID)
	}
	r := b.send("GET", "/admin/throttle/queues?portal=62515&limit=1000", map[string]string{"X-Admin-Key": adminKey}, "")
	require.Equal(t, 200, r.status)
}

func TestBodiesOfTheThrottleAreBounded(t *testing.T) {
	t.Parallel()
	b := hookServer(t, func(c *takthttp.Config) { c.MaxJSON = 2000 })
	require.Equal(t, 200, b.configure(tenASecond).status)
	long := strings.Replace(tenASecond, "{", `{"note":"`+strings.Repeat("x", 2000)+`",`, 1)
	requireProblem(t, b.configure(long), "Request body too large", "too_large")
	action := strings.Replace(string(webhook("c").Body()), "{", `{"note":"`+strings.Repeat("x", 2000)+`",`, 1)
	requireProblem(t, b.fire(action, clientSecret), "Request body too large", "too_large")
	h := http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	hubspottest.Sign(h, clientSecret, "POST", b.url+"/api/hubspot/action", nil, time.Now())
	for _, path := range []string{"/api/config", "/api/hubspot/action"} { // without a length
		req, err := http.NewRequestWithContext(t.Context(), "POST", b.url+path, struct{ *strings.Reader }{strings.NewReader(long)})
		require.NoError(t, err)
		req.Header = h
		resp, err := b.client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 413, resp.StatusCode, path)
	}
	admin := map[string]string{"X-Admin-Key": adminKey, "Content-Type": "application/json"}
	for body, want := range map[string]int{
		`{"reason":"` + strings.Repeat("x", 1001) + `"}`: 400, `{"reason":7}`: 400, `[]`: 400, `{`: 400,
		`{"reason":"` + strings.Repeat("x", 2000) + `"}`: 413,
	} {
		for _, path := range []string{"/admin/throttle/queues/queue:62515:3:7:0/pause"} {
			require.Equal(t, want, b.send("POST", path, admin, body).status, "%s %.40s", path, body)
		}
	}
	require.Zero(t, b.actions())
}

// HubSpot adds members at times.
func TestUnknownMembersAreNoError(t *testing.T) {
	t.Parallel()
	b := hookServer(t)
	require.Equal(t, 200, b.configure(strings.Replace(tenASecond, "{", `{"new":{"deep":[1,null]},`, 1)).status)
	require.Equal(t, 204, b.fire(strings.Replace(string(webhook("c").Body()), "{", `{"typedInputs":{"a":[{}]},"new":null,`, 1), clientSecret).status)
	require.Equal(t, 1, b.actions())
}
