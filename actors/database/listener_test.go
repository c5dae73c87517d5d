package database

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store/backoff"
)

func TestListener(t *testing.T) {
	t.Parallel()
	dir := made(t)
	db := serve(t, config(dir))
	bus := pubsub.New()
	events := make(chan pubsub.Event, 100)
	defer bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.JobAvailable, pubsub.ListenerResumed)()

	l := NewListener(ListenerConfig{Source: db.pg.ConnConfig, Bus: bus, AskEvery: 50 * time.Millisecond, Backoff: backoff.Backoff{Min: 20 * time.Millisecond, Max: 50 * time.Millisecond}})
	listeners := newSystem(t)
	must(listeners.StartRoot(t.Context(), "database", otp.SupSpec{Children: []otp.ChildSpec{l.Spec()}}))(t)
	next := func(t *testing.T) (e pubsub.Event) {
		t.Helper()
		soon(t, "an event", func() bool {
			select {
			case e = <-events:
				return true
			default:
				return false
			}
		})
		return e
	}
	resumed := pubsub.Event{Topic: pubsub.ListenerResumed}
	require.Equal(t, resumed, next(t))

	notify := func(t *testing.T) {
		t.Helper()
		pid := must(strconv.ParseUint(query(t, db.pg, "SELECT pg_backend_pid() || left(pg_notify('takt', 'job:available ios')::text, 0)"), 10, 32))(t)
		require.Equal(t, pubsub.Event{Topic: pubsub.JobAvailable, Data: "ios", Remote: true, Sender: uint32(pid)}, next(t))
	}
	t.Run("publishes what is notified, after silence too", func(t *testing.T) { // builds on the step before
		notify(t)
		soon(t, "the listener to ask whether its connection lives", func() bool {
			return query(t, db.pg, "SELECT count(*)::text FROM pg_stat_activity WHERE query = '-- ping'") == "1"
		})
		notify(t)
	})
	t.Run("connects again when its connection dies, and publishes it", func(t *testing.T) { // builds on the step before
		query(t, db.pg, "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE query = 'LISTEN takt' OR query = '-- ping'")
		require.Equal(t, resumed, next(t))
		notify(t)
	})
	t.Run("connects at once when the pool says that the database is back", func(t *testing.T) { // builds on the step before
		slow := NewListener(ListenerConfig{Source: db.pg.ConnConfig, Bus: bus, Backoff: backoff.Backoff{Min: time.Hour, Max: time.Hour}})
		other := newSystem(t)
		killed := serverPID(t, dir)
		must(other.StartRoot(t.Context(), "slow", otp.SupSpec{Children: []otp.ChildSpec{slow.Spec()}}))(t)
		require.Equal(t, resumed, next(t))
		killServer(t, dir)
		require.Equal(t, resumed, next(t), "the other listener is back first")
		require.NotEqual(t, killed, serverPID(t, dir))
		eventually(t, "the slow listener", func() error {
			slow.Use(nil)
			select {
			case e := <-events:
				require.Equal(t, resumed, e)
				return nil
			default:
				return errSilent
			}
		})
		slow.Drop(nil)
	})
}
