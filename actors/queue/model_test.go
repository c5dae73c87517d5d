package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store"
)

// model drives the memories of two controllers against one database by random
// steps: replies are lost at any point, actors and processes crash, notifications
// never arrive, what was read or is to be written is late. It keeps the books of
// what each worker has heard.
type model struct {
	t       *rapid.T
	db      *fakeStore
	now     time.Time
	nodes   [2]*node
	workers map[string]*modelWorker
	builds  int
	// disturbed is true while other transactions lock workers' rows.
	disturbed bool
}

// node is one controller.
type node struct {
	*memory
	q *Queue
	// committed are batches whose transaction has ended and whose polls have not
	// been answered yet.
	committed []*batch
	looks     []recounted // at the database, which have not been taken over yet
}

// modelWorker is a worker as it sees itself.
type modelWorker struct {
	id     string
	byID   bool // shows no tokens
	counts bool // its token has not been voided by an end or a beginning
	req    store.PollRequest
	poll   *poll // the newest, if no answer has arrived
	at     *node
	heard  map[string]bool
	since  map[string]bool // of these, since it has registered
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, db: newFakeStore(), now: time.Unix(1000, 0), workers: map[string]*modelWorker{}}
	for i := range m.nodes {
		q := &Queue{cfg: Config{}.withDefaults()}
		m.nodes[i] = &node{q: q, memory: newMemory(100, &q.gauge)}
	}
	for i, takes := range [][]store.Platform{nil, {store.IOS}, nil} {
		id := fmt.Sprint("w", i)
		m.db.worker(id, takes...)
		w := &modelWorker{id: id, byID: i == 2, counts: true, heard: map[string]bool{}, since: map[string]bool{}}
		m.db.workers[id].Slots = 1 + i%3
		m.workers[id] = w
		m.shows(w, m.db.shows(id).Token)
	}
	return m
}

func (m *model) shows(w *modelWorker, token store.WorkerToken) {
	w.req = store.PollRequest{Token: token, Presented: fmt.Sprint(token)}
	if w.byID {
		w.req = store.PollRequest{WorkerID: w.id}
	}
}

func (m *model) any() *modelWorker {
	return m.workers[rapid.SampledFrom(slices.Sorted(maps.Keys(m.workers))).Draw(m.t, "worker")]
}

func (m *model) node() *node { return m.nodes[rapid.IntRange(0, 1).Draw(m.t, "controller")] }

func (m *model) chance(what string) bool { return rapid.Bool().Draw(m.t, what) }

// polls lets w poll at n. What it waited for before is given up: the connection
// is cut, which its controller may notice.
func (m *model) polls(w *modelWorker, n *node, wait time.Duration) {
	w.req.Max = rapid.IntRange(0, 3).Draw(m.t, "max")
	if w.poll != nil && m.chance("the old controller notices") {
		w.at.leave(w.poll, false, m.now)
	}
	w.poll = &poll{req: w.req, wait: wait, arrived: m.now, out: make(chan answer, 2)}
	w.at = n
	n.arrive(w.poll, m.now)
}

// hears takes what has arrived for w.
func (m *model) hears(w *modelWorker) {
	for w.poll != nil {
		select {
		case a := <-w.poll.out:
			w.poll = nil
			if a.err != nil {
				if store.CodeOf(a.err) == store.InvalidToken && w.counts {
					m.t.Fatalf("worker %s was locked out with %v", w.id, w.req.Token)
				}
				continue
			}
			require.LessOrEqual(m.t, len(a.Jobs), max(w.req.Max, 1))
			for _, job := range a.Jobs {
				name := fmt.Sprint(job.BuildID, job.Attempt)
				row := m.db.workers[w.id]
				if w.since[name] && !w.byID && row != nil && row.Slots > 1 {
					m.t.Fatalf("worker %s was given build %s again although its token tells that it has heard of it", w.id, name)
				}
				w.heard[name], w.since[name] = true, true
			}
			if a.next.Worker != 0 && !w.byID {
				if w.counts {
					require.Greater(m.t, a.next.Counter, w.req.Token.Counter)
				}
				m.shows(w, a.next)
			}
		default:
			return
		}
	}
}

// commit ends the transaction of a new batch of n.
func (m *model) commit(n *node, size int) {
	b := n.take(size)
	m.others(n, b)
	b.results = m.db.assignAll(b.work, func() bool { return m.disturbed && m.chance("the row is locked") })
	n.committed = append(n.committed, b)
}

// others checks that no poll of b may get a second build of a class for which another poll of n
// waits or is parked, or did at the other controller when n counted last.
func (m *model) others(n *node, b *batch) {
	for _, p := range b.work {
		if len(p.Spare) == 0 {
			continue
		}
		var waiting []*modelWorker
		for _, w := range m.workers {
			if row := m.db.workers[w.id]; w.poll != nil && w.at == n && row != nil && row.Number != p.Worker && w.poll.state != ended && w.poll.state != blocked && !slices.Contains(b.polls, w.poll) {
				waiting = append(waiting, w)
			}
		}
		for _, c := range n.pending.classes {
			for _, w := range waiting {
				s := w.poll.session
				full := w.poll.state == parked && w.poll.takes == nil
				require.False(m.t, !full && slices.Contains(p.Spare, c.ID) && s.known && s.Takes(&c.Class), "worker %s waits for class %d", w.id, c.ID)
			}
			for _, s := range n.several.elsewhere {
				require.False(m.t, slices.Contains(p.Spare, c.ID) && s.Takes(&c.Class), "another controller")
			}
		}
	}
}

// unlocks ends the pauses of n's postponed polls.
func (m *model) unlocks(n *node) {
	for _, p := range n.postponed {
		if p.state == postponed {
			n.recall(p)
		}
	}
	n.postponed = nil
}

// answers lets n answer a committed batch and take it over.
func (m *model) answers(n *node, i int) {
	b := n.committed[i]
	n.committed = slices.Delete(n.committed, i, i+1)
	for k, p := range b.polls {
		if r := &b.results[k]; final(p, r) {
			p.answer(n.q.answer(r))
		}
	}
	n.takeBack(b, m.now)
}

// looks lets n read the database; takesOver lets it take over what it has read.
func (m *model) looks(n *node) {
	known := n.known(m.now)
	heartbeats := n.due(m.now, time.Second)
	r, err := m.db.Recount(m.t.Context(), 100, known, nil)
	require.NoError(m.t, err)
	look := recounted{Recount: r, seen: n.pending.seen(), at: m.now, heartbeats: heartbeats, here: n.here(m.now)}
	for _, w := range m.workers { // as their rows would say
		if row := m.db.workers[w.id]; w.poll != nil && w.at != n && w.poll.state == parked && row != nil {
			look.elsewhere = append(look.elsewhere, row.WorkerSession)
		}
	}
	n.looks = append(n.looks, look)
}

func (m *model) takesOver(n *node) {
	r := n.looks[0]
	n.looks = n.looks[1:]
	written, err := m.db.RecordPresence(m.t.Context(), r.heartbeats) // late
	require.NoError(m.t, err)
	for _, row := range r.Changed {
		n.corrected(row)
	}
	for _, number := range r.Gone {
		n.gone(number)
	}
	n.pending.recount(r.Recount, r.seen, 99, m.now)
	n.learnElsewhere(r)
	n.recorded(r.heartbeats, written, r.at)
}

// changed tells the controllers of a worker's change, if the notification arrives.
func (m *model) changed(number uint32) {
	for _, n := range m.nodes {
		if m.chance("the notification arrives") {
			n.changed(n.byNumber[number])
		}
	}
}

// crashes starts n's memory anew. Batches that the actor has begun are answered
// all the same if only the actor crashed; if the process did, nobody is.
func (m *model) crashes(n *node, process bool) {
	if process {
		for _, w := range m.workers {
			if w.at == n {
				w.poll = nil
			}
		}
	} else {
		n.close(errAway)
		for _, b := range n.committed {
			for k, p := range b.polls {
				if r := &b.results[k]; final(p, r) {
					p.answer(n.q.answer(r))
				}
			}
		}
		for _, w := range m.workers { // their callers hear that the actor is gone
			if m.hears(w); w.at == n {
				w.poll = nil
			}
		}
	}
	q := &Queue{cfg: Config{}.withDefaults()}
	n.q, n.memory, n.committed, n.looks = q, newMemory(100, &q.gauge), nil, nil
}

// frees takes a build from its worker.
func (m *model) frees(w *fakeWorker, i int) *fakeBuild {
	b := w.holds[i]
	w.holds = slices.Delete(w.holds, i, i+1)
	w.Held--
	return b
}

// registers lets a worker register anew: as it was known, or as a new one.
func (m *model) registers(w *modelWorker) {
	row := m.db.workers[w.id]
	if row == nil {
		m.db.worker(w.id)
		row = m.db.workers[w.id]
		row.Number = uint32(1000 + m.builds)
		m.builds++ // numbers are never used again
	} else {
		row.Used += 1 << 20
		n := uint64(0)
		for _, b := range row.holds {
			if !b.building {
				n++
				b.handed = row.Used + 1 + n
			}
		}
		row.Handed = row.Used + 1024
		m.changed(row.Number)
	}
	w.counts, w.poll, w.since = true, nil, map[string]bool{}
	m.shows(w, store.WorkerToken{Worker: row.Number, Counter: row.Used + 1})
}

func (m *model) leaves(w *modelWorker, deleted bool) {
	row := m.db.workers[w.id]
	if row == nil {
		return
	}
	for range row.holds {
		m.db.pending = append(m.db.pending, m.frees(row, 0))
	}
	row.Used += 1 << 20
	if deleted {
		delete(m.db.workers, w.id)
	}
	w.counts = false
	m.changed(row.Number)
}

// rest lets everything come to its end, and looks at the database once.
func (m *model) rest() {
	for range 2 {
		for _, n := range m.nodes {
			n.looks = nil
			m.looks(n)
			m.takesOver(n)
		}
		m.drain()
	}
}

// drain lets all batches run.
func (m *model) drain() {
	for range 1000 {
		idle := true
		for _, n := range m.nodes {
			m.unlocks(n)
			n.wake()
			if n.waiting.Len() > 0 && len(n.batches) < 2 {
				m.commit(n, 256)
				idle = false
			}
			for len(n.committed) > 0 {
				m.answers(n, 0)
				idle = false
			}
		}
		if idle {
			return
		}
	}
	m.t.Fatal("it never comes to rest")
}

// check holds at rest, when each worker has polled until there is nothing.
func (m *model) check() {
	m.disturbed = false
	m.rest()
	for _, id := range slices.Sorted(maps.Keys(m.workers)) {
		w := m.workers[id]
		m.hears(w)
		if m.db.workers[id] == nil || !w.counts {
			continue
		}
		w.poll = nil
		n := m.node() // any one has to do
		for range 20 {
			m.polls(w, n, 0)
			m.drain()
			m.hears(w)
		}
		for _, b := range m.db.workers[id].holds {
			require.True(m.t, b.building || w.heard[fmt.Sprint(b.id, b.attempt)], "worker %s never heard of build %s", id, b.id)
		}
	}
	m.rest()
	for i, n := range m.nodes {
		for _, c := range n.pending.classes {
			if c.n > 0 {
				require.Nil(m.t, n.oldest(c, nil, ""), "controller %d: a worker sleeps on a build", i)
			}
			require.Zero(m.t, c.woken, "woken polls that are nowhere")
		}
		require.LessOrEqual(m.t, n.admitted, len(n.byID)+len(n.byNumber))
	}
}

func TestTokensAndSessionsOverTwoControllers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		often := []string{"poll at once", "poll at once", "poll at once", "submit", "submit", "look", "take over", "finish"}
		actions := map[string]func(*rapid.T){
			"poll": func(t *rapid.T) {
				m.polls(m.any(), m.node(), time.Duration(rapid.IntRange(0, 3).Draw(t, "wait"))*time.Second)
			},
			"poll at once": func(t *rapid.T) {
				w, n := m.any(), m.node()
				m.polls(w, n, rapid.SampledFrom([]time.Duration{0, 0, time.Minute}).Draw(t, "wait"))
				if n.waiting.Len() > 0 && len(n.batches) == 0 {
					m.commit(n, 256)
					m.answers(n, 0)
				}
				if m.chance("the reply is lost") {
					w.poll = nil
				}
				m.hears(w)
			},
			"hear":     func(*rapid.T) { m.hears(m.any()) },
			"lose all": func(*rapid.T) { m.any().poll = nil },
			"submit": func(t *rapid.T) {
				m.builds++
				b := &fakeBuild{platform: rapid.SampledFrom([]store.Platform{store.IOS, store.Android, "gpu"}).Draw(t, "platform")}
				m.db.submit(fmt.Sprint("b", m.builds), b.platform)
				here, class := m.node(), b.class()
				sender := uint32(m.builds)
				enqueue := func() { here.enqueued(enqueued{class: class, defined: true, n: 1, sender: sender}, m.now) }
				late := m.chance("the notification comes first")
				if !late {
					enqueue()
				}
				for _, n := range m.nodes {
					if m.chance("the notification arrives") {
						n.pending.notified(class.Event(), sender)
					}
				}
				if late {
					enqueue()
				}
			},
			"wake":   func(*rapid.T) { m.node().wake() },
			"lock":   func(*rapid.T) { m.disturbed = !m.disturbed },
			"unlock": func(*rapid.T) { m.unlocks(m.node()) },
			"commit": func(t *rapid.T) {
				if n := m.node(); n.waiting.Len() > 0 && len(n.batches) < 2 {
					m.commit(n, rapid.IntRange(1, 4).Draw(t, "size"))
				}
			},
			"answer": func(t *rapid.T) {
				if n := m.node(); len(n.committed) > 0 {
					m.answers(n, rapid.IntRange(0, len(n.committed)-1).Draw(t, "batch"))
				}
			},
			"look": func(*rapid.T) { m.looks(m.node()) },
			"take over": func(*rapid.T) {
				if n := m.node(); len(n.looks) > 0 {
					m.takesOver(n)
				}
			},
			"LISTEN interrupted": func(*rapid.T) { m.node().missed() },
			"acknowledge": func(t *rapid.T) {
				w := m.any()
				if row := m.db.workers[w.id]; row != nil && len(row.holds) > 0 {
					b := row.holds[rapid.IntRange(0, len(row.holds)-1).Draw(t, "build")]
					b.building = b.building || w.heard[fmt.Sprint(b.id, b.attempt)]
				}
			},
			"finish": func(t *rapid.T) {
				w := m.any()
				if row := m.db.workers[w.id]; row != nil && len(row.holds) > 0 {
					if i := rapid.IntRange(0, len(row.holds)-1).Draw(t, "build"); w.heard[fmt.Sprint(row.holds[i].id, row.holds[i].attempt)] {
						m.frees(row, i)
						n := m.node()
						n.changed(n.byID[w.id])
					}
				}
			},
			"drain or resume": func(*rapid.T) {
				if row := m.db.workers[m.any().id]; row != nil {
					row.Drained = !row.Drained
					m.changed(row.Number)
				}
			},
			"register":      func(*rapid.T) { m.registers(m.any()) },
			"unregister":    func(*rapid.T) { m.leaves(m.any(), false) },
			"delete":        func(*rapid.T) { m.leaves(m.any(), true) },
			"actor crash":   func(*rapid.T) { m.crashes(m.node(), false) },
			"process crash": func(*rapid.T) { m.crashes(m.node(), true) },
			"time passes": func(*rapid.T) {
				m.now = m.now.Add(500 * time.Millisecond)
				for _, w := range m.workers {
					if w.poll != nil && m.now.Sub(w.poll.arrived) >= w.poll.wait {
						w.at.expire(w.poll, m.now)
					}
				}
			},
			"nothing": func(*rapid.T) {
				for _, n := range m.nodes {
					seen := map[string]bool{}
					for _, b := range n.batches {
						for _, p := range b.polls {
							// Until a row was read nobody can tell that an id and a number are one worker's.
							if s := p.session; s.known {
								require.False(m.t, seen[s.ID], "%s is in two batches", s.ID)
								seen[s.ID] = true
							}
						}
					}
				}
			},
		}
		names := append(slices.Sorted(maps.Keys(actions)), slices.Repeat(often, 8)...) // what forgets is rare
		for range rapid.IntRange(20, 150).Draw(t, "steps") {
			actions[rapid.SampledFrom(names).Draw(t, "action")](t)
			actions["nothing"](t)
		}
		m.check()
	})
}
