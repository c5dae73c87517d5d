package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// A key becomes a worker's in the transaction of its registration.
func TestARegistrationBindsItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ring := &store.KeyRing{}
	keys := postgres.NewKeys(b.DB, ring)
	require.NoError(t, keys.Create(t.Context(), store.NamedKey{Name: "key", Digest: [32]byte{1}, Scopes: []store.Scope{store.ScopeWorker}, Enrolled: true}))
	bound := func() *store.NamedKey {
		require.NoError(t, keys.Refresh(t.Context()))
		return ring.Named("key")
	}
	withKey := func(r *store.Registration) { r.Key = "key" }
	w, other := b.worker(named("a")), b.worker()

	require.Equal(t, store.DuplicateWorker, store.CodeOf(w.registers("b", withKey)))
	require.Empty(t, bound().Worker, "a refused registration binds nothing")
	require.NoError(t, w.registers("a", withKey))
	require.Equal(t, w.id, bound().Worker)
	require.Equal(t, store.WorkerMismatch, store.CodeOf(other.registers("c", withKey)))
	require.Equal(t, store.PollServed, b.assign(other.request())[0].Outcome, "and voids no token")
	require.NoError(t, w.registers("a", withKey))

	require.Equal(t, w.id, must(b.workers.IDOf(t.Context(), w.number))(t))
	require.Equal(t, store.NotFound, codeOf(b.workers.IDOf(t.Context(), w.number+1000)))
	require.Equal(t, store.DuplicateWorker, codeOf(b.workers.UnregisterID(t.Context(), w.id, "b")))
	w.silentFor(store.WorkerSilence)
	must(b.workers.UnregisterID(t.Context(), w.id, "b"))(t)
	require.Equal(t, w.id, bound().Worker)
	must(b.workers.Delete(t.Context(), w.id))(t)
	require.Empty(t, bound().Worker)
}
