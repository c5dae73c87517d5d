package http_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// A key with operate gets no secret by changing a subscription's URL, and neither secrets nor
// paths of URLs are in the audit and the log.
func TestANewURLOfASubscriptionNeedsNewSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	operate := shownKey(b.named("ops", store.ScopeOperate).Key).headers()
	send := func(method, path string, status int, body string) reply {
		t.Helper()
		r := b.json(method, "/admin/notices"+path, operate, body)
		require.Equal(t, status, r.status, r.body)
		return r
	}
	const at = "https://hooks.example/PATHSECRET?t=QUERYSECRET"
	for token, needed := range map[string]string{"": `"new_secret": true`, "ghp_SECRET": `"github_token": "ghp_OTHERSECRET"`} {
		made := decode[api.MadeSubscription](t, send("POST", "", 201, fmt.Sprintf(`{"url": %q, "github_token": %q}`, at, token)))
		id := "/" + made.ID
		r := send("PATCH", id, 422, `{"url": "https://evil.example/PATHSECRET", "events": ["build.failed"]}`)
		requireProblem(t, r, decode[api.Problem](t, r).Detail, "secrets_needed")
		s := decode[api.Subscription](t, send("GET", id, 200, ""))
		require.Equal(t, at, s.URL)
		require.Empty(t, s.Events)
		send("PATCH", id, 200, fmt.Sprintf(`{"url": %q, "enabled": false}`, at))
		s = decode[api.Subscription](t, send("PATCH", id, 200, `{"url": "https://new.example/PATHSECRET?QUERYSECRET", `+needed+`}`))
		require.Equal(t, "https://new.example/PATHSECRET?QUERYSECRET", s.URL)
		send("PATCH", id, 400, `{"github_token": "ghp_OTHERSECRET"}`)
		require.Equal(t, token == "", s.Secret != "")
		require.NotEqual(t, made.Secret, s.Secret+token)
		require.Empty(t, decode[api.Subscription](t, send("GET", id, 200, "")).Secret, "it is shown once")
	}
	var audited string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT string_agg(to_jsonb(a)::text, chr(10)) FROM audit a`).Scan(&audited))
	for _, text := range []string{audited, b.logs.String()} {
		require.NotContains(t, text, "SECRET")
		require.NotContains(t, text, "whsec_")
	}
	require.Contains(t, audited, "notices/https://hooks.example")
	require.Contains(t, audited, "https://new.example")
}
