package http_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// What needs attention is the same on the page and in the API, and in neither once somebody has
// acknowledged it.
func TestAcknowledgedProblemsNeedNoAttention(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	w := d.register("mini-03")
	_, err := d.pool.Exec(t.Context(), `UPDATE workers SET status = 'offline'`)
	require.NoError(t, err)
	admin := map[string]string{"X-Admin-Key": adminKey}
	problems := func() []api.NeedsAttention {
		r := d.send("GET", "/api/attention", key(), "")
		require.Equal(t, 200, r.status, r.body)
		return decode[api.Attention](t, r).Problems
	}
	require.Eventually(t, func() bool { return len(problems()) == 1 }, waitFor, tick)
	one := problems()[0]
	require.Equal(t, "mini-03 is offline.", one.Text)
	require.Equal(t, []string{w.ID}, one.Subjects)
	require.NotNil(t, one.Since)
	require.Nil(t, one.Acknowledged)
	page := d.get("/overview").body
	require.Contains(t, page, "mini-03 is offline.")
	require.Contains(t, page, "<title>(1 problem) ")

	for body, status := range map[string]int{
		`{"kind":"offline","reason":"x"}`:                              400,
		`{"kind":"offline","for":"31d","reason":"x"}`:                  400,
		`{"kind":"offline","for":"1h","reason":" "}`:                   400,
		`{"kind":"silent","for":"1h","reason":"x"}`:                    404,
		`{"kind":"offline","subjects":["no"],"for":"1h","reason":""}`:  400,
		`{"kind":"offline","subjects":["no"],"for":"1h","reason":"x"}`: 404,
	} {
		require.Equal(t, status, d.json("POST", "/admin/attention/acknowledge", admin, body).status, body)
	}
	require.Equal(t, 404, d.json("POST", "/admin/attention/recall", admin, `{"kind":"offline"}`).status)

	r := d.act("/overview/acknowledge", url.Values{"kind": {"offline"}, "subjects": {w.ID}, "for": {"8h"}, "reason": {"new disk"}, "back": {"/overview"}}.Encode())
	require.Equal(t, 303, r.status, r.body)
	known := problems()
	require.Len(t, known, 1)
	require.Equal(t, "new disk", known[0].Acknowledged.Reason)
	until, err := time.Parse(time.RFC3339, known[0].Acknowledged.Until)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(8*time.Hour), until, time.Minute)
	page = d.get("/overview").body
	require.Contains(t, page, "Nothing else needs attention.")
	require.NotContains(t, page, "1 problem")
	require.Regexp(t, `Acknowledged by .*: new disk`, page)
	_, acts := d.audited(1)
	require.Equal(t, []string{"acknowledge, problem/offline/" + w.ID + ", new disk, done"}, acts)

	r = d.json("POST", "/admin/attention/recall", admin, `{"kind":"offline"}`)
	require.Equal(t, 200, r.status, r.body)
	require.Nil(t, decode[api.Attention](t, r).Problems[0].Acknowledged)
	r = d.json("POST", "/admin/attention/acknowledge", admin, `{"kind":"offline","subjects":["mini-03"],"for":"1h","reason":"by its name"}`)
	require.Equal(t, 200, r.status, r.body)
	require.NotNil(t, decode[api.Attention](t, r).Problems[0].Acknowledged)
}

// A controller that refuses builds says so, and goes on: its status stays what probes expect.
func TestHealthSaysThatBuildsAreRefused(t *testing.T) {
	t.Parallel()
	full := &fullFiles{}
	b := setupWith(t, func(d *takthttp.Deps) {
		full.Files = d.Files
		d.Files = full
	})
	health := func() (h api.Health) {
		r := b.send("GET", "/health", nil, "")
		require.Equal(t, 200, r.status)
		require.Equal(t, 1, strings.Count(r.body, `"pending":`), "clients look for the text")
		return decode[api.Health](t, r)
	}
	require.Equal(t, "ok", health().State)
	require.Empty(t, health().Reasons)
	full.is = true
	require.Equal(t, "ok", health().Status)
	require.Equal(t, "degraded", health().State)
	require.Equal(t, []store.Code{store.DiskFull}, health().Reasons)
	require.Equal(t, 507, b.form("/api/builds/submit", key(), source("x"), ios()).status)
}

// fullFiles are Files whose disk may be full.
type fullFiles struct {
	takthttp.Files
	is bool
}

func (f *fullFiles) Room() error {
	if f.is {
		return store.NewError(store.DiskFull, "The controller's disk is nearly full")
	}
	return f.Files.Room()
}
