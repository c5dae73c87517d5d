package throttle_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/throttle"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/hubspot"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

const portal = int64(9001)

// bundle is the throttle of one controller, without River, and its HubSpot.
type bundle struct {
	*throttle.Throttle
	tb  testing.TB
	db  *storetest.Database
	hs  *hubspottest.HubSpot
	bus pubsub.Bus
	sys *otp.System
}

// setup starts it on db; wrap may put something between it and its store.
func setup(tb testing.TB, db *storetest.Database, cfg throttle.Config, wrap func(throttle.Store) throttle.Store) *bundle {
	tb.Helper()
	hs := hubspottest.New(hubspottest.Config{RollingLimit: -1})
	hs.AddPortal(portal)
	base, stop := hs.Start()
	client := hubspot.NewClient(hubspot.Config{API: base, Timeout: 2 * time.Second})
	th, err := postgres.NewThrottle(db.DB)
	require.NoError(tb, err)
	var st throttle.Store = th
	if wrap != nil {
		st = wrap(th)
	}
	b := &bundle{tb: tb, db: db, hs: hs, bus: pubsub.New()}
	b.sys = otp.New(otp.Options{Logger: zerolog.New(tb.Output()).Level(zerolog.ErrorLevel)})
	b.Throttle = throttle.New(b.sys, throttle.Deps{
		Store: st, HubSpot: client, Keys: seal.NewRing(seal.Key{}), Bus: b.bus,
		App: hubspot.App{ClientID: hs.Config().ClientID, ClientSecret: hs.Config().ClientSecret, RedirectURL: "http://127.0.0.1/back"},
	}, cfg)
	_, err = b.sys.StartRoot(tb.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{
		b.bus.Spec(),
		{ID: "throttle", Supervisor: func() otp.SupSpec {
			return otp.SupSpec{Children: []otp.ChildSpec{
				b.Cache.Spec(), b.Tokens.Spec(), b.Batcher.Spec(), b.Portals.Spec(),
			}}
		}},
	}})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), time.Minute)
		defer cancel()
		require.Empty(tb, b.sys.Shutdown(ctx))
		client.CloseIdle()
		stop()
	})
	return b
}

// install keeps tokens as an installation does.
func (b *bundle) install() {
	b.tb.Helper()
	at, secret, err := b.Tokens.Authorize(b.tb.Context())
	require.NoError(b.tb, err)
	back, err := b.hs.Agree(b.tb.Context(), at, portal)
	require.NoError(b.tb, err)
	got, err := b.Tokens.Install(b.tb.Context(), back.Get("state"), secret, back.Get("code"))
	require.NoError(b.tb, err)
	require.Equal(b.tb, portal, got)
}

func (b *bundle) rate(most int, unit store.TimeUnit) {
	b.tb.Helper()
	_, err := b.PutConfig(b.tb.Context(), store.ThrottleConfig{PortalID: portal, ActionID: 1, MaxThroughput: most, TimePeriod: 1, TimeUnit: unit})
	require.NoError(b.tb, err)
}

// send hands actions 0 to n of a workflow over, many at once.
func (b *bundle) send(portal int64, workflow, n int) {
	b.tb.Helper()
	const senders = 64
	var wg sync.WaitGroup
	for c := range senders {
		wg.Go(func() {
			for i := c; i < n; i += senders {
				a := actionOf(workflow, i)
				a.Queue.PortalID = portal
				if _, err := b.Accept(b.tb.Context(), a); err != nil {
					b.tb.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func actionOf(workflow, i int) store.Action {
	return store.Action{
		Queue:      store.QueueKey{PortalID: portal, WorkflowID: fmt.Sprint(workflow), ActionID: 1, Index: "0"},
		CallbackID: fmt.Sprintf("cb-%d-%d", workflow, i), Expires: time.Hour,
	}
}
