package http_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// keep sets a secret of these keys, of all without one.
func (b *fixture) keep(name, value string, keys ...string) api.Secret {
	b.t.Helper()
	body, err := json.Marshal(api.SecretContent{Value: []byte(value), Keys: keys, AllKeys: len(keys) == 0})
	require.NoError(b.t, err)
	r := b.json("PUT", "/admin/secrets/"+name, map[string]string{"X-Admin-Key": adminKey}, string(body))
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.Secret](b.t, r)
}

func TestSecretsAreSetListedAndRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.named("ci", store.ScopeSubmit)
	b.named("reader", store.ScopeRead)
	ops := shownKey(b.named("ops", store.ScopeOperate).Key)
	const value = "hunter2-is-not-shown"
	coded := base64.StdEncoding.EncodeToString([]byte(value))
	r := b.json("PUT", "/admin/secrets/APP_TOKEN", ops.headers(), `{"value":"`+coded+`","keys":["ci"],"reason":"rotated"}`)
	require.Equal(t, 200, r.status, r.body)
	set := decode[api.Secret](t, r)
	require.Equal(t, []any{"APP_TOKEN", []string{"ci"}, false, true, false}, []any{set.Name, set.Keys, set.AllKeys, set.Masked, set.Binary})
	b.keep("OURS", "of-all-keys")
	admin := map[string]string{"X-Admin-Key": adminKey}
	list := b.send("GET", "/admin/secrets", admin, "")
	require.Equal(t, 200, list.status)
	require.Contains(t, list.body, `{"name":"APP_TOKEN","all_keys":false,"keys":["ci"],"masked":true,"binary":false,"created_by":"key ops@127.0.0.1"`)
	require.Equal(t, 204, b.send("DELETE", "/admin/secrets/OURS?reason=over", admin, "").status)
	require.Equal(t, 404, b.send("DELETE", "/admin/secrets/OURS", admin, "").status)

	for name, c := range map[string]struct {
		path, body string
		status     int
		code       string
	}{
		"a bad name":               {"app_token", `{"value":"` + coded + `","all_keys":true}`, 400, "invalid_secret"},
		"an unknown key":           {"T", `{"value":"` + coded + `","keys":["ci","typo"]}`, 400, "invalid_secret"},
		"a key that never submits": {"T", `{"value":"` + coded + `","keys":["reader"]}`, 400, "invalid_secret"},
		"nobody's":                 {"T", `{"value":"` + coded + `"}`, 400, "invalid_secret"},
		"everybody's and one's":    {"T", `{"value":"` + coded + `","all_keys":true,"keys":["ci"]}`, 400, "invalid_secret"},
		"one letter":               {"T", `{"value":"eA==","all_keys":true}`, 400, "invalid_secret"},
		"no value":                 {"T", `{"all_keys":true,"no_mask":true}`, 400, "invalid_secret"},
		"no base64":                {"T", `{"value":"` + value + `!","all_keys":true}`, 400, "invalid_argument"},
		"too long":                 {"T", `{"value":"` + strings.Repeat("AAAA", 21846) + `","all_keys":true}`, 413, "too_large"},
		"a slip":                   {"T?all=1", `{"value":"` + coded + `","all_keys":true}`, 400, "invalid_argument"},
	} {
		r := b.json("PUT", "/admin/secrets/"+c.path, admin, c.body)
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		require.Equal(t, c.code, decode[api.Problem](t, r).Code, name)
		require.NotContains(t, r.body, value, name)
		require.NotContains(t, r.body, coded, name)
	}
	require.Equal(t, 200, b.json("PUT", "/admin/secrets/PIN", admin, `{"value":"eA==","all_keys":true,"no_mask":true}`).status)

	audit := b.send("GET", "/admin/audit", admin, "").body
	require.Contains(t, audit, `"actor":"key ops@127.0.0.1","action":"set secret","target":"secret/APP_TOKEN","reason":"rotated","detail":{"keys":["ci"],"masked":true,"all_keys":false`)
	require.Contains(t, audit, `"action":"remove secret","target":"secret/OURS","reason":"over"`)
	for _, text := range []string{value, coded, "of-all-keys"} {
		require.NotContains(t, audit, text)
		require.NotContains(t, list.body, text)
		require.NotContains(t, b.logs.String(), text)
		require.NotContains(t, b.send("GET", "/metrics", nil, "").body, text)
	}
}
