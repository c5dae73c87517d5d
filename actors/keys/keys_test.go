package keys_test

import (
	"context"
	"crypto/sha256"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/keys"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// A key that another controller made or revoked is known within two seconds, without any
// notification.
func TestChangesAreKnownWithoutANotification(t *testing.T) {
	t.Parallel()
	d := storetest.New(t)
	ring := &store.KeyRing{}
	sys := otp.New(otp.Options{Logger: zerolog.Nop()})
	_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{keys.Spec(postgres.NewKeys(d.DB, ring), pubsub.New())}})
	require.NoError(t, err)
	defer func() { require.Empty(t, sys.Shutdown(context.WithoutCancel(t.Context()))) }()

	another := postgres.NewKeys(d.DB, &store.KeyRing{})
	const sent = "takt_0123456789"
	known := func() bool { k, err := ring.Find(sent); return err == nil && k != nil }
	require.NoError(t, another.Create(t.Context(), store.NamedKey{Name: "ci", Digest: sha256.Sum256([]byte(sent)), Scopes: []store.Scope{store.ScopeRead}}))
	require.Eventually(t, known, time.Minute, 5*time.Millisecond)
	require.NoError(t, another.Revoke(t.Context(), "ci"))
	require.Eventually(t, func() bool { return !known() }, time.Minute, 5*time.Millisecond)
}

// looks counts what the actor asks for.
type looks struct{ refreshed, recorded atomic.Int64 }

func (l *looks) Refresh(context.Context) error   { l.refreshed.Add(1); return nil }
func (l *looks) RecordUse(context.Context) error { l.recorded.Add(1); return nil }

func TestANotificationIsFollowedAtOnceAndUseIsRecordedEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, bus := &looks{}, pubsub.New()
		sys := otp.New(otp.Options{Logger: zerolog.Nop()})
		_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{bus.Spec(), keys.Spec(l, bus)}})
		require.NoError(t, err)
		for i, e := range []string{"", "keys", "heartbeat", "keys"} {
			if e != "" {
				bus.Publish(pubsub.SettingsChanged, e)
			}
			synctest.Wait()
			require.Equal(t, []int{1, 2, 2, 3}[i], int(l.refreshed.Load()))
		}
		<-time.After(2*time.Minute + time.Second/2)
		synctest.Wait()
		require.EqualValues(t, 3+120, l.refreshed.Load())
		require.EqualValues(t, 2, l.recorded.Load())
		sys.Shutdown(context.WithoutCancel(t.Context()))
		synctest.Wait()
	})
}
