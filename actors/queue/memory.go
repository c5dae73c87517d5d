package queue

import (
	"cmp"
	"container/list"
	"errors"
	"slices"
	"time"

	"takt/store"
)

// memory is the state of QueueManager and all its decisions, without a clock, goroutines or
// a database. Polls that memory can't answer wait for a batch. After the batch they end or
// park. A wake-up sends a parked poll to a batch again.
type memory struct {
	byNumber map[uint32]*session
	byID     map[string]*session
	waiting  list.List // polls for the next batch
	profiles map[*profile]struct{}
	full     list.List // parked polls of workers without a free slot
	pending  pending
	caches   caches
	batches  []*batch
	// postponed are polls for which a timer is to be set, see postpone.
	postponed []*poll
	last      uint64 // the number of the newest poll
	// turn is the next of known, which returns a part of many sessions each time, or all of
	// them if lost: notifications were.
	turn int
	lost bool
	// patient is how many polls wait for a batch, are in one or are parked. limit bounds it.
	patient, limit int
	// away is true during an outage of the database. Parked polls then stay parked.
	away  bool
	gauge *gauges
}

func newMemory(limit int, g *gauges) *memory {
	m := &memory{byNumber: map[uint32]*session{}, byID: map[string]*session{}, profiles: map[*profile]struct{}{}, caches: newCaches(), limit: limit, gauge: g}
	m.pending.shown, m.pending.found, m.pending.changes = &g.classes, &g.counted, &g.changes
	m.pending.changes.Add(1) // what the one before it had not heard of
	m.pending.begin()
	return m
}

// arrive judges a new poll, unless another poll of its worker is in a batch: then the
// new one waits for that. It supersedes an older poll that waits.
func (m *memory) arrive(p *poll, now time.Time) {
	m.last++
	p.no, p.session = m.last, m.sessionOf(p.req)
	s := p.session
	if err := s.refuse(p); err != nil { // p itself supersedes no poll
		p.state = ended
		p.answer(answer{err: err})
		return
	}
	if s.next != nil {
		m.supersede(s.next)
	}
	s.next = p
	s.polled(p, now)
	if s.batched == nil {
		m.judge(p, now)
	}
}

// admit counts p among the polls that wait, and reports whether the limit allows it.
func (m *memory) admit(p *poll) bool {
	if !p.counted && m.patient < m.limit {
		p.counted = true
		m.patient++
	}
	return p.counted
}

// judge answers or parks p if memory is enough to decide; otherwise p waits for a
// batch. The database decides if the row has not been read yet, another process of the
// worker was served last, the worker holds builds, the token was shown before, or a
// build may be pending.
func (m *memory) judge(p *poll, now time.Time) {
	s := p.session
	if err := s.refuse(p); err != nil { // by what the batch before it found
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

// rest parks p, which found nothing, or answers it if its time is up or too many wait.
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

// leave removes a poll whose caller has left, if closed because its connection closed.
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

// expire answers a parked poll whose time is up.
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

// supersede ends a waiting poll because its worker has sent a newer one. The worker
// keeps its token, because nothing was written for this poll.
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
		m.patient--
	}
	if p.session.next == p {
		p.session.next = nil
	}
}

// unwake records that p no longer fetches the build that it was woken for.
func (m *memory) unwake(p *poll) {
	if p.wokenFor != nil {
		p.wokenFor.woken--
		p.wokenFor = nil
	}
}

// release lets the next poll of s proceed.
func (m *memory) release(s *session, now time.Time) {
	switch {
	case s.batched != nil:
	case s.next == nil && !s.known:
		m.forget(s)
	case s.next != nil && s.next.state == blocked:
		m.judge(s.next, now)
	}
}

// recall sends a parked poll to the database for a decision.
func (m *memory) recall(p *poll) {
	p.unlist()
	p.put(&m.waiting, waiting)
}

// enqueued records builds that this controller made pending. A build goes first to a parked
// poll whose worker has a warm cache, or else to one whose worker it prefers, but not to the
// worker that had it last if another takes it.
func (m *memory) enqueued(e enqueued, now time.Time) {
	c := m.pending.known(e.class.ID)
	switch {
	case c == nil && !e.defined:
		m.pending.hear(e.class.ID)
		return
	case c == nil:
		c = m.pending.add(e.class)
	}
	m.pending.enqueued(c, e.n)
	for n := e.n; n > 0 && !m.away && c.woken < c.n; n-- {
		var p *poll
		if e.cache != "" {
			p = m.warm(c, e.cache, e.last, now)
		}
		if p == nil && (len(e.prefer) > 0 || e.last != "") {
			p = cmp.Or(m.longest(c, e.prefer, e.last), m.longest(c, nil, e.last))
		}
		if p == nil {
			return
		}
		m.fetch(p, c)
	}
}

// wake wakes one poll for each pending build that no woken poll fetches yet: the poll
// that has been parked longest.
func (m *memory) wake() {
	for _, c := range m.pending.classes {
		for !m.away && c.woken < c.n {
			p := m.longest(c, nil, "")
			if p == nil {
				break
			}
			m.fetch(p, c)
		}
	}
}

// fetch sends a parked poll to fetch a build of c. The poll keeps its number, and so its
// position if it parks again.
func (m *memory) fetch(p *poll, c *class) {
	m.recall(p)
	p.wokenFor = c
	c.woken++
	m.gauge.woken.Add(1)
}

// longest returns the poll that has been parked longest of those whose workers can take a
// build of c, have labels that satisfy prefer and are not the one named; nil if there is none.
func (m *memory) longest(c *class, prefer store.Require, not string) (found *poll) {
	for of := range m.profiles {
		front := of.parked.Front()
		if front != nil && front.Value.(*poll).session.ID == not { //nolint:forcetypeassert // polls only
			front = front.Next()
		}
		if front != nil && of.takes(c) && prefer.Match(of.labels) {
			if p := front.Value.(*poll); found == nil || p.no < found.no { //nolint:forcetypeassert // polls only
				found = p
			}
		}
	}
	return found
}

// take forms a batch of at most limit polls.
func (m *memory) take(limit int) *batch {
	b := &batch{seen: m.pending.seen(), done: make(chan struct{})}
	for len(b.polls) < limit && m.waiting.Len() > 0 {
		p := m.waiting.Front().Value.(*poll) //nolint:forcetypeassert // polls only
		p.unlist()
		s := p.session
		b.polls = append(b.polls, p)
		b.work = append(b.work, store.Poll{
			Worker: s.Number, WorkerID: s.ID, Instance: p.req.Instance, Shown: p.req.Token.Counter, Used: max(s.Used, p.req.Token.Counter),
			Parked: p.wasParked, Handed: p.handed, Active: p.req.Active, Reconcile: p.req.Reconcile,
			Session: s.WorkerSession, Known: s.known && !s.stale,
		})
		p.state, s.batched, s.next, s.stale = batched, p, nil, false
	}
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

// doubtful reports whether a build may be pending that this controller does not know of
// while a poll that could take it is parked, or of a class that it does not know.
func (m *memory) doubtful() bool {
	return len(m.pending.heard) > 0 ||
		slices.ContainsFunc(m.pending.classes, func(c *class) bool { return c.doubt && m.longest(c, nil, "") != nil })
}

// batched returns how many polls are in batches.
func (m *memory) batched() (n int) {
	for _, b := range m.batches {
		n += len(b.polls)
	}
	return n
}

// takeBack takes a batch's polls back: answered polls end, the others park. The results
// correct sessions and pending counts.
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
		case r.Job != nil && !r.Redelivered:
			m.pending.claimed(r.Job.ClassID)
		case r.Outcome == store.PollServed && r.Job == nil && r.Session.Free():
			foundNone[p.session.profile] = true
		}
		s := p.session
		switch {
		case final(p, r) || p.gone:
			m.end(p)
		case s.next != nil && s.next.no > p.no:
			m.supersede(p)
		default:
			if s.next != nil { // came another way, before the two were known to be one worker's
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

// postpone keeps p, whose worker's row is locked by another transaction, for a later
// batch. Meanwhile the build that it was woken for may wake another poll. If the row stays locked, p is answered that the worker should try again.
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
	p.state, p.session.next = postponed, p
	m.postponed = append(m.postponed, p)
}

// fail ends the waiting polls because of an outage: those that were parked park again,
// all others get err.
func (m *memory) fail(err error, now time.Time) {
	for m.waiting.Len() > 0 {
		p := m.waiting.Front().Value.(*poll) //nolint:forcetypeassert // polls only
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

// close ends all polls that are in no batch. Waiting polls get err. Parked polls get an
// empty answer, and their workers poll again.
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
