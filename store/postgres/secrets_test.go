package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
)

// vault is the secrets of a test.
func vault(b *fixture) *postgres.Secrets { return postgres.NewSecrets(b.DB, seal.NewRing(seal.Key{1})) }

// keep sets a secret of these keys, of all without one.
func keep(t *testing.T, s *postgres.Secrets, name, value string, keys ...string) {
	t.Helper()
	x := store.Secret{Name: name, Keys: keys, AllKeys: len(keys) == 0, Mask: true, UpdatedBy: "admin@127.0.0.1"}
	require.NoError(t, x.Check([]byte(value)))
	must(s.Set(t.Context(), x, []byte(value)))(t)
}

func TestSecretsAreKeptSealed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := vault(b)
	const value = "hunter2-hunter2"
	keep(t, s, "TOKEN", value, "ci", "nightly", "ci")
	keep(t, s, "ICON", "\x00\xff\x00\xff\x00\xff")
	all := must(s.List(t.Context()))(t)
	require.Len(t, all, 2)
	require.Equal(t, []any{"ICON", true, true, []string{}}, []any{all[0].Name, all[0].AllKeys, all[0].Binary, all[0].Keys})
	require.Equal(t, []any{"TOKEN", false, false, true, []string{"ci", "nightly"}}, []any{all[1].Name, all[1].AllKeys, all[1].Binary, all[1].Mask, all[1].Keys})

	var row string
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT secrets::text || encode(sealed, 'escape') FROM secrets WHERE name = 'TOKEN'`).Scan(&row))
	require.NotContains(t, row, value)
	var sealed []byte
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT sealed FROM secrets WHERE name = 'TOKEN'`).Scan(&sealed))
	_, err := seal.NewRing(seal.Key{1}).Open(seal.Secret, "ICON", sealed)
	require.ErrorIs(t, err, seal.ErrDamaged, "bound to its name")

	x := store.Secret{Name: "TOKEN", AllKeys: true, UpdatedBy: "key ops@127.0.0.1"}
	again := must(s.Set(t.Context(), x, []byte("new")))(t)
	require.Equal(t, []any{"admin@127.0.0.1", "key ops@127.0.0.1", true, false, []string{}}, []any{again.CreatedBy, again.UpdatedBy, again.AllKeys, again.Mask, again.Keys})
	require.NoError(t, s.Remove(t.Context(), "ICON"))
	require.Equal(t, store.NotFound, store.CodeOf(s.Remove(t.Context(), "ICON")))
	require.Len(t, must(s.List(t.Context()))(t), 1)

	b.exec(`INSERT INTO secrets SELECT 'S' || i, '', true, false, true, '{}', '', now(), '', now() FROM generate_series(2, $1::int) i`, store.MaxStoredSecrets)
	_, err = s.Set(t.Context(), store.Secret{Name: "MORE", AllKeys: true}, []byte("x"))
	require.Equal(t, store.Conflict, store.CodeOf(err))
	must(s.Set(t.Context(), x, []byte("newer")))(t)
	b.except = append(b.except, "sealed_opens")
}

func TestAKeyMayHaveTheSecretsThatAreItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := vault(b)
	keep(t, s, "OURS", "of-all-keys")
	keep(t, s, "MINE", "of-ci-alone", "ci")
	keep(t, s, "ICON", "\x00\x01\x02\x03\x04\x05", "ci")
	for name, c := range map[string]struct {
		key  string
		asks map[string]string
		code store.Code
		says string
	}{
		"none":                       {key: "other"},
		"its own, and all keys'":     {key: "ci", asks: map[string]string{"OURS": "env", "MINE": "file", "ICON": "file"}},
		"all keys' with the API key": {asks: map[string]string{"OURS": "env"}},
		"another key's":              {key: "other", asks: map[string]string{"OURS": "env", "MINE": "env", "ICON": "file"}, code: store.SecretNotYours, says: "Builds of key other may not have the secrets ICON, MINE:"},
		"a key's with the API key":   {asks: map[string]string{"MINE": "env"}, code: store.SecretNotYours, says: "Builds of the API key may have secrets of all keys only"},
		"one that is unknown":        {key: "other", asks: map[string]string{"MINE": "env", "NONE": "env"}, code: store.UnknownSecret, says: "There is no secret NONE:"},
		"bytes as a variable":        {key: "ci", asks: map[string]string{"MINE": "env", "ICON": "env"}, code: store.InvalidSecret, says: "ICON is no text: ask for it as a file"},
	} {
		err := s.May(t.Context(), c.key, c.asks)
		require.Equal(t, c.code, store.CodeOf(err), "%s: %v", name, err)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, name)
		}
	}
}

// The worker that holds the build gets the values of now, and the audit says so once for each
// attempt. A build never gets a part of its secrets.
func TestSecretsAreHandedOutToTheHolder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := vault(b)
	keep(t, s, "OURS", "of-all-keys")
	keep(t, s, "MINE", "of-ci-alone", "ci")
	build, w, other := b.build(func(x *store.Submission) { x.Submitter = "ci" }), b.worker(), b.worker()
	names := []string{"OURS", "MINE"}
	give := func(c *client, attempt int, names ...string) ([]store.SecretValue, error) {
		h := c.heartbeat(build.ID)
		h.Attempt = attempt
		return s.HandOut(t.Context(), h, names, "key mini@127.0.0.1")
	}
	_, err := give(w, 0, names...)
	require.Equal(t, store.NotAssigned, store.CodeOf(err), "nobody holds it")
	w.gets(build.ID)
	_, err = give(other, 0, names...)
	require.Equal(t, store.NotAssigned, store.CodeOf(err))
	_, err = give(w, 2, names...)
	require.Equal(t, store.NotAssigned, store.CodeOf(err), "another attempt")
	keep(t, s, "MINE", "the-newest-one", "ci")
	for range 3 {
		got := must(give(w, 1, names...))(t)
		require.Equal(t, []store.SecretValue{
			{Name: "MINE", Mask: true, Value: store.Hidden("the-newest-one")}, {Name: "OURS", Mask: true, Value: store.Hidden("of-all-keys")},
		}, got)
		shown, err := json.Marshal(got)
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprintf("%v %+v %#v %s %q", got, got, got, got[0].Value, got[0].Value)+string(shown), "newest", "a log would not have it")
	}
	requireAudit := func(want ...string) {
		t.Helper()
		rows := must(b.Pool.Query(t.Context(), `SELECT actor || ' ' || target || ' ' || detail::text || ' ' || outcome FROM audit WHERE action = 'use secrets' ORDER BY id`))(t)
		require.Equal(t, want, must(pgx.CollectRows(rows, pgx.RowTo[string]))(t))
	}
	first := `key mini@127.0.0.1 build/` + build.ID + ` {"key": "ci", "worker": "` + w.id + `", "attempt": 1, "secrets": ["MINE", "OURS"]} done`
	requireAudit(first)

	// One that is gone, or that is another key's by now, as if it had been removed.
	require.NoError(t, s.Remove(t.Context(), "MINE"))
	gone := func() {
		t.Helper()
		got, err := give(w, 1, names...)
		require.Equal(t, store.SecretGone, store.CodeOf(err))
		require.ErrorContains(t, err, "The secret MINE can't be given")
		require.Empty(t, got)
	}
	gone()
	keep(t, s, "MINE", "of-somebody-else", "nightly")
	gone()
	b.exec(`UPDATE secrets SET sealed = set_byte(sealed, length(sealed) - 1, get_byte(sealed, length(sealed) - 1) # 1), keys = '{ci}' WHERE name = 'MINE'`)
	gone()
	must(postgres.NewSecrets(b.DB, seal.NewRing(seal.Key{2})).Set(t.Context(), store.Secret{Name: "MINE", AllKeys: true}, []byte("under another key")))(t)
	_, err = give(w, 1, names...)
	require.Equal(t, store.Unavailable, store.CodeOf(err), "another controller may know the key, so the build goes on")
	keep(t, s, "MINE", "back-again", "ci")

	must(b.builds.Requeue(t.Context(), build.ID))(t)
	w.exec(`UPDATE workers SET draining = true WHERE id = $1`, w.id)
	other.gets(build.ID)
	_, err = give(w, 0, names...)
	require.Equal(t, store.NotAssigned, store.CodeOf(err), "it lost the build")
	must(give(other, 0, names...))(t)
	requireAudit(first, strings.NewReplacer(w.id, other.id, `"attempt": 1`, `"attempt": 2`).Replace(first))

	b.exec(`INSERT INTO access_keys (name, digest, scopes, created_by, revoked_at) VALUES ('ci', '', '{submit}', 'tester', now())`)
	_, err = give(other, 0, "OURS")
	require.Equal(t, store.SecretGone, store.CodeOf(err), "its key was revoked, whoever may have the secret")
	require.Equal(t, store.SecretNotYours, store.CodeOf(s.May(t.Context(), "ci", map[string]string{"OURS": "env"})))
}

// Whoever retries a build without changes, it has the secrets of the key that submitted the first one,
// and no others.
func TestRetriesHaveTheSecretsOfTheFirstBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := vault(b)
	keep(t, s, "MINE", "of-ci-alone", "ci")
	first, w := b.build(func(x *store.Submission) { x.Submitter = "ci" }), b.worker()
	w.gets(first.ID)
	w.fails(first.ID)
	second := b.build(func(x *store.Submission) { x.Submitter, x.RetryOf = "ops", first.ID })
	w.gets(second.ID)
	w.fails(second.ID)
	third := b.build(func(x *store.Submission) { x.Submitter, x.RetryOf = "", second.ID })
	w.gets(third.ID)
	got := must(s.HandOut(t.Context(), w.heartbeat(third.ID), []string{"MINE"}, "w"))(t)
	require.Equal(t, "of-ci-alone", string(got[0].Value))
	keep(t, s, "MINE", "of-ops-alone", "ops")
	_, err := s.HandOut(t.Context(), w.heartbeat(third.ID), []string{"MINE"}, "w")
	require.Equal(t, store.SecretGone, store.CodeOf(err), "who retries gives the build no secret of the own key")
}

// Requests of the same attempt at once leave one entry, and each gets the values.
func TestAHandOutIsAuditedOnce(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	s := vault(b)
	keep(t, s, "OURS", "of-all-keys")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := s.HandOut(context.WithoutCancel(t.Context()), w.heartbeat(build.ID), []string{"OURS"}, "w")
			if err != nil || len(got) != 1 {
				t.Errorf("got %d, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, b.count(`SELECT count(*) FROM audit WHERE action = 'use secrets'`))
}
