package build

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// errAway is a database that is away.
var errAway = store.NewError(store.Unavailable, "Database unavailable")

// stage is a board with a hand on its clock and its flights.
type stage struct {
	*testing.T
	*board
	now time.Time
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{T: t, board: newBoard(100, &depth{}), now: time.Unix(1000, 0)}
}

// sends lets a worker poll: with its id, or with a token if there is one.
func (s *stage) sends(req PollRequest, wait time.Duration) *poll {
	s.Helper()
	p := newPoll(req, wait, s.now)
	s.arrive(p)
	return p
}

func (s *stage) polls(worker string, wait time.Duration) *poll {
	s.Helper()
	return s.sends(PollRequest{WorkerID: worker}, wait)
}

// parks parks a poll of a worker that takes the platforms given.
func (s *stage) parks(worker string, takes ...store.Platform) *poll {
	s.Helper()
	p := s.polls(worker, time.Minute)
	f := s.take(10)
	require.Len(s, f.polls, 1)
	s.lands(f, store.PollResult{Outcome: store.PollParked, WorkerID: worker, Seq: 1, Platforms: takes, Free: true})
	require.Equal(s, parked, p.state)
	require.True(s, s.answered(p).parked)
	return p
}

// lands ends a flight with the results given.
func (s *stage) lands(f *flight, results ...store.PollResult) {
	s.Helper()
	require.Len(s, results, len(f.polls))
	f.landings = make([]landing, len(results))
	for i, r := range results {
		f.landings[i].PollResult = r
		f.polls[i].land(&f.landings[i], s.hints.shown)
	}
	s.land(f)
}

// crashes ends a flight with err for all.
func (s *stage) crashes(f *flight, err error) {
	s.Helper()
	f.landings = make([]landing, len(f.polls))
	for i := range f.polls {
		f.landings[i].err = err
		f.polls[i].land(&f.landings[i], s.hints.shown)
	}
	s.land(f)
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

func job(id string, p store.Platform) *store.Job {
	return &store.Job{BuildID: id, Platform: p, Attempt: 1}
}

func got(worker string, j *store.Job) store.PollResult {
	return store.PollResult{Outcome: store.PollAnswered, WorkerID: worker, Job: j, Free: j == nil}
}

func dry(worker string, takes ...store.Platform) store.PollResult {
	return store.PollResult{Outcome: store.PollParked, WorkerID: worker, Seq: 1, Platforms: takes, Free: true}
}

func TestBoardLine(t *testing.T) {
	t.Parallel()

	t.Run("polls fly in order of arrival, no more than fit", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		a, b, c := s.polls("a", 0), s.polls("b", 0), s.polls("c", 0)
		f := s.take(2)
		require.Equal(t, []*poll{a, b}, f.polls)
		g := s.take(2)
		require.Equal(t, []*poll{c}, g.polls)
		require.Nil(t, s.take(2))
	})

	t.Run("a newer poll supersedes one in the line", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		old := s.sends(PollRequest{Token: "t1"}, 0)
		young := s.sends(PollRequest{Token: "t1"}, 0)
		require.Equal(t, "t1", s.answered(old).Token)
		require.Equal(t, []*poll{young}, s.take(9).polls)
		require.Zero(t, s.line.size)
	})

	t.Run("a newer poll waits for one that flies and takes its place", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		old := s.sends(PollRequest{Token: "t1"}, time.Minute)
		f := s.take(9)
		young := s.sends(PollRequest{Token: "t1"}, time.Minute)
		require.Nil(t, s.take(9), "the worker is in a batch already")
		s.lands(f, dry("w"))
		require.True(t, s.answered(old).parked)
		require.Equal(t, Reply{WorkerID: "w", Token: "t1"}, s.answered(old).Reply)
		require.Equal(t, ended, old.state)
		require.Equal(t, []*poll{young}, s.take(9).polls)
	})

	t.Run("only the newest of many waits for one that flies", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.polls("w", 0)
		f := s.take(9)
		second, third := s.polls("w", 0), s.polls("w", 0)
		require.NoError(t, s.answered(second).err)
		s.lands(f, got("w", nil))
		require.Equal(t, []*poll{third}, s.take(9).polls)
	})

	t.Run("a stranger's token does not supersede the worker that it names", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		victim := s.parks("w")
		s.sends(PollRequest{Token: "forged", WorkerID: "w"}, 0)
		s.silent(victim)
		f := s.take(9)
		s.lands(f, store.PollResult{Outcome: store.PollUnknownToken})
		require.Equal(t, parked, victim.state)
	})

	t.Run("desks are dropped with their last poll", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.sends(PollRequest{Token: "t1"}, 0)
		s.lands(s.take(9), got("w", nil))
		s.leave(s.parks("v"))
		require.Empty(t, s.line.desks)
		require.Zero(t, s.waiting)
		require.Zero(t, s.room.size())
	})
}

func TestBoardLearnsWorkers(t *testing.T) {
	t.Parallel()

	parkedWith := func(s *stage, token string) *poll {
		p := s.sends(PollRequest{Token: token}, time.Minute)
		s.lands(s.take(9), dry("w"))
		require.True(s, s.answered(p).parked)
		return p
	}

	t.Run("a poll by id supersedes the worker's poll by token", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		old := parkedWith(s, "t1")
		s.polls("w", 0)
		require.Equal(t, "t1", s.answered(old).Token)
		require.Zero(t, s.room.size())
	})

	t.Run("a poll under a new token supersedes the old one when it has landed", func(t *testing.T) {
		t.Parallel()
		for name, result := range map[string]store.PollResult{"answered": got("w", nil), "parked": dry("w")} {
			s := newStage(t)
			old := parkedWith(s, "t1")
			young := s.sends(PollRequest{Token: "t9"}, time.Minute)
			s.silent(old)
			s.lands(s.take(9), result)
			require.Equal(t, "t1", s.answered(old).Token, name)
			require.Equal(t, result.Outcome == store.PollParked, young.state == parked)
			require.LessOrEqual(t, s.room.size(), 1)
		}
	})

	t.Run("the newest of three wins", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		parkedPoll := parkedWith(s, "t1")
		flier := s.sends(PollRequest{Token: "t9"}, time.Minute)
		f := s.take(9)
		newest := s.sends(PollRequest{Token: "t9"}, 0)
		s.lands(f, dry("w"))
		require.Equal(t, ended, parkedPoll.state)
		require.Equal(t, ended, flier.state)
		require.Equal(t, []*poll{newest}, s.take(9).polls)
	})
}

func TestBoardWakes(t *testing.T) {
	t.Parallel()

	t.Run("one build wakes the longest parked match only", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		droid := s.parks("droid", store.Android)
		both := s.parks("both")
		apple := s.parks("apple", store.IOS)
		s.hints.enqueued(laneIOS, 1)
		require.Equal(t, 1, s.wake(time.Now()))
		require.Equal(t, lined, both.state)
		require.Equal(t, parked, droid.state)
		require.Equal(t, parked, apple.state)
		require.Equal(t, store.Resume, both.req.Mode)
		require.Zero(t, s.wake(time.Now()), "the build is being fetched")
	})

	t.Run("a woken poll that finds nothing keeps its place", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		first, second := s.parks("first"), s.parks("second")
		s.hints.enqueued(laneIOS, 1)
		s.wake(time.Now())
		s.lands(s.take(9), dry("first"))
		require.Zero(t, s.wake(time.Now()), "the build was gone")
		s.silent(first)
		s.hints.enqueued(laneAndroid, 1)
		s.wake(time.Now())
		require.Equal(t, lined, first.state)
		require.Equal(t, parked, second.state)
	})

	t.Run("a woken poll that fetched something else leaves the build to the next", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.parks("first")
		second := s.parks("second")
		s.hints.enqueued(laneIOS, 1)
		s.wake(time.Now())
		f := s.take(9)
		s.hints.enqueued(laneAndroid, 1)
		require.Equal(t, 1, s.wake(time.Now()))
		s.lands(f, got("first", job("x", store.Android)))
		require.Equal(t, lined, second.state)
		require.Equal(t, 1, s.hints.pending[laneIOS])
	})

	t.Run("a build that appears while an empty flight is under way is fetched", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		p := s.polls("w", time.Minute)
		f := s.take(9)
		s.hints.enqueued(laneIOS, 1)
		s.lands(f, dry("w"))
		require.Equal(t, 1, s.wake(time.Now()))
		require.Equal(t, lined, p.state)
	})

	t.Run("a woken poll that leaves is replaced", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		first, second := s.parks("first"), s.parks("second")
		s.hints.enqueued(laneIOS, 1)
		s.wake(time.Now())
		s.leave(first)
		require.Equal(t, 1, s.wake(time.Now()))
		require.Equal(t, []*poll{second}, s.take(9).polls)
	})

	t.Run("a poll that leaves in flight is not parked", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		p := s.polls("w", time.Minute)
		f := s.take(9)
		s.leave(p)
		s.lands(f, dry("w"))
		require.Equal(t, ended, p.state)
		require.Zero(t, s.room.size())
		require.Zero(t, s.waiting)
	})

	t.Run("a worker without a free slot is not woken until it has one", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		p := s.polls("w", time.Minute)
		s.lands(s.take(9), store.PollResult{Outcome: store.PollParked, WorkerID: "w", Seq: 1})
		s.hints.enqueued(laneIOS, 1)
		require.Zero(t, s.wake(time.Now()))
		s.freed("w")
		s.freed("w")
		s.freed("stranger")
		require.Equal(t, 1, s.wake(time.Now()))
		require.Equal(t, lined, p.state)
	})

	t.Run("an empty look beside another flight is in doubt", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.polls("other", 0)
		other := s.take(9)
		s.polls("w", time.Minute)
		f := s.take(9)
		s.hints.set(laneIOS, 3)
		s.lands(f, dry("w"))
		require.Zero(t, s.hints.pending[laneIOS])
		require.True(t, s.doubtful())
		s.lands(other, got("other", nil))
		s.hints.counted(map[store.Platform]int{store.IOS: 1}, s.hints.news, 10)
		require.False(t, s.doubtful())
		require.Equal(t, 1, s.wake(time.Now()))
	})
}

func TestBoardLimitsAndTime(t *testing.T) {
	t.Parallel()

	t.Run("polls beyond the limit do not park", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.limit = 1
		first := s.polls("a", time.Minute)
		second := s.polls("b", time.Minute)
		require.Equal(t, store.Park, first.req.Mode)
		require.Equal(t, store.Answer, second.req.Mode)
		s.leave(first)
		require.Equal(t, store.Park, s.polls("c", time.Minute).req.Mode)
	})

	t.Run("polls expire in order of their time, counted from arrival", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		long := s.parks("long")
		short := s.polls("short", time.Second)
		s.lands(s.take(9), dry("short"))
		at, ok := s.room.nextDue()
		require.True(t, ok)
		require.Equal(t, s.now.Add(time.Second), at)
		s.expire(at.Add(-1))
		require.Equal(t, parked, short.state)
		s.expire(at)
		require.Equal(t, store.Expire, short.req.Mode)
		require.Equal(t, []*poll{short}, s.take(9).polls)
		require.Equal(t, parked, long.state)
	})
}

func TestBoardWeather(t *testing.T) {
	t.Parallel()

	t.Run("the line empties at once and parked polls stay", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		asleep := s.parks("asleep")
		flier := s.polls("flier", 0)
		f := s.take(9)
		queued := s.polls("queued", time.Minute)
		s.hints.enqueued(laneIOS, 1)
		s.wake(time.Now())
		s.crashes(f, errAway)
		s.fail(errAway)
		s.away = true
		require.ErrorIs(t, s.answered(flier).err, errAway)
		require.ErrorIs(t, s.answered(queued).err, errAway)
		s.silent(asleep)
		require.Equal(t, parked, asleep.state)
		require.Zero(t, s.wake(time.Now()), "not while the database is away")
		s.away = false
		require.Equal(t, 1, s.wake(time.Now()))
	})

	t.Run("a poll behind a failed flight goes on", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.polls("w", 0)
		f := s.take(9)
		behind := s.polls("w", 0)
		s.crashes(f, errors.New("a defect"))
		require.Equal(t, []*poll{behind}, s.take(9).polls)
	})

	t.Run("closing answers everything that does not fly", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		asleep := s.parks("asleep")
		flier := s.polls("flier", 0)
		f := s.take(9)
		behind, queued := s.polls("flier", 0), s.polls("queued", 0)
		s.close(errAway)
		require.NoError(t, s.answered(asleep).err)
		require.ErrorIs(t, s.answered(behind).err, errAway)
		require.ErrorIs(t, s.answered(queued).err, errAway)
		s.silent(flier)
		s.lands(f, got("flier", nil))
		require.NoError(t, s.answered(flier).err)
	})
}
