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

// A build has the secrets that its submitter's key may have, from the worker that holds it and nowhere
// else.
func TestSecretsGoFromOperatorToWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ci, other := shownKey(b.named("ci", store.ScopeSubmit).Key), shownKey(b.named("other", store.ScopeSubmit, store.ScopeOperate).Key)
	const mine, ours = "of-ci-alone-\x01", "of-all-keys"
	b.keep("MINE", mine, "ci")
	b.keep("OURS", ours)
	submit := func(k map[string]string, secrets string) reply {
		return b.form("/api/builds", k, source("x"), ios(), textPart("secrets", secrets))
	}
	asks := `{"OURS":"env","MINE":"file"}`
	for code, k := range map[string]map[string]string{"secret_not_yours": other.headers(), "unknown_secret": ci.headers()} {
		r := submit(k, strings.Replace(asks, "OURS", map[string]string{"secret_not_yours": "OURS", "unknown_secret": "NONE"}[code], 1))
		require.Equal(t, code, decode[api.Problem](t, r).Code, r.body)
		b.requireNothing()
	}
	require.Equal(t, 403, submit(key(), asks).status, "the API key has those of all keys only")
	r := submit(ci.headers(), asks)
	require.Equal(t, 201, r.status, r.body)
	require.Contains(t, r.body, `"inputs":{"secrets":{"MINE":"file","OURS":"env"}}`)
	s := decode[api.Submitted](t, r)

	require.Nil(t, b.poll(b.enroll(`{"features":["env"]}`).AccessToken).Job, "only to workers that can")
	w, stranger := b.capable(), b.capable()
	value := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	has := func(build string) {
		t.Helper()
		p := b.poll(w.AccessToken)
		w.AccessToken = p.AccessToken
		require.Equal(t, build, p.Job.ID)
		require.Equal(t, 403, b.held(build, stranger.ID).status)
		for range 2 {
			r := b.held(build, w.ID, "X-Build-Attempt", "1")
			require.Equal(t, 200, r.status, r.body)
			require.Equal(t, "no-store", r.header.Get("Cache-Control"))
			require.Contains(t, r.body, `"secrets":[{"name":"MINE","as":"file","value":"`+value(mine)+`","mask":true},{"name":"OURS","as":"env","value":"`+value(ours)+`","mask":true}]`)
		}
	}
	has(s.ID)
	fail := func(build string) {
		t.Helper()
		require.Equal(t, 200, b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+build+`"}`).status)
		require.Equal(t, 403, b.held(build, w.ID).status, "the attempt has ended")
	}
	fail(s.ID)
	retry := func(header map[string]string, body string) reply {
		return b.json("POST", "/api/builds/"+s.ID+"/retry", header, body)
	}
	for _, k := range []map[string]string{other.headers(), key()} {
		r := retry(k, `{"params":{"A":"1"}}`)
		require.Equal(t, 403, r.status, r.body)
		require.Equal(t, "secrets_not_yours", decode[api.Problem](t, r).Code)
	}
	for _, how := range []struct {
		header map[string]string
		body   string
	}{{other.headers(), ""}, {key(), `{}`}, {map[string]string{"X-Build-Token": s.AccessToken}, ""}, {ci.headers(), `{"params":{"A":"1"}}`}} {
		r := retry(how.header, how.body)
		require.Equal(t, 200, r.status, r.body)
		again := decode[api.Retried](t, r)
		has(again.ID)
		fail(again.ID)
	}

	// One that is gone, or another key's by now.
	for _, change := range []func(){
		func() {
			require.Equal(t, 204, b.send("DELETE", "/admin/secrets/MINE", map[string]string{"X-Admin-Key": adminKey}, "").status)
		},
		func() { b.keep("MINE", "of-the-other-alone", "other") },
	} {
		again := decode[api.Retried](t, retry(other.headers(), ""))
		change()
		p := b.poll(w.AccessToken)
		w.AccessToken = p.AccessToken
		require.Equal(t, again.ID, p.Job.ID)
		r := b.held(again.ID, w.ID)
		require.Equal(t, 422, r.status, r.body)
		require.Equal(t, "secret_gone", decode[api.Problem](t, r).Code)
		require.NotContains(t, r.body, value(ours))
		status := b.status(again.ID)
		require.Equal(t, "failed", status.Status)
		require.Contains(t, *status.ErrorMessage, "The secret MINE can't be given to this build any more")
		require.Contains(t, *status.ErrorMessage, "secret_gone")
		require.Equal(t, 403, b.held(again.ID, w.ID).status)
		r = retry(other.headers(), "")
		require.Equal(t, 422, r.status, r.body)
		require.Equal(t, "secret_gone", decode[api.Problem](t, r).Code, "it would fail again")
		require.Contains(t, r.body, "The secret MINE can't")
		b.keep("MINE", mine, "ci")
	}
	require.Equal(t, "idle", b.worker(w.ID).Status)

	admin := map[string]string{"X-Admin-Key": adminKey}
	audit := b.send("GET", "/admin/audit", admin, "").body
	require.Equal(t, 5, strings.Count(audit, `"action":"use secrets"`), "once for each attempt")
	require.Contains(t, audit, `"target":"build/`+s.ID+`","reason":"","detail":{"key":"ci","worker":"`+w.ID+`","attempt":1,"secrets":["MINE","OURS"]}`)
	seen := audit + b.logs.String() + b.send("GET", "/metrics", nil, "").body + b.send("GET", "/api/builds", key(), "").body + b.send("GET", "/api/builds/"+s.ID+"/timeline", key(), "").body
	for _, text := range []string{"of-ci-alone", ours, value(mine), value(ours), "of-the-other-alone"} {
		require.NotContains(t, seen, text)
	}
}

// A repeat gets the first reply, whatever became of the secrets; a new submission is refused.
func TestARepeatIsAnsweredAlthoughItsSecretIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.keep("OURS", "of-all-keys")
	whole := []part{source("x"), ios(), {name: "secrets", content: `{"OURS":"env"}`}}
	first := b.under("k", "/api/builds", whole...)
	require.Equal(t, 201, first.status, first.body)
	require.Equal(t, 204, b.send("DELETE", "/admin/secrets/OURS", map[string]string{"X-Admin-Key": adminKey}, "").status)
	again := b.under("k", "/api/builds", whole...)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	files := len(b.files())
	r := b.under("other", "/api/builds", whole...)
	require.Equal(t, 422, r.status, r.body)
	require.Equal(t, "unknown_secret", decode[api.Problem](t, r).Code)
	require.Equal(t, 1, b.count())
	require.Len(t, b.files(), files)
}
