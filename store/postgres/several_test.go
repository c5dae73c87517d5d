package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// upTo makes a poll ask for n builds, of classes that no other poll waits for.
func upTo(n int) func(*store.Poll) {
	return func(p *store.Poll) { p.Max, p.New, p.Spare = n, n, []int32{store.IOSClass, store.AndroidClass} }
}

func (b *fixture) submits(n int, edit ...func(*store.Submission)) (ids []string) {
	b.t.Helper()
	for range n {
		ids = append(ids, b.build(edit...).ID)
	}
	return ids
}

func jobIDs(r store.PollResult) (ids []string) {
	for _, j := range r.Jobs {
		ids = append(ids, j.BuildID)
	}
	return ids
}

// Each of several builds of an answer has its own number, so a token tells which of them its
// holder has heard of, whether it asks for them all again or one by one.
func TestSeveralBuildsOfOneAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.submits(5)
	w := b.worker(slots(4))
	start := w.shown
	r := w.lost(upTo(3))
	require.Equal(t, ids[:3], jobIDs(r))
	require.False(t, r.Redelivered)
	require.Equal(t, 3, r.Session.Held)
	for i, id := range ids[:3] {
		require.Equal(t, 1, b.count(`SELECT count(*) FROM builds WHERE id = $1 AND handed = $2 AND state = 'assigned'`, id, start+uint64(i+1)*1024))
		require.Equal(t, []string{"Build submitted", "Assigned to worker " + w.id}, b.logs(id))
	}
	require.Equal(t, start+3*1024, r.Handed)
	require.Equal(t, 3, b.count(`SELECT held FROM workers WHERE handed = $1`, r.Handed))

	again := w.lost(upTo(3))
	require.True(t, again.Redelivered)
	require.Equal(t, ids[:3], jobIDs(again), "the reply was lost")
	require.Equal(t, r.Handed, next(again))
	require.Equal(t, ids[:2], jobIDs(w.lost(upTo(2))), "as many as it asks for")
	for _, id := range ids[:3] { // one at a time, each with a token for the rest
		require.True(t, w.gets(id).Redelivered)
	}
	require.Equal(t, r.Handed, w.shown)
	require.NoError(t, b.touch(t.Context(), w.heartbeat(ids[0])))

	r = w.poll(upTo(3))
	require.Equal(t, ids[3:4], jobIDs(r), "it had one more free slot")
	w.finishes(ids[0])
	w.finishes(ids[1])
	r = w.poll(upTo(9))
	require.Equal(t, ids[4:], jobIDs(r), "there are no more")
	w.shown = start
	b.exec(`UPDATE workers SET used = $1`, start)
	require.Equal(t, ids[2:], jobIDs(w.poll(upTo(9))), "of several answers, the oldest first")
}

// Of the polls of one batch each gets a build before one gets a second.
func TestSeveralBuildsGoRound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ios, android int
		polls        func(b *fixture) []store.Poll
		want         []int
	}{
		"one has them all": {ios: 3, polls: func(b *fixture) []store.Poll { return []store.Poll{b.asks(upTo(4))} }, want: []int{3}},
		"shared by two":    {ios: 5, polls: func(b *fixture) []store.Poll { return []store.Poll{b.asks(upTo(4)), b.asks(upTo(4))} }, want: []int{3, 2}},
		"some ask for one": {ios: 6, polls: func(b *fixture) []store.Poll { return []store.Poll{b.asks(upTo(2)), b.asks(), b.asks(upTo(4))} }, want: []int{2, 1, 3}},
		"too few for seconds": {ios: 2, polls: func(b *fixture) []store.Poll {
			return []store.Poll{b.asks(upTo(4)), b.asks(upTo(4)), b.asks(upTo(4))}
		}, want: []int{1, 1, 0}},
		"another one waits for them": {ios: 3, polls: func(b *fixture) []store.Poll {
			return []store.Poll{b.asks(upTo(4), func(p *store.Poll) { p.Spare = []int32{store.AndroidClass} })}
		}, want: []int{1}},
		"classes that several can take": {ios: 4, polls: func(b *fixture) []store.Poll {
			return []store.Poll{b.asksFor([]store.Platform{store.IOS}, upTo(4)), b.asks(upTo(4))}
		}, want: []int{1, 1}},
		"classes of their own": {ios: 3, android: 3, polls: func(b *fixture) []store.Poll {
			return []store.Poll{b.asksFor([]store.Platform{store.IOS}, upTo(4)), b.asksFor([]store.Platform{store.Android}, upTo(2))}
		}, want: []int{3, 2}},
	} {
		inDatabase(t, name, func(b *fixture) {
			b.submits(c.ios)
			b.submits(c.android, on(store.Android))
			got := []int{}
			for _, r := range b.assign(c.polls(b)...) {
				require.Equal(b.t, store.PollServed, r.Outcome)
				got = append(got, len(r.Jobs))
			}
			require.Equal(b.t, c.want, got)
			all := 0
			for _, n := range got {
				all += n
			}
			require.Equal(b.t, all, b.count(`SELECT sum(held)::int FROM workers`))
		})
	}
}

// asks returns the poll of a new worker with four slots.
func (b *fixture) asks(edit ...func(*store.Poll)) store.Poll {
	b.t.Helper()
	return b.asksFor(nil, edit...)
}

func (b *fixture) asksFor(platforms []store.Platform, edit ...func(*store.Poll)) store.Poll {
	b.t.Helper()
	return b.worker(slots(4), takes(platforms...)).request(edit...)
}

// A quarantined worker whose rest is over gets one build, whatever it asks for.
func TestAQuarantinedWorkerGetsOneOfSeveralBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.submits(2)
	w := b.worker(slots(4))
	b.exec(`UPDATE workers SET quarantine = 'faults', rests_until = now() - interval '1 s'`)
	require.Equal(t, ids[:1], jobIDs(w.poll(upTo(4))))
	require.Empty(t, jobIDs(w.poll(upTo(4))))
}

// Of several builds of a poll the database may refuse one. The others are assigned.
func TestABadBuildAmongSeveral(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.submits(3)
	w := b.worker(slots(4))
	b.raise("builds", `NEW.state = 'assigned' AND NEW.id = '`+ids[1]+`'`)
	require.Equal(t, ids[:1], jobIDs(w.poll(upTo(4))))
	require.Equal(t, ids[2:], jobIDs(w.poll(upTo(4))))
	require.Equal(t, store.Failed, b.find(ids[1]).State)
}

// The rows of workers tell which of them have a poll parked at another controller.
func TestPollsElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	elsewhere := func(here ...uint32) (all []store.WorkerSession) {
		return must(b.queue.Elsewhere(t.Context(), here, 9))(t)
	}
	require.Empty(t, elsewhere())
	one, two := b.worker(takes(store.IOS)), b.worker(takes(store.IOS))
	other := b.worker(takes(store.Android), labelled("gpu", "1"))
	require.Empty(t, elsewhere(), "they have not polled")
	for _, w := range []*client{one, two, other} {
		must(b.queue.RecordPresence(t.Context(), []store.Presence{{Number: w.number, Used: w.shown, Wait: 30e9}}))(t)
	}
	require.ElementsMatch(t, []store.WorkerSession{
		{Platforms: []store.Platform{store.IOS}}, {Platforms: []store.Platform{store.Android}, Labels: store.Labels{"gpu": "1"}},
	}, elsewhere(), "each kind once")
	require.Len(t, must(b.queue.Elsewhere(t.Context(), nil, 1))(t), 1)
	require.Len(t, elsewhere(one.number, other.number), 1)
	require.Empty(t, elsewhere(one.number, two.number, other.number))
	for _, not := range []string{
		`polled_at = now() - interval '50 s'`, `polled_at = NULL, last_seen_at = now() - interval '80 s'`, `poll_wait = 0`, `poll_closed_at = polled_at`, `held = slots`, `status = 'offline'`,
		`draining = true`, `rests_until = now() + interval '1 min'`,
	} {
		b.exec(`CREATE TABLE kept AS SELECT * FROM workers; UPDATE workers SET ` + not)
		require.Empty(t, elsewhere(), not)
		b.exec(`UPDATE workers w SET last_seen_at = k.last_seen_at, polled_at = k.polled_at, poll_wait = k.poll_wait, poll_closed_at = k.poll_closed_at, held = k.held, status = k.status,
			draining = k.draining, rests_until = k.rests_until FROM kept k WHERE k.id = w.id; DROP TABLE kept`)
		require.Len(t, elsewhere(), 2)
	}
}
