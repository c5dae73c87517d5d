package http_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

// answer is one thing that a route promises to answer, and how to make it.
type answer struct {
	status int
	// text is the error that old clients read; "" for a success.
	text string
	do   func(b *bundle) reply
}

// contract is every route that is not an operator's, with all its promised
// answers: success, and each error that the wire contract lists. Its parts are by
// who asks.
func contract() map[string]map[string][]answer {
	return map[string]map[string][]answer{
		"submitters": submitContract(), "readers": readContract(), "holders": holderContract(),
		"workers": workerContract(), "operators": fleetContract(), "anybody": publicContract(),
		"deployers": deploymentContract(), "HubSpot": throttleContract(),
	}
}

func TestEveryRouteAnswersAsPromised(t *testing.T) {
	t.Parallel()
	for who, routes := range contract() {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *takthttp.Config) {
				c.MaxSource, c.MaxCerts, c.MaxResult, c.MaxJSON = 1000, 500, 1000, 2000
				c.HubSpotSecret = clientSecret
			})
			for route, answers := range routes {
				for _, a := range answers {
					b.emptyQueue() // of what the answers before have left
					a.check(t, route, a.do(b))
				}
			}
		})
	}
}

func (a answer) check(t *testing.T, route string, r reply) {
	t.Helper()
	require.Equal(t, a.status, r.status, "%s: %d %s: %s", route, a.status, a.text, r.body)
	require.NotContains(t, r.body, `": `, "%s: JSON is compact", route)
	if a.text == "" {
		require.Less(t, a.status, 400, "a success")
		return
	}
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"), route)
	require.Contains(t, r.body, `"error":"`+a.text+`"`, route)
	require.Contains(t, r.body, `"detail":"`+a.text+`"`, route)
	require.Regexp(t, `"code":"[a-z_]+"`, r.body, route)
	if a.status == 503 {
		require.NotEmpty(t, r.header.Get("Retry-After"), route)
	}
}

// A route to come has to be promised, too.
func TestEveryRouteIsPromised(t *testing.T) {
	t.Parallel()
	promised := map[string][]answer{}
	for _, routes := range contract() {
		maps.Copy(promised, routes)
	}
	var ours []string
	for _, route := range registered(t) {
		method, path, _ := strings.Cut(route, " ")
		known := strings.HasPrefix(path, "/api/") || path == "/health" || path == "/public/stats"
		if !known || method == "HEAD" { // the same as GET, without its body
			continue
		}
		ours = append(ours, route)
		answers := promised[route]
		has := func(status int, text string) bool {
			return slices.ContainsFunc(answers, func(a answer) bool {
				return a.status == status && strings.Contains(a.text, text)
			})
		}
		require.True(t, slices.ContainsFunc(answers, func(a answer) bool { return a.text == "" }), "%s: success", route)
		require.True(t, !strings.Contains(path, "/builds/:id") || has(404, "Build not found"), "%s: unknown build", route)
		require.True(t, !strings.Contains(path, "/workers/:id") && !strings.Contains(path, ":worker_id") || has(404, "Worker not found"), "%s: unknown worker", route)
	}
	require.ElementsMatch(t, ours, slices.Collect(maps.Keys(promised)))
}

// get, post and erase are requests that need nothing but a header.
func get(path string, header ...string) func(*bundle) reply { return asking("GET", path, "", header) }

func erase(path string) func(*bundle) reply {
	return asking("DELETE", path, "", []string{"X-API-Key", apiKey})
}

func post(path, body string, header ...string) func(*bundle) reply {
	return asking("POST", path, body, header)
}

func asking(method, path, body string, header []string) func(*bundle) reply {
	return func(b *bundle) reply {
		h := map[string]string{}
		for i := 0; i+1 < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		if method == "POST" {
			h["Content-Type"] = "application/json"
		}
		return b.send(method, path, h, body)
	}
}

// tokenless is what a route that takes a build's token, too, answers without.
func tokenless(method, path string) []answer {
	return []answer{
		{401, "Missing X-API-Key or X-Build-Token header", asking(method, path, "", nil)},
		{403, "Invalid API key", asking(method, path, "", []string{"X-API-Key", "wrong"})},
		{404, "Build not found", asking(method, path, "", []string{"X-API-Key", apiKey})},
		{404, "Build not found", asking(method, path, "", []string{"X-Build-Token", "any"})},
	}
}

func join(lists ...[]answer) []answer { return slices.Concat(lists...) }

func (b *bundle) emptyQueue() {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), `UPDATE builds SET state = 'cancelled', completed_at = now() WHERE state = 'pending'`)
	require.NoError(b.t, err)
}

// fill makes the queue full.
func fill(b *bundle, then func() reply) reply {
	for {
		r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "android"})
		if r.status == 503 {
			break
		}
		require.Equal(b.t, 201, r.status, r.body)
	}
	return then()
}
