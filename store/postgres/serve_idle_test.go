package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

// quiet makes the next batch try the short statement first: the one before it
// has found nothing.
func (b *bundle) quiet() {
	b.t.Helper()
	w := b.worker()
	require.Nil(b.t, b.serve(w.request())[0].Job)
}

func TestAnIdleBatchIsServedLikeAnyOther(t *testing.T) {
	t.Parallel()

	t.Run("tokens rotate in two phases", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.quiet()
		w := storetest.Worker(t, b.DB)
		p := poller{token: w.Plain}
		first := p.poll()
		require.Equal(t, store.PollAnswered, b.serve(first)[0].Outcome)
		// The reply was lost: the old token still works, and gets a new successor.
		again := p.poll()
		require.Equal(t, store.PollAnswered, b.serve(again)[0].Outcome)
		// The successor that was lost is dead, the newest one is current.
		lost := store.Poll{Token: first.Next, Next: store.HashToken(store.NewWorkerToken())}
		require.Equal(t, store.PollUnknownToken, b.serve(lost)[0].Outcome)
		p.token = p.next
		require.Equal(t, store.PollAnswered, b.serve(p.poll())[0].Outcome)
		p.token = p.next
		require.Equal(t, store.PollAnswered, b.serve(p.poll())[0].Outcome)
		require.Equal(t, store.PollUnknownToken, b.serve(first)[0].Outcome, "its successor was used")
	})

	t.Run("an expired token is refused", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.quiet()
		w := storetest.Worker(t, b.DB, func(r *store.Registration) { r.TTL = -time.Second })
		p := poller{token: w.Plain}
		require.Equal(t, store.PollUnknownToken, b.serve(p.poll())[0].Outcome)
	})

	t.Run("a build that appears is handed out at once", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.quiet()
		build := b.build()
		w := storetest.Worker(t, b.DB)
		p := poller{token: w.Plain}
		r := b.serve(p.poll())[0]
		require.NotNil(t, r.Job)
		require.Equal(t, build.ID, r.Job.BuildID)
	})

	t.Run("polls that need the full statement are served beside the others", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		build := b.build()
		holder := storetest.Worker(t, b.DB)
		hp := poller{token: holder.Plain}
		require.NotNil(t, b.serve(hp.poll())[0].Job)
		hp.token = hp.next
		b.quiet()

		polls := make([]store.Poll, 0, 6)
		for range 4 {
			w := storetest.Worker(t, b.DB)
			p := poller{token: w.Plain}
			polls = append(polls, p.poll())
		}
		byID := storetest.Worker(t, b.DB)
		polls = append(polls, hp.poll(), store.Poll{WorkerID: byID.ID, Next: store.HashToken(store.NewWorkerToken())})
		results := b.serve(polls...)
		for i, r := range results {
			require.Equal(t, store.PollAnswered, r.Outcome, "poll %d", i)
			require.Equal(t, i == 4, r.Job != nil, "poll %d", i)
		}
		require.Equal(t, build.ID, results[4].Job.BuildID)
		require.True(t, results[4].Redelivered, "one slot: its reply may be lost")
		require.False(t, results[4].Free)
	})

	t.Run("a poll parks without rotating, and its end counts only if it is the newest", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.quiet()
		w := storetest.Worker(t, b.DB)
		p := poller{token: w.Plain}
		park := p.poll()
		park.Mode = store.Park
		r := b.serve(park)[0]
		require.Equal(t, store.PollParked, r.Outcome)
		require.True(t, r.Free)

		expire := park
		expire.Mode, expire.Seq, expire.WorkerID = store.Expire, r.Seq, r.WorkerID
		require.Equal(t, store.PollAnswered, b.serve(expire)[0].Outcome)
		require.Equal(t, store.PollSuperseded, b.serve(expire)[0].Outcome)
	})

	t.Run("a worker twice in a batch loses no token", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.quiet()
		w := storetest.Worker(t, b.DB)
		one, two := poller{token: w.Plain}, poller{token: w.Plain}
		results := b.serve(one.poll(), two.poll())
		answered := 0
		for i, p := range []poller{one, two} {
			if results[i].Outcome == store.PollAnswered {
				answered++
				next := poller{token: p.next}
				require.NotEqual(t, store.PollUnknownWorker, b.serve(next.poll())[0].Outcome)
			}
		}
		require.Positive(t, answered)
	})
}
