package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

func TestDatabaseAway(t *testing.T) {
	t.Parallel()

	inBubble(t, "polls fail at once, parked ones stay and are served afterwards", Config{}, func(b *bench) {
		b.db.worker("w")
		b.db.worker("v")
		w := b.asks("w", time.Minute)
		b.db.set(func(s *fakeStore) { s.err = errAway })
		before := time.Now()
		v := b.asks("v", time.Minute)
		require.Equal(b, store.Unavailable, store.CodeOf(v.err))
		require.Equal(b, before, v.at)
		b.passes(10 * time.Second)
		b.submits("x", store.IOS)
		require.False(b, w.done())
		b.db.set(func(s *fakeStore) { s.err = nil })
		b.passes(2 * time.Second)
		b.gotJob(w, "x")
	})

	inBubble(t, "a parked poll whose time is up meanwhile is refused", Config{}, func(b *bench) {
		b.db.worker("w")
		w := b.asks("w", 10*time.Second)
		b.db.set(func(s *fakeStore) { s.err = errAway })
		b.passes(10 * time.Second)
		require.Equal(b, store.Unavailable, store.CodeOf(w.err))
	})

	inBubble(t, "a database that hangs is given up after the time limit", Config{Timeout: time.Second}, func(b *bench) {
		b.db.worker("w")
		gate := make(chan struct{})
		b.db.set(func(s *fakeStore) { s.gate = gate })
		w := b.asks("w", 0)
		b.passes(time.Second)
		require.Equal(b, store.Unavailable, store.CodeOf(w.err))
	})
}

func TestPubsubAway(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(b *bench) {
		b.sys.Whereis("takt/pubsub").Exit(errors.New("crashed"))
		b.passes(time.Second)
		b.db.worker("w")
		w := b.asks("w", time.Minute)
		b.db.submit("x", store.IOS)
		b.bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
		synctest.Wait()
		b.gotJob(w, "x")
	})
}

func TestStop(t *testing.T) {
	t.Parallel()

	inBubble(t, "running transactions are awaited and their answers delivered", Config{Batches: 1}, func(b *bench) {
		for _, id := range []string{"asleep", "flier", "queued"} {
			b.db.worker(id)
		}
		asleep := b.asks("asleep", time.Minute)
		gate := make(chan struct{})
		b.db.set(func(s *fakeStore) { s.gate = gate })
		flier, queued := b.asks("flier", 0), b.asks("queued", 0)
		b.db.submit("x", store.IOS)
		proc := b.sys.Whereis(managerName)
		proc.Exit(otp.ErrShutdown)
		synctest.Wait()
		b.gotNothing(asleep)
		require.Equal(b, store.Unavailable, store.CodeOf(queued.err))
		require.False(b, flier.done())
		close(gate)
		<-proc.Done()
		synctest.Wait()
		b.gotJob(flier, "x")
	})

	inBubble(t, "a transaction that hangs holds it up for its time limit only", Config{Timeout: time.Second}, func(b *bench) {
		gate := make(chan struct{})
		b.db.set(func(s *fakeStore) { s.gate = gate })
		b.db.worker("w")
		w := b.asks("w", 0)
		before := time.Now()
		b.sys.Shutdown(context.Background())
		synctest.Wait()
		require.LessOrEqual(b, time.Since(before), 2*time.Second)
		require.Equal(b, store.Unavailable, store.CodeOf(w.err))
	})

	inBubble(t, "callers wait for a restart and no longer", Config{}, func(b *bench) {
		b.db.worker("w")
		b.sys.Shutdown(context.Background())
		before := time.Now()
		a := b.asks("w", 0)
		b.passes(time.Second)
		require.Equal(b, store.Unavailable, store.CodeOf(a.err))
		require.Equal(b, time.Second, a.at.Sub(before))
	})
}
