package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// lever is load levelling that notes what it is told.
type lever struct {
	orders []string
	err    error
}

func (l *lever) order(format string, args ...any) error {
	l.orders = append(l.orders, fmt.Sprintf(format, args...))
	return l.err
}

func (*lever) Status() api.Heijunka {
	at := api.NewMillis(time.Unix(1, 0))
	return api.Heijunka{
		Enabled:   true,
		Regulator: store.HeijunkaRegulator{Level: "normal", Oldest: []store.HeijunkaHolder{{Domain: "query"}}},
		Pools:     []store.HeijunkaPool{{Name: "fleet", Health: "healthy", LastScalingAt: at}, {Name: "query", Health: "critical"}},
		Balance: store.HeijunkaBalance{
			Affinity: map[string][]string{"query": {"query"}}, Spilled: map[string]int64{"query": 1},
			Last: &api.HeijunkaRebalance{At: at, Pools: []store.HeijunkaPoolUse{}},
		},
		Burst: api.HeijunkaBurst{Until: at}, Changed: json.RawMessage(`{"burst":{"enabled":true}}`),
	}
}

func (l *lever) SetLimits(_ context.Context, soft, hard *int, reserved *float64, while time.Duration) error {
	return l.order("limits %s %s %s for %s", text(soft), text(hard), text(reserved), while)
}

func (l *lever) ResetLimits(context.Context) error { return l.order("reset limits") }

func (l *lever) SetBounds(_ context.Context, pool string, low, high *int, while time.Duration) error {
	return l.order("bounds %s %s to %s for %s", pool, text(low), text(high), while)
}

func (l *lever) Scale(pool string, by, to *int) error {
	return l.order("scale %s by %s to %s", pool, text(by), text(to))
}

func (l *lever) SetAffinity(_ context.Context, domain string, pools []string, while time.Duration) error {
	return l.order("affinity %s %s for %s", domain, pools, while)
}

func (l *lever) ResetBounds(_ context.Context, pool string) error {
	return l.order("reset bounds %s", pool)
}

func (l *lever) ResetAffinity(_ context.Context, domain string) error {
	return l.order("reset affinity %s", domain)
}

func (l *lever) SetBurst(_ context.Context, enabled bool, while time.Duration) error {
	return l.order("bursts %t for %s", enabled, while)
}

func (l *lever) StartSurge(d time.Duration) error { return l.order("surge for %s", d) }

func (l *lever) StopSurge() error { return l.order("no surge") }

func (l *lever) Rebalance(dryRun bool) (store.HeijunkaRebalance, error) {
	return store.HeijunkaRebalance{Reason: "all alike", Pools: []store.HeijunkaPoolUse{{Name: "fleet"}}}, l.order("rebalance %t", dryRun)
}

func text(v any) string {
	raw, _ := json.Marshal(v)
	return string(raw)
}

func TestHeijunkaIsSeenAndChanged(t *testing.T) {
	t.Parallel()
	l, p := &lever{}, newTreeWithOrders()
	url := served(t, takthttp.Deps{Heijunka: l, Audit: p})
	c := newClient(t)
	send := func(line, body string) reply {
		t.Helper()
		var method, path string
		_, err := fmt.Sscan(line, &method, &path)
		require.NoError(t, err)
		return sendJSON(t, c, method, url+"/admin/heijunka"+path, body)
	}
	r := sendJSON(t, c, "GET", url+"/admin/heijunka", "")
	require.Equal(t, 200, r.status, r.body)
	require.Len(t, decode[api.Heijunka](t, r).Pools, 2)

	for _, order := range []struct{ line, body, want string }{
		{"PUT /limits", `{"hard_limit":9,"reason":"why","for":"2h"}`, `limits null 9 null for 2h0m0s`},
		{"PUT /limits", `{"reset":true,"reason":"why"}`, `reset limits`},
		{"POST /pools/fleet/scale", `{"by":-2,"reason":"why"}`, `scale fleet by -2 to null`},
		{"POST /pools/fleet/scale", `{"workers":7,"reason":"why"}`, `scale fleet by null to 7`},
		{"POST /pools/fleet/scale", `{"min":2,"max":3,"reason":"why","for":"90"}`, `bounds fleet 2 to 3 for 1m30s`},
		{"PUT /affinity", `{"domain":"query","pools":["hook"],"reason":"why"}`, `affinity query [hook] for 0s`},
		{"PUT /affinity", `{"domain":"query","reset":true,"reason":"why"}`, `reset affinity query`},
		{"POST /pools/fleet/scale", `{"reset":true,"reason":"why"}`, `reset bounds fleet`},
		{"POST /surge", `{"action":"start","reason":"why","for":"10m"}`, `surge for 10m0s`},
		{"POST /surge", `{"action":"stop","reason":"why"}`, `no surge`},
		{"POST /surge", `{"action":"enable","reason":"why"}`, `bursts true for 0s`},
		{"POST /surge", `{"action":"disable","reason":"why","for":"10m"}`, `bursts false for 10m0s`},
		{"POST /rebalance", `{"reason":"why"}`, `rebalance false`},
		{"POST /rebalance?dry_run=1", ``, `rebalance true`},
	} {
		r := send(order.line, order.body)
		require.Equal(t, 200, r.status, r.body)
		require.Equal(t, order.want, l.orders[len(l.orders)-1])
	}
	entries, _, err := p.List(t.Context(), "", store.Page{Limit: 100})
	require.NoError(t, err)
	require.Len(t, entries, 13, "a dry run is no change")
	require.Equal(t, []string{"rebalance", "heijunka", "why", "done"}, []string{entries[0].Action, entries[0].Target, entries[0].Reason, entries[0].Outcome})
	require.Contains(t, string(entries[1].Detail), `"for":"10m"`)

	given := len(l.orders)
	for line, bodies := range map[string][]string{
		"PUT /limits":             {`{}`, `{"reason":"why"}`, `{"hard_limit":9}`, `{"hard_limit":9,"reset":true,"reason":"why"}`, `{"hard_limit":9,"reason":"why","for":"soon"}`, `{"hard_limit":9,"reason":"why","for":"-2h"}`, `{"hard_limit":"x"}`},
		"POST /pools/fleet/scale": {`{"reason":"why"}`, `{"by":1,"workers":2,"reason":"why"}`, `{"by":1,"reason":"why","for":"2h"}`, `{"reset":true,"max":3,"reason":"why"}`, `{"reset":true,"reason":"why","for":"2h"}`},
		"PUT /affinity":           {`{"pools":[],"reason":"why"}`, `{"domain":"query","pools":["hook"],"reset":true,"reason":"why"}`, `{"domain":"query","reset":true,"reason":"why","for":"2h"}`},
		"POST /surge":             {`{"action":"surf","reason":"why"}`, `{"action":"stop","reason":"why","for":"2h"}`, `{"action":"stop","reason":" "}`},
		"POST /rebalance":         {``},
	} {
		for _, body := range bodies {
			require.Equal(t, 400, send(line, body).status, "%s %s", line, body)
		}
	}
	require.Len(t, l.orders, given)

	l.err = store.NewError(store.Conflict, "scaled just now")
	r = send("POST /pools/fleet/scale", `{"by":1,"reason":"why"}`)
	require.Equal(t, 409, r.status)
	entries, _, err = p.List(t.Context(), "", store.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "scaled just now", entries[0].Outcome)
}

// overloaded refuses everything.
type overloaded struct{}

func (overloaded) Do(context.Context, store.Work, func(context.Context) error) error {
	return &store.Error{
		Code: store.Overloaded, Message: "Overloaded", RetryAfter: 1500 * time.Millisecond,
		Overload: &store.Overload{Rule: "regular", Load: 960, Limit: 960},
	}
}

func TestOverloadSaysWhyAndWhenToComeBack(t *testing.T) {
	t.Parallel()
	s, l := newServer(t, takthttp.Deps{Requests: overloaded{}})
	url, _ := serve(t, s, listen(t))
	r := send(t, newClient(t), "GET", url+"/api/builds", key(), nil)
	require.Equal(t, 503, r.status)
	require.Equal(t, "2", r.header.Get("Retry-After"))
	p := decode[api.Problem](t, r)
	require.Equal(t, []any{"overloaded", "regular", 960, 960}, []any{p.Code, p.Rule, *p.Load, *p.Limit})
	require.NotContains(t, l.String(), `"level":"warn"`, "they come in thousands")
}

// sendJSON sends an operator's request; a body is JSON.
func sendJSON(t *testing.T, c *http.Client, method, url, body string) reply {
	t.Helper()
	return send(t, c, method, url, map[string]string{"X-Admin-Key": adminKey, "Content-Type": "application/json"}, strings.NewReader(body))
}
