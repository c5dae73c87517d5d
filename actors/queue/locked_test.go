package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/store"
)

// heldUp is the result for a poll whose worker's row is locked.
func heldUp() store.PollResult { return store.PollResult{Outcome: store.PollLocked} }

// status is QueueManager's, which stands after pubsub.
func status(b *bench) otp.Status { return b.sys.Tree(false)[0].Children[1].Status }

func TestALockedWorkerHoldsUpNoOther(t *testing.T) {
	t.Parallel()

	inBubble(t, "its poll waits without a place and is served when the lock goes", Config{}, func(b *bench) {
		b.db.worker("held up")
		b.db.worker("free")
		b.db.submit("one", store.IOS)
		b.db.submit("two", store.IOS)
		b.db.set(func(s *fakeStore) { s.locked = "held up" })
		held, begun := b.asks("held up", 0), time.Now()
		free := b.asks("free", 0)
		b.gotJob(free, "one")
		require.Equal(b, begun, free.at)
		b.passes(4 * time.Second)
		require.False(b, held.done())
		require.Less(b, b.queue.Stats().Batches, int64(90), "the pauses grow to 100 ms")
		b.db.set(func(s *fakeStore) { s.locked = "" })
		b.passes(100 * time.Millisecond)
		b.gotJob(held, "two")
	})

	inBubble(t, "after five seconds it is told to try again, which is no outage", Config{}, func(b *bench) {
		b.db.worker("held up")
		b.db.worker("parked")
		parked := b.asks("parked", time.Minute)
		b.db.set(func(s *fakeStore) { s.locked = "held up" })
		held := b.asks("held up", time.Minute)
		b.passes(lockedLimit - time.Millisecond)
		require.False(b, held.done())
		b.passes(101 * time.Millisecond)
		require.True(b, held.done())
		require.ErrorIs(b, held.err, store.ErrContention)
		require.Equal(b, store.Unavailable, store.CodeOf(held.err))
		require.Equal(b, otp.StatusRunning, status(b))
		b.submits("one", store.IOS)
		b.gotJob(parked, "one")
	})

	inBubble(t, "contention of a whole batch is no outage", Config{}, func(b *bench) {
		b.db.worker("parked")
		b.db.worker("w")
		parked := b.asks("parked", time.Minute)
		contention := store.Wrap(store.Unavailable, "try again", store.ErrContention)
		b.db.set(func(s *fakeStore) { s.err = contention })
		require.ErrorIs(b, b.asks("w", time.Minute).err, store.ErrContention)
		b.passes(3 * time.Second) // past a count, which fails too
		require.Equal(b, otp.StatusRunning, status(b))
		b.db.set(func(s *fakeStore) { s.err = nil })
		b.submits("one", store.IOS)
		b.gotJob(parked, "one")
	})
}

func TestMemoryPostpones(t *testing.T) {
	t.Parallel()

	onStage(t, "a newer poll of the worker supersedes it", func(s *stage) {
		old := s.polls("w", 0)
		s.takesBack(s.take(9), heldUp())
		require.Equal(s, postponed, old.state)
		newer := s.polls("w", 0)
		require.NoError(s, s.answered(old).err)
		require.Equal(s, ended, old.state)
		require.Len(s, s.take(9).polls, 1)
		require.Equal(s, batched, newer.state)
		require.Equal(s, 1, s.admitted)
	})

	onStage(t, "so does one that came while it was in its batch", func(s *stage) {
		old := s.polls("w", 0)
		b := s.take(9)
		newer := s.polls("w", 0)
		s.takesBack(b, heldUp())
		require.NoError(s, s.answered(old).err)
		require.Empty(s, s.postponed)
		require.Equal(s, waiting, newer.state)
	})

	onStage(t, "the build that it was woken for wakes another", func(s *stage) {
		first, second := s.parks("a", store.IOS), s.parks("b", store.IOS)
		s.enqueues(ios, 1)
		require.Equal(s, 1, s.wakes())
		s.takesBack(s.take(9), heldUp())
		require.Equal(s, postponed, first.state)
		require.Equal(s, 1, s.wakes())
		require.Equal(s, waiting, second.state)
	})

	onStage(t, "it counts as a poll that waits until it leaves", func(s *stage) {
		s.limit = 1
		p := s.polls("a", 0)
		s.takesBack(s.take(9), heldUp())
		require.Equal(s, 1, s.admitted)
		s.leave(p, false, s.now)
		require.Zero(s, s.admitted)
		require.Empty(s, s.byID)
	})

	onStage(t, "what it has not read is read before the next poll is judged", func(s *stage) {
		s.parks("w")
		s.changed(s.byID["w"])
		s.takesBack(s.take(9), heldUp())
		s.polls("w", 0)
		require.Len(s, s.take(9).polls, 1)
	})
}
