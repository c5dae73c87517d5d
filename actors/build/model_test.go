package build

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store"
)

// model drives a board against a database in memory by random steps, and keeps
// the books of what every poll was answered.
type model struct {
	*board
	t       *rapid.T
	db      *fakeStore
	now     time.Time
	polls   []*poll
	parked  map[*poll]int
	finals  map[*poll]answer
	left    map[*poll]bool
	workers []string
	builds  int
}

func (m *model) collect() {
	for _, p := range m.polls {
		for {
			select {
			case a := <-p.out:
				if a.parked {
					m.parked[p]++
					continue
				}
				_, twice := m.finals[p]
				require.False(m.t, twice, "a poll was answered twice")
				m.finals[p] = a
				continue
			default:
			}
			break
		}
	}
}

func (m *model) takeOff(t *rapid.T) {
	if m.line.size == 0 || len(m.aloft) == 2 {
		t.Skip("nothing to fly")
	}
	m.take(rapid.IntRange(1, 4).Draw(t, "size"))
	seen := map[string]bool{}
	for _, o := range m.aloft {
		for _, p := range o.polls {
			if w := m.db.find(p.req); w != nil && !m.ambiguous(w.id) {
				require.False(t, seen[w.id], "%s flies twice", w.id)
				seen[w.id] = true
			}
		}
	}
}

// ambiguous is true for workers that poll under two names: before the store has
// told that both are one, they may fly twice.
func (m *model) ambiguous(name string) bool { return name == m.workers[0] }

func (m *model) touchDown(t *rapid.T) {
	if len(m.aloft) == 0 {
		t.Skip("nothing flies")
	}
	f := m.aloft[rapid.IntRange(0, len(m.aloft)-1).Draw(t, "flight")]
	fails := rapid.IntRange(0, 9).Draw(t, "fails") == 0
	f.landings = make([]landing, len(f.polls))
	for i, p := range f.polls {
		if fails {
			f.landings[i].err = errAway
		} else {
			f.landings[i].PollResult = m.db.serveOne(p.req)
		}
		p.land(&f.landings[i], m.hints.shown)
	}
	m.land(f)
	if fails {
		m.fail(errAway)
	}
	m.wake(time.Now())
}

// settle lets everything land, and the count correct the hints.
func (m *model) settle(t *rapid.T) {
	for range 1000 {
		for f := m.take(256); f != nil; f = m.take(256) {
			f.landings = make([]landing, len(f.polls))
		}
		for len(m.aloft) > 0 {
			f := m.aloft[0]
			f.landings = make([]landing, len(f.polls))
			for i, p := range f.polls {
				f.landings[i].PollResult = m.db.serveOne(p.req)
				p.land(&f.landings[i], m.hints.shown)
			}
			m.land(f)
		}
		if m.wake(time.Now()) == 0 && m.line.size == 0 {
			if !m.doubtful() {
				return
			}
			count, _ := m.db.Pending(t.Context(), 100)
			m.hints.counted(count, m.hints.news, 100)
			m.wake(time.Now())
		}
	}
	require.Fail(t, "it never comes to rest")
}

func TestBoardModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			board: newBoard(5, &depth{}), t: t, db: newFakeStore(), now: time.Unix(1000, 0),
			parked: map[*poll]int{}, finals: map[*poll]answer{}, left: map[*poll]bool{},
		}
		for i, takes := range [][]store.Platform{nil, {store.IOS}, {store.Android}, nil, {store.IOS, store.Android}} {
			id := fmt.Sprint("w", i)
			m.workers = append(m.workers, id)
			m.db.worker(id, takes...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				id := rapid.SampledFrom(m.workers).Draw(t, "worker")
				req := PollRequest{WorkerID: id}
				if m.ambiguous(id) && rapid.Bool().Draw(t, "by token") {
					req = PollRequest{Token: "token-" + id}
					m.db.workers[id].current = store.HashToken(req.Token) // as if never rotated
				}
				p := newPoll(req, time.Duration(rapid.IntRange(0, 3).Draw(t, "wait"))*time.Second, m.now)
				m.polls = append(m.polls, p)
				m.arrive(p)
			},
			"leave": func(t *rapid.T) {
				if len(m.polls) == 0 {
					t.Skip("nobody is there")
				}
				p := rapid.SampledFrom(m.polls).Draw(t, "poll")
				m.left[p] = true
				m.leave(p)
				m.wake(time.Now())
			},
			"submit": func(t *rapid.T) {
				m.builds++
				p := rapid.SampledFrom([]store.Platform{store.IOS, store.Android}).Draw(t, "platform")
				m.db.submit(fmt.Sprint("b", m.builds), p)
				if rapid.Bool().Draw(t, "heard") {
					m.hints.enqueued(laneOf(p), 1)
				}
				m.wake(time.Now())
			},
			"finish": func(t *rapid.T) {
				id := rapid.SampledFrom(m.workers).Draw(t, "worker")
				m.db.finish(id)
				m.freed(id)
				m.wake(time.Now())
			},
			"time passes": func(*rapid.T) {
				m.now = m.now.Add(500 * time.Millisecond)
				m.expire(m.now)
			},
			"take off":   m.takeOff,
			"touch down": m.touchDown,
			"count": func(t *rapid.T) {
				count, _ := m.db.Pending(t.Context(), 100)
				m.hints.counted(count, m.hints.news, 100)
				m.wake(time.Now())
			},
			"rest": func(t *rapid.T) {
				m.settle(t)
				// Nobody sleeps on a build that somebody has heard of.
				for lane := range laneCount {
					if m.hints.pending[lane] > 0 {
						require.Nil(t, m.room.longest(lane))
					}
				}
			},
			"": func(t *rapid.T) {
				m.collect()
				require.LessOrEqual(t, m.waiting, m.limit)
				require.Equal(t, [2]int{}, m.waking(), "woken polls that are nowhere")
			},
		})
		m.settle(t)
		require.LessOrEqual(t, len(m.line.desks), 2*m.room.size(), "only parked polls keep their desks")
		m.close(errAway)
		m.collect()
		for _, p := range m.polls {
			_, answered := m.finals[p]
			require.True(t, answered || m.left[p], "a poll was forgotten")
			require.LessOrEqual(t, m.parked[p], 1)
		}
		require.Zero(t, m.waiting)
		require.Zero(t, m.line.size)
		for id, n := range m.db.handed {
			require.Equal(t, 1, n, "build %s", id)
		}
	})
}

// waking returns how far the count of woken polls is off.
func (m *model) waking() (off [laneCount]int) {
	off = m.woken
	for _, p := range m.polls {
		if p.lane != noLane && p.state != ended {
			off[p.lane]--
		}
	}
	return off
}
