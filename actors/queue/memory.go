package queue

import (
	"cmp"
	"container/list"
	"errors"
	"slices"
	"time"

	"takt/store"
)

// memory is the state of QueueManager and makes all its decisions, without a clock,
// goroutines or a database. Polls that it can't answer by itself wait for a batch. After the
// batch they end or park. A wake-up sends a parked poll to a batch again.
type memory struct {
	byNumber map[uint32]*session
	byID     map[string]*session
	waiting  list.List             // polls for the next batch
	profiles map[*profile]struct{} // their parked polls are those of workers with a free slot
	full     list.List             // parked polls of workers without a free slot
	locked   list.List             // postponed polls
	several  several
	pending  pending
	caches   caches
	batches  []*batch // running
	// postponed are polls for which the actor has to set a timer, see postpone.
	postponed []*poll
	last      uint64 // the number of the newest poll
	// part counts the calls of known, of which each returns only a part of many sessions. The
	// next one returns all of them if lost is true, because notifications were lost.
	part int
	lost bool
	// admitted is how many polls wait for a batch, are in one or are parked; limit bounds it.
	admitted, limit int
	// away is true during an outage of the database. Parked polls then stay parked.
	away  bool
	gauge *gauges
}

func newMemory(limit int, g *gauges) *memory {
	m := &memory{byNumber: map[uint32]*session{}, byID: map[string]*session{}, profiles: map[*profile]struct{}{}, caches: newCaches(), limit: limit, gauge: g}
	m.pending.shown, m.pending.found, m.pending.changes = &g.classes, &g.counted, &g.changes
	m.pending.changes.Add(1) // for what happened since the actor's previous run
	m.pending.begin()
	return m
}

// arrive judges a new poll. If another poll of its worker is in a batch, the new one is judged
// after that batch. It supersedes an older poll of the worker that is in no batch.
func (m *memory) arrive(p *poll, now time.Time) {
	m.last++
	p.no, p.session = m.last, m.sessionOf(p.req)
	s := p.session
	if err := s.refuse(p); err != nil { // a refused poll supersedes none
		p.state = ended
		p.answer(answer{err: err})
		return
	}
	if s.next != nil {
		m.supersede(s.next)
	}
	s.next = p
	s.polled(p, now)
	m.several.asked(p, now)
	if s.batched == nil {
		m.judge(p, now)
	}
}

// admit counts p in admitted, and returns false if the limit is reached.
func (m *memory) admit(p *poll) bool {
	if !p.counted && m.admitted < m.limit {
		p.counted = true
		m.admitted++
	}
	return p.counted
}

// judge answers or parks p if memory is enough to decide; otherwise p waits for a
// batch. The database must decide if the worker's row is not known or may have changed,
// another process of the worker may hold it, the worker holds builds or lists them, the
// token was presented before, p was parked before, or a build may be pending.
func (m *memory) judge(p *poll, now time.Time) {
	s := p.session
	if err := s.refuse(p); err != nil { // a batch may have changed the session since arrive
		m.end(p)
		p.answer(answer{err: err})
		return
	}
	repeated := p.req.Token.Worker != 0 && p.req.Token.Counter <= s.Used
	if !s.known || s.stale || s.foreign(p) || s.Held > 0 || repeated || p.wasParked || p.req.Reconcile || m.away || m.pending.unknown(now) ||
		!s.Drained && m.pending.of(s.profile) > 0 {
		if m.admit(p) {
			p.put(&m.waiting, waiting)
			return
		}
		m.end(p)
		p.answer(answer{err: &store.Error{Code: store.Overloaded, Message: "Too many polls wait, try again later", RetryAfter: time.Second}})
		return
	}
	m.gauge.idle.Add(1)
	s.Used, s.seen = max(s.Used, p.req.Token.Counter), now
	m.rest(p, now)
}

// rest parks p, for which there is no build, or answers it if its time is up or the limit is
// reached.
func (m *memory) rest(p *poll, now time.Time) {
	s := p.session
	if now.Sub(p.arrived) >= p.wait || !m.admit(p) {
		size := 0
		if !s.Free() {
			size = m.pending.of(s.profile)
		}
		m.end(p)
		p.idle(size)
		return
	}
	m.unwake(p)
	p.wasParked, p.handed, p.lockedAt = true, s.Handed, time.Time{}
	s.next = p
	if p.takes = nil; s.Free() && s.profile != nil {
		p.takes = s.profile
		p.put(&p.takes.parked, parked)
		return
	}
	p.put(&m.full, parked)
}

// leave removes a poll whose caller has left. closed is true if that was because the worker's
// connection closed.
func (m *memory) leave(p *poll, closed bool, now time.Time) {
	if p.state == batched {
		p.gone = true
		return
	}
	if closed && p.state == parked {
		p.session.closed, p.session.seen = now, now
	}
	m.end(p)
	m.release(p.session, now)
}

// expire answers a parked poll whose time is up, or lets the database decide if the counts
// are too old.
func (m *memory) expire(p *poll, now time.Time) {
	switch {
	case p.state != parked:
	case m.away:
		m.end(p)
		p.answer(answer{err: store.NewUnavailable("Database unavailable, try again", errOutage)})
	case m.pending.unknown(now):
		m.recall(p)
	default:
		p.unlist()
		m.rest(p, now)
	}
}

var errOutage = errors.New("the database is away")

// supersede ends a poll because its worker has sent a newer one. The worker keeps its token,
// because nothing was written for this poll.
func (m *memory) supersede(p *poll) {
	m.end(p)
	p.answer(answer{PollReply: store.PollReply{QueueSize: m.pending.total()}})
}

// end removes a poll that is in no batch.
func (m *memory) end(p *poll) {
	if p.state == ended {
		return
	}
	p.unlist()
	p.state = ended
	m.unwake(p)
	if p.counted {
		p.counted = false
		m.admitted--
	}
	if p.session.next == p {
		p.session.next = nil
	}
}

// unwake records that p no longer fetches the build for which it was woken.
func (m *memory) unwake(p *poll) {
	if p.wokenFor != nil {
		p.wokenFor.woken--
		p.wokenFor = nil
	}
}

// release judges the next poll of s if none is in a batch, and forgets an unknown session
// without polls.
func (m *memory) release(s *session, now time.Time) {
	switch {
	case s.batched != nil:
	case s.next == nil && !s.known:
		m.forget(s)
	case s.next != nil && s.next.state == blocked:
		m.judge(s.next, now)
	}
}

// recall puts a parked or postponed poll into the next batch.
func (m *memory) recall(p *poll) {
	p.unlist()
	p.put(&m.waiting, waiting)
}

// enqueued records builds that this controller made pending, and wakes polls for those that
// prefer a worker: one with a warm cache, or else one with the preferred labels, or one other
// than the worker that had the build last. step wakes polls for the others.
func (m *memory) enqueued(e enqueued, now time.Time) {
	c := m.pending.known(e.class.ID)
	switch {
	case c == nil && !e.defined:
		m.pending.noteUndefined(e.class.ID)
		return
	case c == nil:
		c = m.pending.add(e.class)
	}
	m.pending.enqueued(c, e.n, e.sender)
	for n := e.n; n > 0 && !m.away && c.woken < c.n; n-- {
		var p *poll
		if e.cache != "" {
			p = m.warm(c, e.cache, e.last, now)
		}
		if p == nil && (len(e.prefer) > 0 || e.last != "") {
			p = cmp.Or(m.oldest(c, e.prefer, e.last), m.oldest(c, nil, e.last))
		}
		if p == nil {
			return
		}
		m.fetch(p, c)
	}
}

// wake wakes the oldest parked poll for each pending build that no woken poll fetches yet.
func (m *memory) wake() {
	for _, c := range m.pending.classes {
		for !m.away && c.woken < c.n {
			p := m.oldest(c, nil, "")
			if p == nil {
				break
			}
			m.fetch(p, c)
		}
	}
}

// fetch wakes a parked poll for a build of c. The poll keeps its number, and so its order
// among the parked polls if it parks again.
func (m *memory) fetch(p *poll, c *class) {
	m.recall(p)
	p.wokenFor = c
	c.woken++
	m.gauge.woken.Add(1)
}

// oldest returns the oldest parked poll of a worker that can take a build of c, has labels
// that satisfy prefer and is not the worker not; nil if there is none.
func (m *memory) oldest(c *class, prefer store.Require, not string) (found *poll) {
	for of := range m.profiles {
		front := of.parked.Front()
		if front != nil && front.Value.(*poll).session.ID == not { // polls only
			front = front.Next()
		}
		if front != nil && of.takes(c) && prefer.Match(of.labels) {
			if p := front.Value.(*poll); found == nil || p.no < found.no { // polls only
				found = p
			}
		}
	}
	return found
}

// take makes a batch of the first waiting polls, at most limit.
func (m *memory) take(limit int) *batch {
	b := &batch{seen: m.pending.seen(), done: make(chan struct{})}
	for len(b.polls) < limit && m.waiting.Len() > 0 {
		p := m.waiting.Front().Value.(*poll) // polls only
		p.unlist()
		s := p.session
		b.polls = append(b.polls, p)
		b.work = append(b.work, store.Poll{
			Worker: s.Number, WorkerID: cmp.Or(p.req.WorkerID, s.ID), Instance: p.req.Instance, Shown: p.req.Token.Counter, Used: max(s.Used, p.req.Token.Counter),
			Parked: p.wasParked, Handed: p.handed, Active: p.req.Active, Reconcile: p.req.Reconcile, Max: p.req.Max,
			Session: s.WorkerSession, Known: s.known && !s.stale,
		})
		p.state, s.batched, s.next, s.stale = batched, p, nil, false
	}
	m.allowMore(b)
	for _, other := range m.batches {
		other.crowded, b.crowded = true, true
	}
	m.batches = append(m.batches, b)
	return b
}

// parkedPolls returns how many polls are parked.
func (m *memory) parkedPolls() (n int) {
	n = m.full.Len()
	for p := range m.profiles {
		n += p.parked.Len()
	}
	return n
}

// doubtful reports whether the pending builds should be counted again soon: there is an
// undefined class, polls may be parked elsewhere for all that is known, or the count of a class is in doubt while a poll that could take a build of
// it is parked.
func (m *memory) doubtful() bool {
	return len(m.pending.undefined) > 0 || m.several.unsure ||
		slices.ContainsFunc(m.pending.classes, func(c *class) bool { return c.doubt && m.oldest(c, nil, "") != nil })
}

// batched returns how many polls are in batches.
func (m *memory) batched() (n int) {
	for _, b := range m.batches {
		n += len(b.polls)
	}
	return n
}

// takeBack takes a batch's polls back: those with a final result end, the others park or are
// postponed. The results correct sessions and counts of pending builds.
func (m *memory) takeBack(b *batch, now time.Time) {
	m.batches = slices.DeleteFunc(m.batches, func(o *batch) bool { return o == b })
	foundNone := map[*profile]bool{}
	for i, p := range b.polls {
		r := &b.results[i]
		p.session.batched = nil
		switch r.Outcome {
		case store.PollServed, store.PollSuperseded:
			if r.Session.ID != "" {
				m.learn(p, r, now)
			}
		case store.PollInvalidToken, store.PollDuplicateWorker, store.PollUnknownWorker:
			m.changed(p.session) // a parked poll is judged again
		case store.PollLocked:
			p.session.stale = true // the batch has not read the row
		case store.PollFailed:
		}
		switch {
		case len(r.Jobs) > 0:
			for _, job := range newJobs(r) {
				m.pending.claimed(job.ClassID)
			}
		case r.Outcome == store.PollServed && r.Session.Free():
			foundNone[p.session.profile] = true
		}
		s := p.session
		switch {
		case final(p, r) || p.gone:
			m.end(p)
		case s.next != nil && s.next.no > p.no:
			m.supersede(p)
		default:
			if s.next != nil { // older, and moved here when two sessions of a worker were merged
				m.supersede(s.next)
			}
			if r.Outcome == store.PollLocked {
				m.postpone(p, now)
				break
			}
			if m.rest(p, now); p.state == parked && s.stale {
				m.recall(p)
			}
		}
		m.release(s, now)
	}
	for _, c := range m.pending.classes {
		for p := range foundNone {
			if p.takes(c) {
				c.foundNone(b.seen[c], b.crowded)
				break
			}
		}
	}
}

// lockedLimit is how long a poll waits for a row that other transactions keep locked.
const lockedLimit = 5 * time.Second

// postpone keeps p, whose worker's row is locked by another transaction, for a later batch.
// Meanwhile the build for which it was woken may wake another poll. If the row stays locked
// for lockedLimit, p gets an error.
func (m *memory) postpone(p *poll, now time.Time) {
	if p.lockedAt.IsZero() {
		p.lockedAt, p.locked = now, 0
	}
	if now.Sub(p.lockedAt) >= lockedLimit {
		m.end(p)
		p.answer(answer{err: store.NewUnavailable("Another request is changing this worker, try again", store.ErrContention)})
		return
	}
	m.unwake(p)
	p.locked++
	p.put(&m.locked, postponed)
	p.session.next = p
	m.postponed = append(m.postponed, p)
}

// fail empties the waiting polls because of an outage: those that were parked before park
// again, all others get err.
func (m *memory) fail(err error, now time.Time) {
	for m.waiting.Len() > 0 {
		p := m.waiting.Front().Value.(*poll) // polls only
		p.unlist()
		if p.wasParked && p.session.known {
			m.rest(p, now)
			continue
		}
		s := p.session
		m.end(p)
		p.answer(answer{err: err})
		m.release(s, now)
	}
}

// close ends all polls that are in no batch. Parked polls get an answer without a build, so
// that their workers poll again; all others get err.
func (m *memory) close(err error) {
	end := func(s *session) {
		switch p := s.next; {
		case p == nil:
		case p.state == parked:
			m.supersede(p)
		default:
			m.end(p)
			p.answer(answer{err: err})
		}
	}
	for _, s := range m.byNumber {
		end(s)
	}
	for _, s := range m.byID {
		end(s)
	}
}
