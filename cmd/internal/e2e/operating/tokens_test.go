package operating

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/hubspottest"
)

// TestNoTokenIsSeenWhereItDoesNotBelong has HubSpot repeat secrets in its errors,
// and PostgreSQL log all that it is told.
func TestNoTokenIsSeenWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1, Rotate: true, Echo: true})
	c := env.StartThrottle("takt", "TAKT_LOG=debug")
	db := talkative(t, c)
	env.Install(c, takttest.PerSecond(100), takttest.Portal)
	fire := func(id string) {
		t.Helper()
		require.True(t, env.Fire(t.Context(), c.URL, takttest.Portal, id))
	}
	fire("first")
	takttest.Eventually(t, "it is completed", func() bool { return env.HubSpot.Distinct() == 1 })
	env.HubSpot.Revoke(takttest.Portal)
	fire("second")
	takttest.Eventually(t, "it is completed with a refreshed token", func() bool { return env.HubSpot.Distinct() == 2 })
	require.Equal(t, 1, env.HubSpot.Refreshes(takttest.Portal))

	// Errors of every kind that name the token in use.
	tokens := strings.Join(env.HubSpot.Tokens(), " ")
	access := tokens[strings.LastIndex(tokens, "access-"):]
	access, _, _ = strings.Cut(access, " ")
	for i, status := range []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusInternalServerError} {
		env.HubSpot.Fail(takttest.Portal, hubspottest.Fault{
			Status: status, Body: `{"message":"` + access + ` is not welcome"}`, Times: 1, Header: map[string]string{"Retry-After": "0.1"},
		})
		fire(fmt.Sprintf("unwelcome-%d", i))
		takttest.Eventually(t, "it is completed in the end", func() bool { return env.HubSpot.Distinct() == 3+i })
	}
	misuseOAuth(t, env, c)
	env.HubSpot.Uninstall(takttest.Portal)
	fire("third")
	takttest.Eventually(t, "operators are told that there is no token", func() bool {
		return strings.Contains(dump(t, db), "missing or unknown refresh token")
	})

	hidden := secrets{
		"client secret": env.HubSpot.Config().ClientSecret, "the API key": c.APIKey, "the admin key": c.AdminKey,
		"the encryption key": process.ReadWord(filepath.Join(c.DataDir, "encryption-key")),
	}
	for i, token := range env.HubSpot.Tokens() {
		kind, _, _ := strings.Cut(token, "-")
		hidden[fmt.Sprintf("%s %d", kind, i)] = token
		hidden[fmt.Sprintf("a part of %s %d", kind, i)] = token[:len(kind)+1+12]
	}
	require.Greater(t, len(hidden), 12)
	hidden.requireAbsent(t, "the database", dump(t, db))
	for _, path := range []string{"/metrics", "/health", "/api/config/62515", "/admin/throttle/queues", "/admin/audit"} {
		hidden.requireAbsent(t, path, call(t, "GET", c.URL+path, map[string]string{"X-API-Key": c.APIKey, "X-Admin-Key": c.AdminKey}, nil))
	}
	require.NoError(t, db.Close(context.WithoutCancel(t.Context())))
	require.NoError(t, c.Stop(t.Context(), takttest.Patience))
	for _, text := range []string{"oauth_tokens", "is not welcome", "missing or unknown auth code", "missing or unknown refresh token"} {
		require.Contains(t, c.Output(), text, "what would tell is there")
	}
	hidden.requireAbsent(t, "takt's log, and PostgreSQL's", c.Output())
	hidden.requireNotBelow(t, c.DataDir, map[string]bool{"api-key": true, "admin-key": true, "encryption-key": true})
}

// misuseOAuth shows codes and tokens where they are refused.
func misuseOAuth(t *testing.T, env *takttest.ThrottleEnv, c *process.Controller) {
	t.Helper()
	require.NoError(t, env.HubSpot.Install(t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", takttest.Portal), "again")
	for _, token := range env.HubSpot.Tokens() {
		call(t, "GET", c.URL+"/api/oauth/callback?state=nobody&code="+token, nil, nil)
		// With a state that is good, the code is one that was used.
		err := env.HubSpot.InstallWith(t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", takttest.Portal, token)
		require.ErrorContains(t, err, "HubSpot refused the authorization")
		require.NotContains(t, err.Error(), token)
	}
}
