package http_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/postgres"
)

const clientSecret = "3f1c8f0e-2c55-4b1d-9a67-0d1f6f7a1b22"

// pacer is a throttle without actors: what the server asks goes to the store.
type pacer struct {
	*postgres.Throttle
	looked  []string
	failure error
}

func newPacer(t *testing.T, db *postgres.DB) *pacer {
	t.Helper()
	throttle, err := postgres.NewThrottle(db)
	require.NoError(t, err)
	return &pacer{Throttle: throttle}
}

func (p *pacer) Accept(ctx context.Context, a store.Action) (store.Acceptance, error) {
	if p.failure != nil {
		return store.Acceptance{}, p.failure
	}
	if _, err := p.Config(ctx, a.Queue.PortalID, a.Queue.ActionID); err != nil {
		return store.Acceptance{}, store.NewError(store.InvalidArgument, "No configuration for this portal and action")
	}
	list, err := p.Throttle.Accept(ctx, []store.Action{a})
	if err != nil {
		return store.Acceptance{}, err
	}
	return list[0], nil
}

func (p *pacer) Look(_ context.Context, queue string) error {
	p.looked = append(p.looked, queue)
	return nil
}

// installer is an OAuth that knows one state.
type installer struct{}

func (installer) Authorize(context.Context) (at, secret string, err error) {
	return "https://hubspot.example/authorize?state=s", "browser", nil
}

func (installer) Install(_ context.Context, state, secret, code string) (int64, error) {
	if state != "s" || secret != "browser" || code == "" {
		return 0, store.NewError(store.InvalidArgument, "state is unknown, too old or another browser's: begin again")
	}
	return 62515, nil
}

// withHubSpot takes webhooks.
func withHubSpot(c *takthttp.Config) { c.HubSpotSecret = clientSecret }

// silentAudit keeps nothing.
type silentAudit struct{}

func (silentAudit) Append(context.Context, store.AuditEntry) (int64, error) { return 1, nil }
func (silentAudit) Conclude(context.Context, int64, string) error           { return nil }
func (silentAudit) List(context.Context, string, store.Page) ([]store.AuditEntry, store.Cursor, error) {
	return nil, "", nil
}

func webhook(callback string) hubspottest.Webhook {
	return hubspottest.Webhook{PortalID: 62515, ActionID: 7, WorkflowID: 3, CallbackID: callback}
}

// fire sends a signed action.
func (b *fixture) fire(body, secret string) reply {
	b.t.Helper()
	h := http.Header{}
	hubspottest.Sign(h, secret, "POST", b.url+"/api/hubspot/action", []byte(body), time.Now())
	flat := map[string]string{"Content-Type": "application/json"}
	for k := range h {
		flat[k] = h.Get(k)
	}
	return b.send("POST", "/api/hubspot/action", flat, body)
}

func (b *fixture) configure(body string) reply {
	b.t.Helper()
	return b.send("POST", "/api/config", key("Content-Type", "application/json"), body)
}

const tenASecond = `{"portal_id":62515,"action_id":"7","max_throughput":"10","time_period":1,"time_unit":"seconds"}`

func TestActionsAreTakenWhenSignedAndConfigured(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
	body := string(webhook("c1").Body())
	requireProblem(t, b.fire(body, clientSecret), "No configuration for this portal and action", "invalid_argument")
	require.Equal(t, 200, b.configure(tenASecond).status)
	elsewhere := webhook("c1")
	elsewhere.WorkflowID = 99
	for _, again := range []string{body, body, string(elsewhere.Body())} {
		r := b.fire(again, clientSecret)
		require.Equal(t, 204, r.status, r.body)
		require.Empty(t, r.body)
	}
	require.Equal(t, 1, b.actions(), "a callback is one execution, whatever else is said of it")
	require.Equal(t, 400, b.fire(`{"callbackId":"c"}`, clientSecret).status)

	r := b.fire(body, "another secret")
	require.Equal(t, 401, r.status)
	requireProblem(t, r, "Invalid signature", "unauthorized")
	require.Equal(t, 401, b.send("POST", "/api/hubspot/action", nil, body).status)
	require.Equal(t, 401, b.send("POST", "/api/hubspot/action", nil, `{"broken`).status, "the signature comes first")
	require.NotContains(t, b.logs.String(), clientSecret)

	b.pacer.failure = &store.Error{Code: store.Unavailable, Message: "full", RetryAfter: 3 * time.Second}
	r = b.fire(body, clientSecret)
	require.Equal(t, 503, r.status)
	require.Equal(t, "3", r.header.Get("Retry-After"))
}

func TestActionsWithoutASecretAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, 401, b.fire(string(webhook("c").Body()), "").status)
}

func TestActionsAndRatesMayHaveMembersThatAreNotKnown(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
	require.Equal(t, 200, b.configure(strings.Replace(tenASecond, "{", `{"new":{"deep":[1,null]},`, 1)).status)
	require.Equal(t, 204, b.fire(strings.Replace(string(webhook("c").Body()), "{", `{"typedInputs":{"a":[{}]},"new":null,`, 1), clientSecret).status)
	require.Equal(t, 1, b.actions())
}

func TestActionsAreSignedForThePublicURL(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot, func(c *takthttp.Config) { c.PublicURL = "https://hooks.example.com" })
	require.Equal(t, 200, b.configure(tenASecond).status)
	body := string(webhook("c").Body())
	require.Equal(t, 401, b.fire(body, clientSecret).status)
	h := http.Header{}
	hubspottest.Sign(h, clientSecret, "POST", "https://hooks.example.com/api/hubspot/action", []byte(body), time.Now())
	flat := map[string]string{}
	for k := range h {
		flat[k] = h.Get(k)
	}
	require.Equal(t, 204, b.send("POST", "/api/hubspot/action", flat, body).status)
}

func TestActionsOfLivePortalsBlock(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot, func(c *takthttp.Config) { c.HubSpotBlock, c.HubSpotExpiration = true, time.Hour })
	require.Equal(t, 200, b.configure(tenASecond).status)
	body := string(webhook("c1").Body())
	r := b.fire(body, clientSecret)
	require.Equal(t, 200, r.status)
	requireBody(t, `{"outputFields":{"hs_execution_state":"BLOCK","hs_expiration_duration":"PT1H"}}`, r)
	claims, err := b.pacer.Claim(t.Context(), store.ClaimRequest{PortalID: 62515, Queues: []string{"queue:62515:3:7:0"}, Limit: 1, Lease: time.Minute})
	require.NoError(t, err)
	require.Len(t, claims.Claims, 1)
	claim := claims.Claims[0]
	require.Regexp(t, `"BLOCK","hs_expiration_duration":"PT59M\d+S"`, b.fire(body, clientSecret).body, "what remains")
	_, err = b.pacer.Record(t.Context(), store.Outcome{Claim: claim.Number, PortalID: 62515, Done: []string{claim.Actions[0].CallbackID}})
	require.NoError(t, err)
	requireBody(t, `{"outputFields":{"hs_execution_state":"SUCCESS"}}`, b.fire(body, clientSecret))
}

// rate is the body of a rate.
func rate(most, period, unit string) string {
	return `{"portal_id":62515,"action_id":7,"max_throughput":` + most + `,"time_period":` + period + `,"time_unit":"` + unit + `"}`
}

func TestRatesAreSetShownAndDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
	r := b.configure(tenASecond)
	require.Equal(t, 200, r.status)
	requireShape(t, "throttle_config", r)
	require.Equal(t, "second", decode[api.ThrottleConfig](t, r).TimeUnit)
	require.Equal(t, 200, b.configure(`{"portalId":62515,"actionId":8,"maxThroughPut":5,"time":"2","period":"days"}`).status)
	list := decode[api.ThrottleConfigs](t, b.send("GET", "/api/config/62515", key(), ""))
	require.Len(t, list.Configs, 2)
	require.Equal(t, 10, decode[api.ThrottleConfig](t, b.send("GET", "/api/config/62515/7", key(), "")).MaxThroughput)
	require.Equal(t, 204, b.send("DELETE", "/api/config/62515/7", key(), "").status)
	require.Equal(t, 404, b.send("DELETE", "/api/config/62515/7", key(), "").status)
	require.Equal(t, 404, b.send("GET", "/api/config/62515/7", key(), "").status)
	require.Equal(t, 400, b.fire(string(webhook("c").Body()), clientSecret).status, "new actions are refused")
	for _, path := range []string{"/api/config/x", "/api/config/0", "/api/config/62515/-1", "/api/config/62515/1.5", "/api/config/99999999999999999999"} {
		require.Equal(t, 400, b.send("GET", path, key(), "").status, path)
	}
	for _, body := range []string{
		`{}`, `[]`, `"x"`, `null`, ``, `{"portal_id":1}`,
		strings.Replace(tenASecond, `"10"`, `"0"`, 1), strings.Replace(tenASecond, `"10"`, `-1`, 1),
		strings.Replace(tenASecond, `"10"`, `1.5`, 1), strings.Replace(tenASecond, `"10"`, `true`, 1),
		strings.Replace(tenASecond, `"10"`, `"ten"`, 1), strings.Replace(tenASecond, `"10"`, `99999999999`, 1),
		strings.Replace(tenASecond, `seconds`, `fortnights`, 1), strings.Replace(tenASecond, `"time_period":1`, `"time_period":0`, 1),
		rate("1000001", "1", "second"), rate("1", "367", "day"), rate("1", "8785", "hours"), rate("1", "31622401", "seconds"),
	} {
		require.Equal(t, 400, b.configure(body).status, body)
	}
	for _, body := range []string{rate("1000000", "1", "second"), rate("1", "366", "days"), rate("1", "8784", "hour"), rate("1", "31622400", "second")} {
		require.Equal(t, 200, b.configure(body).status, body)
	}
}

func TestInstallersAreSentToHubSpotAndBack(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer c.CloseIdleConnections()
	r := send(t, c, "GET", b.url+"/api/oauth/authorize", nil, nil)
	require.Equal(t, 302, r.status)
	require.Equal(t, "https://hubspot.example/authorize?state=s", r.header.Get("Location"))
	require.Equal(t, "takt_install=browser; Path=/api/oauth; Max-Age=600; HttpOnly; SameSite=Lax", r.header.Get("Set-Cookie"))
	own := map[string]string{"Cookie": "takt_install=browser"}
	r = b.send("GET", "/api/oauth/callback?state=s&code=secret-code", own, "")
	requireBody(t, `{"status":"installed","portal_id":62515}`, r)
	require.Contains(t, r.header.Get("Set-Cookie"), "takt_install=; Path=/api/oauth; Max-Age=0", "it has done its work")
	for _, q := range []string{"", "?state=s", "?code=secret-code", "?state=x&code=secret-code"} {
		require.Equal(t, 400, b.send("GET", "/api/oauth/callback"+q, own, "").status, q)
	}
	for _, cookie := range []string{"", "takt_install=", "takt_install=another", "other=browser"} {
		r = b.send("GET", "/api/oauth/callback?state=s&code=secret-code", map[string]string{"Cookie": cookie}, "")
		require.Equal(t, 400, r.status, "%q: another browser began it", cookie)
	}
	public := setup(t, withHubSpot, func(c *takthttp.Config) { c.PublicURL = "https://takt.example" })
	r = send(t, c, "GET", public.url+"/api/oauth/authorize", nil, nil)
	require.Contains(t, r.header.Get("Set-Cookie"), "; Secure")
	require.NotContains(t, b.logs.String(), "secret-code")
}

func TestOperatorsSeeAndSteerQueues(t *testing.T) {
	t.Parallel()
	b := setup(t, withHubSpot)
	require.Equal(t, 200, b.configure(tenASecond).status)
	for i := range 3 {
		require.Equal(t, 204, b.fire(string(webhook("c"+strconv.Itoa(i)).Body()), clientSecret).status)
	}
	admin := map[string]string{"X-Admin-Key": adminKey, "Content-Type": "application/json"}
	r := b.send("GET", "/admin/throttle/queues", admin, "")
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "throttle_queues", r)
	q := decode[api.ThrottleQueues](t, r).Queues[0]
	require.Equal(t, "queue:62515:3:7:0", q.ID)
	require.Equal(t, 3, q.Depth)
	require.NotNil(t, q.Oldest)
	require.NotNil(t, q.NextDue)
	require.Empty(t, decode[api.ThrottleQueues](t, b.send("GET", "/admin/throttle/queues?portal=1", admin, "")).Queues)

	at := "/admin/throttle/queues/" + q.ID
	for range 2 {
		r = b.send("POST", at+"/pause", admin, `{"reason":"a test"}`)
		require.Equal(t, 200, r.status, r.body)
		require.True(t, decode[api.ThrottleQueue](t, r).Paused)
	}
	require.False(t, decode[api.ThrottleQueue](t, b.send("POST", at+"/resume", admin, "")).Paused)
	r = b.send("POST", at+"/redrive", admin, "")
	require.Equal(t, 200, r.status)
	require.Zero(t, decode[api.Redriven](t, r).Actions)
	require.Equal(t, []string{q.ID, q.ID}, b.pacer.looked)
	for _, action := range []string{"/pause", "/resume", "/redrive", ""} {
		method := map[bool]string{true: "GET", false: "POST"}[action == ""]
		require.Equal(t, 404, b.send(method, "/admin/throttle/queues/queue:none"+action, admin, "").status, action)
	}
	_, err := b.pool.Exec(t.Context(), `UPDATE throttle_queues SET id = 'queue:62515:a/b 50%:7:0', workflow_id = 'a/b 50%'`)
	require.NoError(t, err)
	r = b.send("GET", "/admin/throttle/queues/queue:62515:a%2Fb%2050%25:7:0", admin, "")
	require.Equal(t, "queue:62515:a/b 50%:7:0", decode[api.ThrottleQueue](t, r).ID, "a slash may be part of an id")
	operator, err := client.New(client.Config{BaseURL: b.url, AdminKey: adminKey, HTTPClient: b.client})
	require.NoError(t, err)
	order := api.QueueOrderIn{ID: "queue:62515:a/b 50%:7:0", Body: api.ThrottleOrder{Reason: "a test"}}
	paused, err := client.Call(t.Context(), operator, api.PauseQueue, order)
	require.NoError(t, err)
	require.True(t, paused.Paused)
	require.Equal(t, 400, b.send("GET", "/admin/throttle/queues?limit=0", admin, "").status)
	require.Equal(t, 400, b.send("GET", "/admin/throttle/queues?portal=x", admin, "").status)
}
