package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// whatItNeeds are builds that are assigned first, and builds that need a feature, which are building
// from the start.
func whatItNeeds(t *testing.T, f func(b *fixture, edit func(*store.Submission))) {
	t.Helper()
	for name, i := range map[string]*store.Inputs{"nothing": nil, "parameters": {Params: store.Params{"A": "1"}}} {
		inDatabase(t, name, func(b *fixture) { f(b, func(s *store.Submission) { s.Inputs = i }) })
	}
}

// A build that its worker has not acknowledged is handed out again when the poll shows that the reply
// may be lost.
func TestRedelivery(t *testing.T) {
	t.Parallel()
	for name, i := range map[string]*store.Inputs{"nothing": nil, "parameters": {Params: store.Params{"A": "1"}}} {
		t.Run(name, func(t *testing.T) { redelivers(t, func(s *store.Submission) { s.Inputs = i }) })
	}
}

func redelivers(t *testing.T, edit func(*store.Submission)) {
	t.Helper()
	type poll func(c *client, held string) []func(*store.Poll)
	plain := func(*client, string) []func(*store.Poll) { return nil }
	noToken := func(c *client, _ string) []func(*store.Poll) { return []func(*store.Poll){c.byID()} }
	listing := func(_ *client, held string) []func(*store.Poll) { return []func(*store.Poll){lists(held)} }
	listingOther := func(*client, string) []func(*store.Poll) { return []func(*store.Poll){lists("other")} }
	for name, c := range map[string]struct {
		slots  int
		lost   bool // the reply with the build
		touch  bool
		poll   poll
		again  bool
		second bool // gets the next build
	}{
		"one slot, newest token":                    {slots: 1, poll: plain, again: true},
		"one slot, repeated token":                  {slots: 1, lost: true, poll: plain, again: true},
		"one slot, no token":                        {slots: 1, poll: noToken, again: true},
		"one slot, listed":                          {slots: 1, poll: listing},
		"one slot, acknowledged":                    {slots: 1, touch: true, poll: plain},
		"one slot, acknowledged, reply lost":        {slots: 1, lost: true, touch: true, poll: plain},
		"two slots, newest token":                   {slots: 2, poll: plain, second: true},
		"two slots, repeated token":                 {slots: 2, lost: true, poll: plain, again: true},
		"two slots, no token":                       {slots: 2, poll: noToken, again: true},
		"two slots, not listed":                     {slots: 2, poll: listingOther, again: true},
		"two slots, listed":                         {slots: 2, poll: listing, second: true},
		"two slots, listed by one that lost before": {slots: 2, lost: true, poll: listing, second: true},
		"two slots, not listed but acknowledged":    {slots: 2, touch: true, poll: listingOther, second: true},
	} {
		inDatabase(t, name, func(b *fixture) {
			first, second := b.build(edit), b.build(edit)
			w := b.worker(slots(c.slots), able())
			r := w.lost()
			require.Equal(b.t, first.ID, jobID(r))
			if !c.lost {
				w.shown = next(r)
			}
			if c.touch {
				require.NoError(b.t, b.touch(b.t.Context(), w.heartbeat(first.ID)))
			}
			want := ""
			if c.again {
				want = first.ID
			}
			if c.second {
				want = second.ID
			}
			got := w.gets(want, c.poll(w, first.ID)...)
			require.Equal(b.t, c.again, got.Redelivered)
			if c.again {
				require.Equal(b.t, 1, got.Jobs.First().Attempt, "the same attempt")
				require.Equal(b.t, []string{"Build submitted", "Assigned to worker " + w.id}, b.logs(first.ID))
			}
		})
	}
}

func TestTheLastHandOutIsTheOneThatMayBeLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	w := b.worker(slots(3))
	w.gets(one.ID)
	require.Equal(t, two.ID, jobID(w.lost()))
	w.gets(two.ID)
	w.gets(one.ID, lists(two.ID))
}

func TestABuildThatEndedIsNotHandedOutAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker()
	w.lost()
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID, "", ""))
	w.gets("")
}

// A worker that hears of its build only now is given the whole time to begin, once.
// Replies may be lost again and again.
func TestTheSilenceOfABuildBeginsAnewForTwoMinutes(t *testing.T) {
	t.Parallel()
	whatItNeeds(t, func(b *fixture, edit func(*store.Submission)) {
		build := b.build(edit)
		w := b.worker(able())
		w.lost()
		for range 2 {
			b.passes(50)
			require.True(b.t, w.gets(build.ID).Redelivered)
		}
		b.passes(280)
		require.Empty(b.t, b.sweep().Requeued, "330 s after the second hand-out, and 280 s after the third")
		require.True(b.t, w.gets(build.ID).Redelivered)
		b.passes(30)
		require.Len(b.t, b.sweep().Requeued, 1, "it never begins")
	})
}

// passes makes all builds older.
func (b *fixture) passes(seconds int) {
	b.exec(`UPDATE builds SET started_at = started_at - s, last_seen_at = last_seen_at - s, updated_at = updated_at - s FROM make_interval(secs => $1) s`, seconds)
}

func TestTheSilenceOfABuildBeginsAnewWithItsSecondHandOut(t *testing.T) {
	t.Parallel()
	whatItNeeds(t, func(b *fixture, edit func(*store.Submission)) {
		build := b.build(edit)
		w := b.worker(able())
		w.lost()
		b.passes(200)
		require.True(b.t, w.gets(build.ID).Redelivered)
		b.passes(200)
		require.Empty(b.t, b.sweep().Requeued, "400 s after the first hand-out, and 200 s after the second")
		require.True(b.t, w.gets(build.ID).Redelivered)
		b.passes(200)
		require.Len(b.t, b.sweep().Requeued, 1, "it never begins")
	})
}
