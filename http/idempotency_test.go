package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
)

func ios() part { return part{name: "platform", content: "ios"} }

// under sends a submission under an Idempotency-Key.
func (b *fixture) under(idempotencyKey, path string, parts ...part) reply {
	b.t.Helper()
	return b.form(path, key("Idempotency-Key", idempotencyKey), parts...)
}

func TestIdempotencyKeyMakesASubmissionHappenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	whole := []part{
		source("code"), ios(), {name: "priority", content: "2"}, {name: "labels", content: `{"a":"1","b":"2"}`}, {"certs", "c", "certs"},
	}
	for path, status := range map[string]int{"/api/builds": 201, "/api/builds/submit": 200} {
		builds, files := b.count(), len(b.files())
		first := b.under(path, path, whole...)
		require.Equal(t, status, first.status, first.body)
		require.Empty(t, first.header.Get("Idempotent-Replayed"))
		for _, again := range []string{path, "/api/builds", "/api/builds/submit"} {
			r := b.under(path, again, whole...)
			require.Equal(t, status, r.status, "the first one's status, whatever the path")
			require.Equal(t, "true", r.header.Get("Idempotent-Replayed"))
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
			requireBody(t, first.body, r)
		}
		require.Equal(t, builds+1, b.count())
		require.Len(t, b.files(), files+2, "what repeats have uploaded is gone")
		token := decode[api.Submitted](t, first).AccessToken
		require.NotContains(t, b.logs.String(), token)
		var kept string
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT string_agg(k::text || encode(reply, 'escape'), ',') FROM idempotency_keys k`).Scan(&kept))
		require.NotContains(t, kept, token)
		require.NotContains(t, kept, path)
	}
}

func TestIdempotencyKeyWithOtherContentIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	labels := part{name: "labels", content: `{"a":"1"}`}
	require.Equal(t, 201, b.under("k", "/api/builds", source("code"), ios(), labels).status)
	for name, parts := range map[string][]part{
		"source":     {source("c0de"), ios(), labels},
		"platform":   {source("code"), {name: "platform", content: "android"}, labels},
		"priority":   {source("code"), ios(), labels, {name: "priority", content: "1"}},
		"labels":     {source("code"), ios(), {name: "labels", content: `{"a":"2"}`}},
		"no labels":  {source("code"), ios()},
		"more certs": {source("code"), ios(), labels, {"certs", "c", ""}},
	} {
		r := b.under("k", "/api/builds", parts...)
		require.Equal(t, 422, r.status, name)
		requireProblem(t, r, "Idempotency-Key was used for another submission", "idempotency_mismatch")
	}
	r := b.under("k", "/api/builds", labels, ios(), part{name: "priority", content: "0"}, source("code"))
	require.Equal(t, "true", r.header.Get("Idempotent-Replayed"), "the order of fields and what is default anyway make no difference")
	require.Equal(t, 1, b.count())
	require.Len(t, b.files(), 1)
}

func TestIdempotencyKeyIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, bad := range []string{"", " ", "two words", strings.Repeat("k", 256), "k\u00e4y"} {
		r := b.under(bad, "/api/builds", source("code"), ios())
		require.Equal(t, 400, r.status, bad)
		requireProblem(t, r, "Idempotency-Key must be 1 to 255 visible characters", "invalid_argument")
	}
	b.requireNothing()
	require.Equal(t, 201, b.under(strings.Repeat("~", 255), "/api/builds", source("code"), ios()).status)
	require.Equal(t, 400, b.under("bad", "/api/builds", ios()).status)
	require.Equal(t, 201, b.under("bad", "/api/builds", source("code"), ios()).status, "a refused submission takes no key")
}

func TestRepliesCannotBeOpenedUnderAnotherAPIKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, 201, b.under("k", "/api/builds", source("code"), ios()).status)
	const another = "another-api-key-0123456789"
	c := setupWith(t, func(d *takthttp.Deps) { d.Builds = storeBuilds(b) }, func(cfg *takthttp.Config) { cfg.APIKey = another })
	r := c.form("/api/builds", map[string]string{"X-API-Key": another, "Idempotency-Key": "k"}, source("code"), ios())
	require.Equal(t, 409, r.status, r.body)
	requireProblem(t, r, "The first reply to this Idempotency-Key can no longer be told", "idempotency_expired")
	require.Equal(t, 1, b.count())
	require.Empty(t, c.files())
}
