package queue

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// Worker "w" asks for three builds while four for iOS are pending, and nothing else is known.
func TestMemoryAllowsMore(t *testing.T) {
	t.Parallel()
	const w = uint32('w')
	read := func(s *stage, elsewhere ...store.WorkerSession) {
		s.learnElsewhere(recounted{here: []uint32{}, at: s.now, elsewhere: elsewhere})
	}
	asks := func(s *stage, worker uint32, wait time.Duration) *poll {
		s.Helper()
		return s.sends(store.PollRequest{Token: store.WorkerToken{Worker: worker, Counter: 11}, Presented: "presented", Max: 3}, wait)
	}
	for name, c := range map[string]struct {
		before func(s *stage) // before the builds are pending
		edit   func(s *stage)
		want   int
	}{
		"nobody waits":                {want: 3},
		"fewer are pending":           {edit: func(s *stage) { s.counts(2) }, want: 2},
		"a poll is parked":            {before: func(s *stage) { s.parks("v", store.IOS) }},
		"one without a free slot":     {before: func(s *stage) { s.parks("v", store.IOS); s.fills("v") }, want: 3},
		"one for others":              {before: func(s *stage) { s.parks("v", store.Android) }, want: 3},
		"one for others, and for it":  {before: func(s *stage) { s.parks("v", store.Android, store.IOS) }},
		"its next may be another's":   {before: func(s *stage) { s.parks("v", store.Android) }, edit: func(s *stage) { s.enqueues(android, 1) }},
		"another batch runs":          {before: func(s *stage) { s.parks("v", store.IOS) }, edit: func(s *stage) { s.shows('v', 12, 0); s.take(1) }},
		"a batch of others runs":      {before: func(s *stage) { s.parks("v", store.Android) }, edit: func(s *stage) { s.shows('v', 12, 0); s.take(1) }, want: 3},
		"one of an unknown worker":    {edit: func(s *stage) { s.polls("u", 0); s.take(1) }},
		"a row is locked":             {edit: func(s *stage) { s.locks("v") }},
		"one waits elsewhere":         {edit: func(s *stage) { read(s, row("x", store.IOS)) }},
		"one for others elsewhere":    {edit: func(s *stage) { read(s, row("x", store.Android), row("y", "amiga")) }, want: 3},
		"too many different wait":     {edit: func(s *stage) { read(s, slices.Repeat([]store.WorkerSession{row("x", "amiga")}, maxElsewhere+1)...) }},
		"nothing is known of others":  {edit: func(s *stage) { s.several.known = false }},
		"others could not be read":    {edit: func(s *stage) { s.learnElsewhere(recounted{here: []uint32{}, elsewhereErr: errors.New("syntax")}) }},
		"nothing is pending, it says": {edit: func(s *stage) { s.counts(0); s.byNumber[w].stale = true }},
	} {
		onStage(t, name, func(s *stage) {
			s.shows(w, 10, 0)
			s.takesBack(s.take(9), nothing("w"))
			if c.before != nil {
				c.before(s)
			}
			asks(s, w, 0)
			s.take(9)
			s.batches, s.byNumber[w].batched = nil, nil
			read(s)
			s.counts(4)
			if c.edit != nil {
				c.edit(s)
			}
			asks(s, w, 0)
			b := s.take(9)
			require.Len(s, b.work, 1)
			require.Equal(s, 3, b.work[0].Max)
			if c.want == 0 {
				require.LessOrEqual(s, b.work[0].New, 1)
				return
			}
			require.Equal(s, c.want, b.work[0].New)
			require.Contains(s, b.work[0].Spare, int32(ios))
		})
	}
	onStage(t, "not while more wait for a batch", func(s *stage) {
		for _, n := range []uint32{'v', w} {
			s.shows(n, 10, 0)
			s.takesBack(s.take(9), nothing(string(rune(n))))
		}
		asks(s, w, 0)
		s.take(9)
		s.batches, s.byNumber[w].batched = nil, nil
		read(s)
		s.counts(4)
		asks(s, w, 0)
		asks(s, 'v', 0)
		require.LessOrEqual(s, s.take(1).work[0].New, 1)
	})
}

// Each build of an answer counts, and the answer's token is that of the last one.
func TestMemoryTakesBackSeveral(t *testing.T) {
	t.Parallel()
	onStage(t, "", func(s *stage) {
		s.counts(5)
		p := s.polls("w", 0)
		r := gives("w", "one", store.IOS)
		two := *r.Jobs[0]
		two.BuildID = "two"
		r.Jobs, r.Handed = append(r.Jobs, &two), 3024
		s.takesBack(s.take(9), r)
		require.Equal(s, 3, s.pending.known(ios).n)
		a := s.answered(p)
		require.Equal(s, store.Jobs{r.Jobs[0], &two}, a.Jobs)
		require.EqualValues(s, 3024, a.next.Counter)
		r.Redelivered = true
		s.polls("w", 0)
		s.takesBack(s.take(9), r)
		require.Equal(s, 3, s.pending.known(ios).n, "what is repeated was no longer pending")
	})
}

// fills makes a worker's parked poll one without a free slot.
func (s *stage) fills(worker string) {
	session := s.byID[worker]
	session.Held = session.Slots
	s.recall(session.next)
	p := session.next
	p.unlist()
	s.rest(p, s.now)
}

// locks lets the poll of a worker, of which it knows, find its row locked.
func (s *stage) locks(worker string) {
	s.polls(worker, 0)
	s.takesBack(s.take(9), nothing(worker))
	s.counts(4)
	s.polls(worker, 0)
	s.takesBack(s.take(9), heldUp())
	require.Equal(s, 1, s.locked.Len())
	for _, p := range s.postponed {
		require.Equal(s, postponed, p.state)
	}
}

// The polls at other controllers are read while workers here ask for several builds.
func TestMemoryReadsPollsElsewhere(t *testing.T) {
	t.Parallel()
	onStage(t, "", func(s *stage) {
		require.Nil(s, s.here(s.now))
		s.shows('v', 10, 0)
		s.takesBack(s.take(9), nothing("v"))
		require.Nil(s, s.here(s.now), "nobody asks for several")
		require.False(s, s.doubtful())
		s.sends(store.PollRequest{Token: store.WorkerToken{Worker: 'w', Counter: 10}, Max: 2}, 0)
		s.takesBack(s.take(9), nothing("w"))
		require.True(s, s.doubtful(), "soon")
		require.ElementsMatch(s, []uint32{'v', 'w'}, s.here(s.now))
		s.learnElsewhere(recounted{here: s.here(s.now), at: s.now})
		require.False(s, s.doubtful())
		require.Nil(s, s.here(s.now.Add(elsewhereEvery-1)))
		s.known(s.now)
		s.corrected(store.WorkerSession{Number: 'v', ID: "v", Slots: 1, Used: 99})
		s.now = s.now.Add(elsewhereEvery)
		require.Equal(s, []uint32{'w'}, s.here(s.now), "v has polled elsewhere")
		s.shows('v', 100, 0)
		require.Len(s, s.here(s.now), 2, "and here again")
		require.NotNil(s, s.here(s.now.Add(severalFor-elsewhereEvery)))
		require.True(s, s.several.known)
		require.Nil(s, s.here(s.now.Add(severalFor)), "no longer")
		require.False(s, s.several.known)
	})
}
