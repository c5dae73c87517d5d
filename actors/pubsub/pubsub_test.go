package pubsub_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/pubsub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bundle struct {
	sys *otp.System
	bus pubsub.Bus
}

func setup(t *testing.T) bundle {
	t.Helper()
	b := bundle{sys: otp.New(otp.Options{Logger: zerolog.New(t.Output())}), bus: pubsub.New()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		b.sys.Shutdown(ctx)
	})
	_, err := b.sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{b.bus.Spec()}})
	require.NoError(t, err)
	return b
}

// crash ends the bus's actor and waits for that.
func (b bundle) crash(t *testing.T) {
	t.Helper()
	proc := b.sys.Whereis("takt/pubsub")
	require.NotNil(t, proc)
	proc.Exit(errors.New("crashed on purpose"))
	<-proc.Done()
}

func TestBus(t *testing.T) {
	t.Parallel()
	t.Run("delivers a topic's events to each of its subscribers in order", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		one, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated, pubsub.JobAvailable)
		require.NoError(t, err)
		two, err := b.bus.Subscribe(t.Context(), pubsub.JobAvailable)
		require.NoError(t, err)
		b.bus.Publish(pubsub.QueueUpdated, 7)
		b.bus.Publish(pubsub.WorkerUpdated, "nobody listens")
		b.bus.PublishRemote(pubsub.JobAvailable, "ios")
		remote := pubsub.Event{Topic: pubsub.JobAvailable, Data: "ios", Remote: true}
		require.Equal(t, pubsub.Event{Topic: pubsub.QueueUpdated, Data: 7}, <-one.C())
		require.Equal(t, remote, <-one.C())
		require.Equal(t, remote, <-two.C())
	})
	t.Run("closes a subscription that its user gives up, twice if he likes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		sub, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.NoError(t, err)
		sub.Close()
		sub.Close()
		_, open := <-sub.C()
		require.False(t, open)
		b.bus.Publish(pubsub.QueueUpdated, nil)
	})
	t.Run("drops a subscriber that does not keep up, and nobody else", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		slow, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.NoError(t, err)
		quick, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.NoError(t, err)
		for i := range 300 {
			b.bus.Publish(pubsub.QueueUpdated, i)
			require.Equal(t, i, (<-quick.C()).Data)
		}
		got := 0
		for range slow.C() {
			got++
		}
		require.Equal(t, 256, got)
	})
	t.Run("closes subscriptions when its actor crashes, and takes new ones", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		sub, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.NoError(t, err)
		b.crash(t)
		_, open := <-sub.C()
		require.False(t, open)
		sub.Close()
		again, err := b.bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.NoError(t, err)
		b.bus.Publish(pubsub.QueueUpdated, "back")
		require.Equal(t, "back", (<-again.C()).Data)
	})
	t.Run("without an actor swallows events and refuses subscribers", func(t *testing.T) {
		t.Parallel()
		bus := pubsub.New()
		bus.Publish(pubsub.QueueUpdated, nil)
		_, err := bus.Subscribe(t.Context(), pubsub.QueueUpdated)
		require.ErrorIs(t, err, otp.ErrNoProc)
	})
	t.Run("lets its tap hear all, also what nobody subscribes to and without an actor", func(t *testing.T) {
		t.Parallel()
		bus := pubsub.New()
		var heard []pubsub.Event
		bus.Tap(func(e pubsub.Event) { heard = append(heard, e) })
		bus.Publish(pubsub.QueueUpdated, 1)
		bus.PublishRemote(pubsub.JobAvailable, "ios")
		bus.Tap(nil)
		bus.Publish(pubsub.QueueUpdated, 2)
		require.Equal(t, []pubsub.Event{{Topic: pubsub.QueueUpdated, Data: 1}, {Topic: pubsub.JobAvailable, Data: "ios", Remote: true}}, heard)
	})
	t.Run("refuses a subscriber without a topic", func(t *testing.T) {
		t.Parallel()
		_, err := setup(t).bus.Subscribe(t.Context())
		require.ErrorContains(t, err, "no topic")
	})
}

// hearer is a process that listens.
type hearer struct {
	otp.Base
	bus   pubsub.Bus
	heard chan any
}

func (h *hearer) Init(c *otp.Ctx) error {
	h.bus.Listen(c, pubsub.SettingsChanged)
	return nil
}

func (h *hearer) HandleCast(_ *otp.Ctx, msg any) { h.heard <- msg }

func TestListen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	heard := make(chan any, 10)
	proc, err := b.sys.Start("hearer", func() otp.Server { return &hearer{bus: b.bus, heard: heard} })
	require.NoError(t, err)
	require.Equal(t, pubsub.Heard{}, <-heard)
	b.bus.PublishRemote(pubsub.SettingsChanged, "heartbeat")
	require.Equal(t, pubsub.Event{Topic: pubsub.SettingsChanged, Data: "heartbeat", Remote: true}, <-heard)

	b.crash(t)
	require.Equal(t, pubsub.Unheard{}, <-heard)
	require.Equal(t, pubsub.Heard{}, <-heard)
	b.bus.Publish(pubsub.SettingsChanged, 1)
	require.Equal(t, pubsub.Event{Topic: pubsub.SettingsChanged, Data: 1}, <-heard)

	proc.Exit(nil)
	<-proc.Done()
	b.bus.Publish(pubsub.SettingsChanged, 2)
	sub, err := b.bus.Subscribe(t.Context(), pubsub.SettingsChanged)
	require.NoError(t, err, "the bus lives on without its subscriber")
	sub.Close()
	require.Empty(t, heard)
}
