package queue

import (
	"container/list"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// errAway is a database that is away.
var errAway = store.NewError(store.Unavailable, "Database unavailable")

// stage is a memory with a hand on its clock and its batches.
type stage struct {
	*testing.T
	*memory
	q   *Queue
	now time.Time
}

func newStage(t *testing.T) *stage {
	t.Helper()
	q := &Queue{}
	s := &stage{T: t, memory: newMemory(100, &q.gauge), q: q, now: time.Unix(1000, 0)}
	s.pending.counted = s.now
	return s
}

// onStage runs f as a test of its own.
func onStage(t *testing.T, name string, f func(s *stage)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(newStage(t))
	})
}

// sends lets a worker poll.
func (s *stage) sends(req store.PollRequest, wait time.Duration) *poll {
	s.Helper()
	p := &poll{req: req, wait: wait, arrived: s.now, out: make(chan answer, 2)}
	s.arrive(p, s.now)
	return p
}

// polls lets one poll by its id.
func (s *stage) polls(worker string, wait time.Duration) *poll {
	s.Helper()
	return s.sends(store.PollRequest{WorkerID: worker}, wait)
}

// shows lets worker number n poll with a token.
func (s *stage) shows(n uint32, counter uint64, wait time.Duration) *poll {
	s.Helper()
	return s.sends(store.PollRequest{Token: store.WorkerToken{Worker: n, Counter: counter}, Presented: "presented"}, wait)
}

// row is the row of a worker; its number is made of its id.
func row(worker string, takes ...store.Platform) store.WorkerSession {
	return store.WorkerSession{Number: uint32(worker[0]), ID: worker, Platforms: takes, Slots: 1, Used: 10}
}

// nothing is the answer that there is no build.
func nothing(worker string, takes ...store.Platform) store.PollResult {
	return store.PollResult{Session: row(worker, takes...)}
}

// gives is the answer with a build.
func gives(worker, build string, p store.Platform) store.PollResult {
	r := store.PollResult{Session: row(worker), Jobs: store.Jobs{{BuildID: build, Platform: p, ClassID: store.PlainClass(p), Attempt: 1}}, Handed: 2000}
	r.Session.Held, r.Session.Handed = 1, 2000
	return r
}

// takesBack ends a batch with the results given.
func (s *stage) takesBack(b *batch, results ...store.PollResult) {
	s.Helper()
	require.Len(s, results, len(b.polls))
	b.results = results
	for i, p := range b.polls {
		if r := &results[i]; final(p, r) {
			p.answer(s.q.answer(r))
		}
	}
	s.takeBack(b, s.now)
}

// crashes ends a batch with err for all.
func (s *stage) crashes(b *batch, err error) {
	s.Helper()
	var results []store.PollResult
	for range b.polls {
		results = append(results, store.PollResult{Outcome: store.PollFailed, Err: err})
	}
	s.takesBack(b, results...)
}

// parks parks a poll of a worker that takes the platforms given.
func (s *stage) parks(worker string, takes ...store.Platform) *poll {
	s.Helper()
	p := s.polls(worker, time.Minute)
	s.takesBack(s.take(10), nothing(worker, takes...))
	require.Equal(s, parked, p.state)
	return p
}

// enqueues makes builds pending here.
func (s *stage) enqueues(class int32, n int) { s.pending.enqueued(s.pending.known(class), n, 0) }

// counts makes the database count n builds for iOS, as of now.
func (s *stage) counts(n int) {
	s.pending.recount(store.Recount{Pending: []store.ClassCount{{Class: store.Class{ID: ios, Platform: store.IOS}, N: n}}}, s.pending.seen(), 9, s.now)
}

// wakes wakes whom the news allow.
func (s *stage) wakes() int {
	before := s.gauge.woken.Load()
	s.wake()
	return int(s.gauge.woken.Load() - before)
}

// answered returns the answer that p has.
func (s *stage) answered(p *poll) answer {
	s.Helper()
	select {
	case a := <-p.out:
		return a
	default:
		require.Fail(s, "no answer")
		return answer{}
	}
}

func (s *stage) silent(polls ...*poll) {
	s.Helper()
	for _, p := range polls {
		require.Empty(s, p.out)
	}
}

func TestMemoryBatches(t *testing.T) {
	t.Parallel()

	onStage(t, "polls share batches in order of arrival, no more than fit", func(s *stage) {
		a, b, c := s.polls("a", 0), s.polls("b", 0), s.polls("c", 0)
		require.Equal(s, []*poll{a, b}, s.take(2).polls)
		require.Equal(s, []*poll{c}, s.take(2).polls)
		require.Zero(s, s.waiting.Len())
	})

	onStage(t, "a newer poll supersedes one that waits", func(s *stage) {
		old, young := s.shows(1, 7, 0), s.shows(1, 7, 0)
		require.Zero(s, s.answered(old).next, "it keeps the presented token")
		require.Equal(s, []*poll{young}, s.take(9).polls)
	})

	onStage(t, "a newer poll waits for one in a batch and follows it", func(s *stage) {
		old := s.polls("w", time.Minute)
		b := s.take(9)
		second, young := s.polls("w", time.Minute), s.polls("w", time.Minute)
		require.NoError(s, s.answered(second).err)
		require.Zero(s, s.waiting.Len(), "the worker is in a batch already")
		s.takesBack(b, nothing("w"))
		require.Equal(s, answer{}, s.answered(old))
		require.Equal(s, ended, old.state)
		require.Equal(s, parked, young.state, "what the batch has learned is enough for it")
	})

	onStage(t, "a token does not supersede the worker whose id comes with it", func(s *stage) {
		victim := s.parks("w")
		s.sends(store.PollRequest{Token: store.WorkerToken{Worker: 1, Counter: 1}, WorkerID: "w"}, 0)
		s.silent(victim)
		s.takesBack(s.take(9), store.PollResult{Outcome: store.PollInvalidToken})
		require.Equal(s, parked, victim.state)
	})

	onStage(t, "an older token does not follow a newer one", func(s *stage) {
		s.shows('w', 12, 0)
		b := s.take(9)
		older := s.shows('w', 11, 0)
		r := nothing("w")
		r.Session.Used = 12
		s.takesBack(b, r)
		require.Equal(s, store.InvalidToken, store.CodeOf(s.answered(older).err))
		require.Zero(s, s.waiting.Len())
	})

	onStage(t, "a batch that fails lets polls behind it go on", func(s *stage) {
		s.polls("w", 0)
		b := s.take(9)
		behind := s.polls("w", 0)
		s.crashes(b, errors.New("a defect"))
		require.Equal(s, []*poll{behind}, s.take(9).polls)
	})

	onStage(t, "unknown workers leave nothing behind", func(s *stage) {
		s.polls("nobody", 0)
		s.shows(9, 9, 0)
		s.takesBack(s.take(9), store.PollResult{Outcome: store.PollUnknownWorker}, store.PollResult{Outcome: store.PollInvalidToken})
		require.Empty(s, s.byID)
		require.Empty(s, s.byNumber)
		require.Zero(s, s.admitted)
	})
}

func TestMemoryJudges(t *testing.T) {
	t.Parallel()
	const w = uint32('w')
	whenMet := func(t *testing.T, name string, f func(s *stage)) { // it knows a worker that polled with 10
		t.Helper()
		onStage(t, name, func(s *stage) {
			s.shows(w, 10, 0)
			s.takesBack(s.take(9), nothing("w"))
			f(s)
		})
	}
	whenMet(t, "a known worker that holds nothing is answered while nothing is pending", func(s *stage) {
		p := s.shows(w, 11, 0)
		require.Equal(s, store.WorkerToken{Worker: w, Counter: 12}, s.answered(p).next)
		p = s.shows(w, 12, time.Minute)
		require.Equal(s, parked, p.state)
		require.Zero(s, s.waiting.Len())
	})
	whenMet(t, "a superseded token is refused", func(s *stage) {
		require.Equal(s, store.InvalidToken, store.CodeOf(s.answered(s.shows(w, 9, 0)).err))
		s.answered(s.shows(w, 11, 0))
		require.Equal(s, store.InvalidToken, store.CodeOf(s.answered(s.shows(w, 10, 0)).err))
	})
	whenMet(t, "a token must be that of the worker that is named", func(s *stage) {
		shows := func(n uint32, worker string) *poll {
			return s.sends(store.PollRequest{Token: store.WorkerToken{Worker: n, Counter: 11}, WorkerID: worker}, 0)
		}
		require.Equal(s, store.InvalidToken, store.CodeOf(s.answered(shows(w, "v")).err))
		require.NoError(s, s.answered(shows(w, "w")).err)
		shows('u', "v")
		require.Equal(s, "v", s.take(9).work[0].WorkerID, "the database decides about a worker that is not known")
	})
	for name, c := range map[string]struct {
		edit    func(s *stage)
		counter uint64
	}{
		"a repeated token":          {func(*stage) {}, 10},
		"a stale session":           {func(s *stage) { s.byNumber[w].stale = true }, 11},
		"a worker that holds":       {func(s *stage) { s.byNumber[w].Held = 1 }, 11},
		"something pending":         {func(s *stage) { s.enqueues(ios, 1) }, 11},
		"a count that is old":       {func(s *stage) { s.now = s.now.Add(maxAge + 1) }, 11},
		"no count since the outage": {func(s *stage) { s.away = true }, 11},
		"notifications were missed": {func(s *stage) { s.missed() }, 11},
	} {
		whenMet(t, name+" is for the database", func(s *stage) {
			c.edit(s)
			p := s.shows(w, c.counter, 0)
			s.silent(p)
			require.Equal(s, []*poll{p}, s.take(9).polls)
		})
	}
	// named polls as a process of worker w.
	named := func(s *stage, instance string, counter uint64, wait time.Duration) *poll {
		return s.sends(store.PollRequest{Token: store.WorkerToken{Worker: w, Counter: counter}, Presented: "presented", Instance: instance}, wait)
	}
	whenMet(t, "another process is refused, and the parked poll stays", func(s *stage) {
		first := named(s, "a", 11, time.Minute)
		require.Equal(s, []*poll{first}, s.take(9).polls, "whether it holds the worker, the database knows")
		s.takesBack(s.batches[0], nothing("w"))
		require.Equal(s, parked, first.state)
		s.byNumber[w].Used = 11
		for _, counter := range []uint64{11, 10} {
			require.Equal(s, store.DuplicateWorker, store.CodeOf(s.answered(named(s, "b", counter, 0)).err))
		}
		require.Equal(s, parked, first.state)
		require.Zero(s, s.waiting.Len())
		require.Equal(s, parked, named(s, "a", 12, time.Minute).state, "judged in memory")
		require.Equal(s, store.InvalidToken, store.CodeOf(s.answered(named(s, "a", 11, 0)).err))
	})
	for name, edit := range map[string]func(s *stage){
		"a notification": func(s *stage) { s.changed(s.byNumber[w]) },
		"a look": func(s *stage) {
			s.known(s.now)
			after := row("w")
			after.Used = 1 << 20
			s.corrected(after)
		},
	} {
		whenMet(t, "a take-over that "+name+" tells of is for the database", func(s *stage) {
			p := named(s, "a", 11, time.Minute)
			s.takesBack(s.take(9), nothing("w"))
			edit(s)
			require.Equal(s, []*poll{p}, s.take(9).polls)
			s.takesBack(s.batches[0], store.PollResult{Outcome: store.PollDuplicateWorker})
			require.Equal(s, store.DuplicateWorker, store.CodeOf(s.answered(p).err))
			p = named(s, "a", 11, 0)
			require.Equal(s, []*poll{p}, s.take(9).polls)
		})
	}
	whenMet(t, "nothing is known to be pending until the next count", func(s *stage) {
		s.missed()
		s.shows(w, 11, 0)
		s.takesBack(s.take(9), nothing("w"))
		p := s.shows(w, 12, 0)
		require.Equal(s, []*poll{p}, s.take(9).polls)
	})
	whenMet(t, "a drained worker is answered whatever is pending", func(s *stage) {
		s.enqueues(ios, 3)
		s.byNumber[w].Drained = true
		a := s.answered(s.shows(w, 11, 0))
		require.NotZero(s, a.next)
		require.Equal(s, 3, a.QueueSize)
	})
	whenMet(t, "a poll that reconciles is for the database", func(s *stage) {
		s.sends(store.PollRequest{Token: store.WorkerToken{Worker: w, Counter: 11}, Reconcile: true}, 0)
		require.Equal(s, 1, s.waiting.Len())
	})
	whenMet(t, "a parked poll of a worker that changed is judged anew", func(s *stage) {
		p := s.shows(w, 11, time.Minute)
		s.changed(s.byNumber[w])
		require.Equal(s, waiting, p.state)
		b := s.take(9)
		require.True(s, b.work[0].Parked)
		s.changed(s.byNumber[w])
		s.takesBack(b, nothing("w"))
		require.Equal(s, waiting, p.state, "it changed while the batch ran")
	})
}

func TestMemoryIsCorrected(t *testing.T) {
	t.Parallel()
	onStage(t, "a row that changed has its parked poll judged anew", func(s *stage) {
		p := s.parks("w")
		s.known(s.now)
		r := row("w")
		r.Held = 1
		s.corrected(r)
		require.Equal(s, waiting, p.state)
		require.Equal(s, 1, s.byID["w"].Held)
	})
	onStage(t, "what is known since counts more than what was read before", func(s *stage) {
		s.polls("w", 0)
		s.takesBack(s.take(9), nothing("w"))
		s.known(s.now)
		s.changed(s.byID["w"])
		s.polls("w", 0)
		s.takesBack(s.take(9), gives("w", "x", store.IOS))
		s.corrected(row("w"))
		require.Equal(s, 1, s.byID["w"].Held)
		s.gone('w')
		require.NotNil(s, s.byID["w"])
	})
	onStage(t, "a worker that is gone is told so", func(s *stage) {
		p := s.parks("w")
		s.known(s.now)
		s.gone('w')
		require.Equal(s, []*poll{p}, s.take(9).polls, "the database says how")
		s.takesBack(s.batches[0], store.PollResult{Outcome: store.PollUnknownWorker})
		require.Equal(s, store.NotFound, store.CodeOf(s.answered(p).err))
		require.Empty(s, s.byNumber)
	})
	onStage(t, "silent workers are forgotten, parked ones are not silent", func(s *stage) {
		s.parks("p")
		s.polls("w", 0)
		s.takesBack(s.take(9), nothing("w"))
		require.Len(s, s.known(s.now), 2)
		s.now = s.now.Add(silence + 1)
		require.Len(s, s.known(s.now), 1)
		require.Len(s, s.byID, 1)
	})
}

func TestMemoryWritesPresence(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.parks("p")
	for _, w := range []string{"c", "b"} {
		s.polls(w, 0)
		s.takesBack(s.take(9), nothing(w))
	}
	s.polls("a", 0)
	s.takesBack(s.take(9), gives("a", "x", store.IOS))
	due := func() (ids []string) {
		s.known(s.now)
		var written []uint32
		heartbeats := s.due(s.now, time.Minute)
		for _, heartbeat := range heartbeats {
			ids, written = append(ids, s.byNumber[heartbeat.Number].ID), append(written, heartbeat.Number)
		}
		s.recorded(heartbeats, written, s.now)
		slices.Sort(ids)
		return ids
	}
	require.Equal(t, []string{"b", "c", "p"}, due(), "the hand-out has been written")
	s.now = s.now.Add(time.Second)
	s.polls("b", 0)
	require.Empty(t, due())
	s.now = s.now.Add(time.Minute)
	require.Equal(t, []string{"b", "p"}, due(), "and only of those that were there since")
}

// A worker whose connection closes while its poll is parked is written as closed after ten
// seconds, once; and that it polls again is written at once.
func TestMemoryWritesWhoseConnectionClosed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	written := func() []store.Presence {
		s.known(s.now)
		heartbeats := s.due(s.now, time.Minute)
		for i := range heartbeats {
			s.recorded(heartbeats[i:i+1], []uint32{heartbeats[i].Number}, s.now)
		}
		return heartbeats
	}
	later := func(d time.Duration) { s.now = s.now.Add(d) }
	p := s.parks("w")
	require.Len(t, written(), 1)
	later(time.Second)
	s.leave(p, true, s.now)
	later(9 * time.Second)
	require.Empty(t, written(), "it may still poll")
	require.Empty(t, s.due(s.now, time.Second), "a heartbeat could seem later than the close")
	later(time.Second)
	heartbeats := written()
	require.Len(t, heartbeats, 1)
	require.True(t, heartbeats[0].Closed)
	require.Equal(t, closedGrace, heartbeats[0].Age)
	require.Equal(t, time.Minute, heartbeats[0].Wait)
	require.Empty(t, written())
	later(time.Minute)
	require.Empty(t, written(), "nothing has changed")

	p = s.parks("w")
	heartbeats = written()
	require.Len(t, heartbeats, 1)
	require.False(t, heartbeats[0].Closed)
	s.leave(p, true, s.now)
	later(closedGrace - 1)
	p = s.parks("w")
	s.leave(p, false, s.now)
	later(time.Minute)
	for _, b := range written() {
		require.False(t, b.Closed, "the server ended its poll")
	}
}

// A worker that does not poll again although it has room after a hand-out is written as one that
// does not, after ten seconds and once. One that polls again is not written before it is due.
func TestMemoryWritesWhoPollsNoMore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	written := func() []store.Presence {
		s.known(s.now)
		heartbeats := s.due(s.now, 30*time.Second)
		for i := range heartbeats {
			s.recorded(heartbeats[i:i+1], []uint32{heartbeats[i].Number}, s.now)
		}
		return heartbeats
	}
	roomy := func(slots int) store.PollResult {
		r := gives("w", "x", store.IOS)
		r.Session.Slots = slots
		return r
	}
	handsOut := func(slots int, wait time.Duration) {
		s.polls("w", wait)
		s.takesBack(s.take(9), roomy(slots))
		s.now = s.now.Add(closedGrace - 1)
		require.Empty(t, written())
		s.now = s.now.Add(time.Second)
	}
	handsOut(2, time.Minute)
	heartbeats := written()
	require.Len(t, heartbeats, 1)
	require.True(t, heartbeats[0].Closed)
	require.Empty(t, written())

	s.now = s.now.Add(time.Second)
	s.parks("w")
	heartbeats = written()
	require.Len(t, heartbeats, 1)
	require.False(t, heartbeats[0].Closed, "it is back")

	s = newStage(t)
	handsOut(1, time.Minute)
	require.Empty(t, written(), "it has no room")
	s = newStage(t)
	handsOut(2, 0)
	require.Empty(t, written(), "nobody knows when it polls")

	s = newStage(t)
	s.polls("w", time.Minute)
	s.takesBack(s.take(9), roomy(2))
	s.now = s.now.Add(time.Second)
	s.parks("w")
	s.now = s.now.Add(28 * time.Second)
	require.Empty(t, written())
	s.now = s.now.Add(2 * time.Second)
	heartbeats = written()
	require.Len(t, heartbeats, 1)
	require.False(t, heartbeats[0].Closed)
	require.Equal(t, time.Second, heartbeats[0].Every)
}

// A poll that comes while a closed connection is being written is written after it.
func TestMemoryWritesAReturnThatCrossesAClose(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.leave(s.parks("w"), true, s.now)
	s.now = s.now.Add(closedGrace)
	at, heartbeats := s.now, s.due(s.now, time.Minute)
	require.True(t, heartbeats[0].Closed)
	s.now = s.now.Add(time.Second)
	s.parks("w")
	s.recorded(heartbeats, []uint32{heartbeats[0].Number}, at)
	heartbeats = s.due(s.now, time.Minute)
	require.Len(t, heartbeats, 1)
	require.False(t, heartbeats[0].Closed)
}

func TestMemoryLearnsWorkers(t *testing.T) {
	t.Parallel()
	const w = uint32('w')
	both := func(s *stage) (byToken, byID *poll) {
		byToken = s.shows(w, 10, time.Minute)
		s.takesBack(s.take(9), nothing("w"))
		require.Equal(s, parked, byToken.state)
		return byToken, s.polls("w", time.Minute)
	}
	onStage(t, "a poll by id supersedes the worker's poll by token", func(s *stage) {
		old, young := both(s)
		require.NoError(s, s.answered(old).err)
		require.Equal(s, parked, young.state)
		require.Equal(s, 1, s.parkedPolls())
	})
	t.Run("two sessions become one when both are known", func(t *testing.T) {
		t.Parallel()
		for name, first := range map[string]int{"token first": 0, "id first": 1} {
			s := newStage(t)
			p := []*poll{s.shows(w, 10, time.Minute), s.polls("w", time.Minute)}
			one := s.take(1)
			other := s.take(1)
			batches := []*batch{one, other}
			s.takesBack(batches[first], nothing("w"))
			s.takesBack(batches[1-first], nothing("w"))
			require.Equal(t, 1, s.parkedPolls(), name)
			require.Equal(t, ended, p[0].state, name)
			require.Same(t, s.byNumber[w], s.byID["w"], name)
			require.Same(t, s.byID["w"].next, p[1], name)
		}
	})
}

func TestMemoryWakes(t *testing.T) {
	t.Parallel()

	onStage(t, "one build wakes the longest parked match only", func(s *stage) {
		droid := s.parks("droid", store.Android)
		both := s.parks("both")
		apple := s.parks("apple", store.IOS)
		s.enqueues(ios, 1)
		require.Equal(s, 1, s.wakes())
		require.Equal(s, waiting, both.state)
		require.Equal(s, parked, droid.state)
		require.Equal(s, parked, apple.state)
		require.Zero(s, s.wakes(), "the build is being fetched")
	})

	onStage(t, "a woken poll that finds nothing keeps its position", func(s *stage) {
		first, second := s.parks("first"), s.parks("second")
		s.enqueues(ios, 1)
		s.wakes()
		s.takesBack(s.take(9), nothing("first"))
		require.Zero(s, s.wakes(), "the build was gone")
		s.silent(first)
		s.enqueues(android, 1)
		s.wakes()
		require.Equal(s, waiting, first.state)
		require.Equal(s, parked, second.state)
	})

	onStage(t, "a woken poll that fetched something else leaves the build to the next", func(s *stage) {
		s.parks("first")
		second := s.parks("second")
		s.enqueues(ios, 1)
		s.wakes()
		b := s.take(9)
		s.enqueues(android, 1)
		require.Equal(s, 1, s.wakes())
		s.takesBack(b, gives("first", "x", store.Android))
		require.Equal(s, waiting, second.state)
		require.Equal(s, 1, s.pending.known(ios).n)
	})

	onStage(t, "a build that appears while a batch is under way is fetched", func(s *stage) {
		p := s.polls("w", time.Minute)
		b := s.take(9)
		s.enqueues(ios, 1)
		s.takesBack(b, nothing("w"))
		require.Equal(s, 1, s.wakes())
		require.Equal(s, waiting, p.state)
	})

	onStage(t, "a woken poll that leaves is replaced", func(s *stage) {
		first, second := s.parks("first"), s.parks("second")
		s.enqueues(ios, 1)
		s.wakes()
		s.leave(first, false, s.now)
		require.Equal(s, 1, s.wakes())
		require.Equal(s, []*poll{second}, s.take(9).polls)
	})

	onStage(t, "a poll whose caller left is not parked", func(s *stage) {
		p := s.polls("w", time.Minute)
		b := s.take(9)
		s.leave(p, false, s.now)
		s.takesBack(b, nothing("w"))
		require.Equal(s, ended, p.state)
		require.Zero(s, s.parkedPolls())
		require.Zero(s, s.admitted)
	})

	onStage(t, "a worker without a free slot is not woken until it has one", func(s *stage) {
		p := s.polls("w", time.Minute)
		full := nothing("w")
		full.Session.Held = 1
		s.takesBack(s.take(9), full)
		s.enqueues(ios, 1)
		require.Zero(s, s.wakes())
		s.changed(s.byID["w"])
		s.changed(s.byID["stranger"])
		require.Equal(s, waiting, p.state)
		s.takesBack(s.take(9), gives("w", "x", store.IOS))
		require.NotNil(s, s.answered(p).Jobs.First())
	})

	onStage(t, "an empty look beside another batch is in doubt", func(s *stage) {
		s.polls("other", 0)
		other := s.take(9)
		s.polls("w", time.Minute)
		b := s.take(9)
		s.pending.known(ios).set(3)
		s.takesBack(b, nothing("w"))
		require.Zero(s, s.pending.known(ios).n)
		require.True(s, s.doubtful())
		s.takesBack(other, nothing("other"))
		s.counts(1)
		require.False(s, s.doubtful())
		require.Equal(s, 1, s.wakes())
	})
}

// What wakes polls may be too high: a submission may be counted by the database before
// the actor hears of it, a changed priority looks like a new build, a cancellation is not
// heard of. What operators see is the count.
func TestPendingShownIsWhatWasCounted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.now = time.Now()
	_, ok := s.q.Counted()
	require.False(t, ok, "nothing was counted yet")
	seen := s.pending.seen()
	s.enqueues(ios, 4)
	found := store.Recount{Pending: []store.ClassCount{{Class: store.Class{ID: ios, Platform: store.IOS}, N: 4}}, Delayed: map[store.Platform]int{store.Android: 2}, Unmatched: 1}
	s.pending.recount(found, seen, 9, s.now)
	s.enqueues(ios, 1) // a changed priority
	require.Equal(t, 9, s.q.Stats().Pending)
	c, ok := s.q.Counted()
	require.True(t, ok)
	require.Equal(t, map[store.Platform]int{store.IOS: 4, store.Android: 2}, c.Pending, "two wait for their retry")
	require.Equal(t, store.QueueRoom{Limit: 9, Pending: 6, Unmatched: 1}, c.Room)
	changes := func() uint64 { c, _ := s.q.Counted(); return c.Changes }
	s.counts(4)
	require.Equal(t, c.Changes, changes(), "counting alone changes nothing")
	for _, change := range []func(){func() { s.enqueues(ios, 1) }, func() { s.pending.notified("android", 0) }, func() { s.pending.notified("ios 99", 0) }, s.missed} {
		before := changes()
		change()
		require.Greater(t, changes(), before)
	}

	s.pending.recount(store.Recount{}, s.pending.seen(), 9, s.now.Add(-maxAge-time.Second)) // all were cancelled
	_, ok = s.q.Counted()
	require.False(t, ok, "an old count is not shown")
}

func TestMemoryKnowsClasses(t *testing.T) {
	t.Parallel()
	labelled := func(s *stage, worker string, labels store.Labels) *poll {
		p, r := s.polls(worker, time.Minute), nothing(worker)
		r.Session.Labels = labels
		s.takesBack(s.take(10), r)
		require.Equal(t, parked, p.state)
		return p
	}

	onStage(t, "a build wakes a worker whose labels satisfy it", func(s *stage) {
		s.parks("a")
		with := labelled(s, "b", store.Labels{"gpu": "a100"})
		s.enqueued(enqueued{class: gpuClass, defined: true, n: 2}, s.now)
		s.wakesJust(with)
		require.Equal(s, 2, s.q.Stats().Pending)
		late := s.polls("a", 0)
		require.Zero(s, s.answered(late).QueueSize, "it can't take them")
		s.q.gauge.classes.Store(nil)
		require.Zero(s, s.q.Stats().Pending)
	})
	onStage(t, "a worker that registers with other labels is woken for other builds", func(s *stage) {
		p := s.parks("a")
		s.enqueued(enqueued{class: gpuClass, defined: true, n: 1}, s.now)
		s.wakesJust()
		now := row("a")
		now.Labels = store.Labels{"gpu": ""}
		s.known(s.now)
		s.corrected(now)
		require.Equal(s, waiting, p.state)
		s.known(s.now)
		require.Len(s, s.profiles, 1)
	})
	onStage(t, "a class of which only the number is known is counted at once", func(s *stage) {
		p := labelled(s, "b", store.Labels{"gpu": ""})
		for _, hear := range []func(){
			func() { s.pending.notified(gpuClass.Event(), 0) },
			func() { s.enqueued(enqueued{class: store.Class{ID: gpu}, n: 1}, s.now) },
			func() { s.pending.claimed(gpu) },
		} {
			require.False(s, s.doubtful())
			hear()
			require.True(s, s.doubtful())
			require.Contains(s, s.pending.ids(), int32(gpu))
			s.counts(0)
		}
		s.pending.recount(store.Recount{Pending: []store.ClassCount{{Class: gpuClass, N: 1}}}, s.pending.seen(), 9, s.now)
		s.wakesJust(p)
		s.pending.notified(gpuClass.Event(), 0)
		require.Equal(s, 2, s.pending.known(gpu).n)
		s.counts(0)
		require.NotNil(s, s.pending.known(gpu), "a poll was woken for it")
		with := nothing("b")
		with.Session.Labels = store.Labels{"gpu": ""}
		s.takesBack(s.batches[0], with)
		require.Equal(s, parked, p.state)
		s.counts(0)
		require.Nil(s, s.pending.known(gpu))
		require.NotNil(s, s.pending.known(android))
	})
	onStage(t, "a build goes first to a worker that it prefers, of those that can take it", func(s *stage) {
		first := s.parks("a")
		labelled(s, "b", store.Labels{"pool": "fast"}).session.Drained = true
		fast := labelled(s, "c", store.Labels{"pool": "fast"})
		s.leave(s.byID["b"].next, false, s.now)
		prefer := store.StoredRequire("pool=fast")
		plain := store.Class{ID: ios, Platform: store.IOS}
		s.enqueued(enqueued{class: plain, defined: true, n: 1, prefer: prefer}, s.now)
		s.wakesJust(fast)
		s.enqueued(enqueued{class: plain, defined: true, n: 1, prefer: prefer}, s.now)
		s.wakesJust(first)
	})

	onStage(t, "not by the worker that had the build last, unless no other is parked", func(s *stage) {
		last, second, third := s.parks("a"), s.parks("b"), s.parks("c")
		plain := store.Class{ID: ios, Platform: store.IOS}
		s.enqueued(enqueued{class: plain, defined: true, n: 2, last: "a"}, s.now)
		s.wakesJust(second, third)
		s.enqueued(enqueued{class: plain, defined: true, n: 1, last: "a"}, s.now)
		s.wakesJust(last)
	})
}

func TestMemoryLimitsAndTime(t *testing.T) {
	t.Parallel()

	onStage(t, "polls beyond the limit wait neither for a batch nor for a build", func(s *stage) {
		s.polls("known", 0)
		s.takesBack(s.take(9), nothing("known"))
		s.limit = 1
		first, second := s.polls("a", 0), s.polls("b", time.Minute)
		require.Equal(s, waiting, first.state)
		require.Equal(s, store.Overloaded, store.CodeOf(s.answered(second).err))
		require.NotZero(s, s.answered(s.polls("known", time.Minute)).next, "it is answered that there is no build")
		s.takesBack(s.take(9), nothing("a"))
		require.Zero(s, s.admitted)
		third := s.polls("known", time.Minute)
		require.Equal(s, parked, third.state)
		require.Equal(s, store.Overloaded, store.CodeOf(s.answered(s.polls("b", 0)).err))
		s.leave(third, false, s.now)
		require.Equal(s, waiting, s.polls("c", time.Minute).state)
	})

	onStage(t, "a parked poll whose time is up is answered, one that was woken when it comes back", func(s *stage) {
		asleep, woken := s.parks("asleep", store.Android), s.parks("woken", store.IOS)
		s.enqueues(ios, 1)
		s.wakes()
		b := s.take(9)
		s.now = s.now.Add(time.Minute)
		s.pending.counted = s.now
		s.expire(asleep, s.now)
		require.EqualValues(s, 11, s.answered(asleep).next.Counter)
		s.expire(woken, s.now)
		s.silent(woken)
		s.takesBack(b, nothing("woken", store.IOS))
		require.EqualValues(s, 11, s.answered(woken).next.Counter)
		require.Zero(s, s.admitted)
	})
}

func TestMemoryWithoutADatabase(t *testing.T) {
	t.Parallel()

	onStage(t, "polls that need it fail at once and parked ones stay", func(s *stage) {
		asleep := s.parks("asleep")
		first := s.polls("first", 0)
		b := s.take(9)
		later := s.polls("later", time.Minute)
		s.enqueues(ios, 1)
		s.wakes()
		s.crashes(b, errAway)
		s.fail(errAway, s.now)
		s.away = true
		require.ErrorIs(s, s.answered(first).err, errAway)
		require.ErrorIs(s, s.answered(later).err, errAway)
		s.silent(asleep)
		require.Equal(s, parked, asleep.state)
		require.Zero(s, s.wakes(), "not while the database is away")
		s.away = false
		require.Equal(s, 1, s.wakes())
	})

	onStage(t, "closing answers everything that is in no batch", func(s *stage) {
		asleep := s.parks("asleep")
		first := s.polls("first", 0)
		b := s.take(9)
		behind, later := s.polls("first", 0), s.polls("later", 0)
		s.close(errAway)
		require.NoError(s, s.answered(asleep).err)
		require.ErrorIs(s, s.answered(behind).err, errAway)
		require.ErrorIs(s, s.answered(later).err, errAway)
		s.silent(first)
		s.takesBack(b, nothing("first"))
		require.NoError(s, s.answered(first).err)
	})
}

// The rows of many sessions are read a part at a time, and all at once after a loss of
// notifications.
func TestRowsOfManySessionsAreReadInTurn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const workers = 3*readAtOnce - 1
	for n := range uint32(workers) {
		s.file(&session{WorkerSession: store.WorkerSession{Number: n + 1}, known: true, seen: s.now})
	}
	read := map[uint32]int{}
	for range 6 {
		part := s.known(s.now)
		require.LessOrEqual(t, len(part), readAtOnce)
		for _, w := range part {
			read[w.Number]++
		}
	}
	require.Len(t, read, workers)
	for n, times := range read {
		require.Equal(t, 2, times, n)
	}
	for _, w := range s.byNumber {
		w.next = &poll{session: w, state: parked} // otherwise the session would be forgotten
	}
	s.missed()
	require.Len(t, s.known(s.now), workers)
	require.LessOrEqual(t, len(s.known(s.now)), readAtOnce)
}

// A poll that parks a little out of order finds its place as fast among many as among few.
func TestAPollParksAsFastAmongMany(t *testing.T) {
	t.Parallel()
	const polls = 2000
	among := func(parkedBefore uint64) time.Duration {
		best := time.Hour
		for range 5 {
			l := list.New()
			for n := range parkedBefore {
				(&poll{no: n + 1}).put(l, parked)
			}
			late := make([]*poll, polls) // two batches that end in the wrong order, again and again
			for n := range late {
				late[n] = &poll{no: parkedBefore + 1 + uint64(n^1)}
			}
			begun := time.Now()
			for _, p := range late {
				p.put(l, parked)
			}
			best = min(best, time.Since(begun))
			last := uint64(0)
			for e := l.Front(); e != nil; e = e.Next() {
				require.Equal(t, last+1, e.Value.(*poll).no) // polls only
				last++
			}
		}
		return best
	}
	few, many := among(10), among(100_000)
	t.Logf("%d polls parked in %s among few, in %s among 100 000", polls, few, many)
	require.Less(t, many, 20*few+time.Millisecond)
	returned, l := &poll{no: 1}, list.New()
	(&poll{no: 2}).put(l, parked)
	returned.put(l, parked)
	require.Same(t, returned, l.Front().Value)
}
