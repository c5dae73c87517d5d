package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

func TestSealedValuesAreFoundByKeyAndReplacedOnce(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	old, both := seal.NewRing(seal.Key{1}), seal.NewRing(seal.Key{2}, seal.Key{1})
	require.NoError(t, postgres.WithKeyCheck(old)(t.Context(), db.Config))
	must(postgres.NewDeployments(db.DB).Create(t.Context(), store.Deployment{
		ID: "d1", Request: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"},
		Credential: old.Seal(seal.ForgeCredential, "d1", []byte("credential")), CredentialID: []byte("c"),
	}))(t)
	must(postgres.NewDeployments(db.DB).Create(t.Context(), store.Deployment{ID: "d2", CredentialID: []byte("takt's own")}))(t)
	th := must(postgres.NewThrottle(db.DB))(t)
	install := func(portal string, id int64, ring *seal.Ring) {
		t.Helper()
		require.NoError(t, th.Install(t.Context(), store.SealedTokens{
			PortalID: id, ExpiresIn: time.Hour,
			Access: ring.Seal(seal.AccessToken, portal, []byte("access")), Refresh: ring.Seal(seal.RefreshToken, portal, []byte("refresh")),
		}))
	}
	install("7", 7, old)
	install("19", 19, old)
	install("8", 8, both)
	set := func(ring *seal.Ring) {
		t.Helper()
		must(postgres.NewSecrets(db.DB, ring).Set(t.Context(), store.Secret{Name: "TOKEN", AllKeys: true}, []byte("hunter2")))(t)
	}
	set(old)

	s := postgres.NewSealed(db.DB)
	key1, key2 := old.Current(), both.Current()
	requireCount := func(want map[seal.Kind]map[seal.ID]int) {
		t.Helper()
		require.Equal(t, want, must(s.Count(t.Context()))(t))
	}
	requireCount(map[seal.Kind]map[seal.ID]int{
		seal.ForgeCredential: {key1: 1}, seal.AccessToken: {key1: 2, key2: 1}, seal.RefreshToken: {key1: 2, key2: 1}, seal.Secret: {key1: 1}, seal.KeyCheck: {key1: 1},
	})
	var ids []string
	for _, kind := range []seal.Kind{seal.ForgeCredential, seal.AccessToken, seal.RefreshToken, seal.Secret, seal.KeyCheck} {
		for after := ""; ; {
			page := must(s.Page(t.Context(), kind, key2, after, 1))(t)
			if len(page) == 0 {
				break
			}
			v := page[0]
			after = v.ID
			ids = append(ids, v.ID)
			content, err := both.Open(kind, v.ID, v.Value)
			require.NoError(t, err, "%s %s", kind, v.ID)
			if v.ID == "7" { // is written by somebody else meanwhile
				install("7", 7, both)
			}
			done := must(s.Replace(t.Context(), kind, v, both.Seal(kind, v.ID, content)))(t)
			require.Equal(t, v.ID != "7", done)
			done = must(s.Replace(t.Context(), kind, v, nil))(t)
			require.False(t, done, "it does not hold that any more")
		}
	}
	require.Equal(t, []string{"d1", "19", "7", "19", "TOKEN", "database"}, ids)
	requireCount(map[seal.Kind]map[seal.ID]int{
		seal.ForgeCredential: {key2: 1}, seal.AccessToken: {key2: 3}, seal.RefreshToken: {key2: 3}, seal.Secret: {key2: 1}, seal.KeyCheck: {key2: 1},
	})
}

func TestADatabaseKnowsItsKey(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	migrated := 0
	check := func(keys *seal.Ring) error {
		return postgres.WithKeyCheck(keys, func(context.Context, *pgx.ConnConfig) error { migrated++; return nil })(t.Context(), db.Config)
	}
	require.NoError(t, check(seal.NewRing(seal.Key{1})), "the first start decides")
	require.NoError(t, check(seal.NewRing(seal.Key{1}, seal.Key{2})))
	require.NoError(t, check(seal.NewRing(seal.Key{2}, seal.Key{1})))
	err := check(seal.NewRing(seal.Key{2}, seal.Key{3}))
	require.ErrorIs(t, err, seal.ErrUnknownKey)
	require.ErrorContains(t, err, "sealed with the encryption key "+seal.Key{1}.ID().String())
	require.Equal(t, 4, migrated)
	must(db.Pool.Exec(t.Context(), `UPDATE key_check SET sealed = set_byte(sealed, length(sealed) - 1, get_byte(sealed, length(sealed) - 1) # 1)`))(t)
	require.ErrorIs(t, check(seal.NewRing(seal.Key{1})), seal.ErrDamaged)
	broken := errors.New("no permission")
	require.ErrorIs(t, postgres.WithKeyCheck(seal.NewRing(seal.Key{1}), func(context.Context, *pgx.ConnConfig) error { return broken })(t.Context(), db.Config), broken)
}
