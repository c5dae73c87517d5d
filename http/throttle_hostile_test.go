package http_test

import (
	"encoding/json"
	"io"
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

func (b *fixture) actions() (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM action_executions`).Scan(&n))
	return n
}

func TestHostileActionsAreRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
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
		for body, want := range map[string][]int{
			with(func(c, _, _, _ map[string]any) { c["callbackId"] = name }):                                      {204, 400},
			with(func(c, _, _, w map[string]any) { c["callbackId"], w["workflowId"] = "w"+name, name }):           {204, 400},
			with(func(c, _, e, _ map[string]any) { c["callbackId"], e["actionExecutionIndex"] = "i"+name, name }): {204, 400},
			with(func(_, o, _, _ map[string]any) { o["portalId"] = name }):                                        {400},
			with(func(c, _, _, _ map[string]any) { c["inputFields"] = map[string]any{"maxThroughPut": name} }):    {400},
			name: {400},
		} {
			r := b.fire(body, clientSecret)
			require.Contains(t, want, r.status, "%.200q: %s", body, r.body)
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

func TestBodiesHaveALimitOnEveryRouteThatReadsThem(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot, func(c *takthttp.Config) { c.MaxJSON = 2000 })
	s, w := b.assigned()
	big := `{"a":"` + strings.Repeat("x", 2000) + `"}`
	admin := map[string]string{"X-Admin-Key": adminKey}
	hook := http.Header{}
	hubspottest.Sign(hook, clientSecret, "POST", b.url+"/api/hubspot/action", []byte(big), time.Now())
	webhook := map[string]string{}
	for k := range hook {
		webhook[k] = hook.Get(k)
	}
	for route, header := range map[string]map[string]string{
		"POST /api/workers/register":                                key(),
		"POST /api/builds/" + s.ID + "/logs":                        key("X-Worker-Id", w.ID),
		"POST /api/builds/" + s.ID + "/heartbeat?worker_id=" + w.ID: key(),
		"POST /api/config":                                          key(),
		"POST /api/hubspot/action":                                  webhook,
		"PUT /admin/heartbeat":                                      admin,
		"POST /admin/tree/takt/database/restart":                    admin,
		"POST /admin/throttle/queues/queue:62515:3:7:0/pause":       admin,
	} {
		method, path, _ := strings.Cut(route, " ")
		header["Content-Type"] = "application/json"
		requireProblem(t, b.send(method, path, header, big), "Request body too large", "too_large")
		chunked := send(t, b.client, method, b.url+path, header, io.MultiReader(strings.NewReader(big)))
		require.Equal(t, 413, chunked.status, "%s, in chunks", route)
	}
	for _, body := range []string{`{"reason":"` + strings.Repeat("x", 1001) + `"}`, `{"reason":7}`, `[]`, `{`} {
		require.Equal(t, 400, b.send("POST", "/admin/throttle/queues/queue:62515:3:7:0/pause", admin, body).status, "%.40s", body)
	}
	require.Equal(t, "assigned", b.status(s.ID).Status)
	require.Zero(t, b.actions())
}
