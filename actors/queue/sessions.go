package queue

import (
	"time"

	"takt/store"
)

// session is a worker session with the polls of that worker. A worker is never in two
// batches at once, and its newest poll replaces one that waits.
type session struct {
	store.WorkerSession // valid if known; otherwise only Number or ID is set
	known               bool
	profile             *profile // of the row; nil before it was read
	// stale is true if the row may have changed since it was read.
	stale bool
	// instance is the worker's process that the database served last; "" if it named none.
	instance string
	// seen is the time of the last poll; written is seen as last written to the row. wait
	// is how long the last poll might wait.
	seen, written time.Time
	wait          time.Duration
	// closed is when the connection of the worker's parked poll closed before the answer;
	// zero if it has polled since. closedWritten is true if the row says so. returned is
	// true if it polls again and the row may say that it does not.
	closed                  time.Time
	closedWritten, returned bool
	// reads counts how often the row was read; asked is reads when the last recount began.
	reads, asked int
	batched      *poll
	next         *poll // the newest poll that is in no batch
}

// foreign reports whether p names a process of which the session does not know that it
// holds the worker.
func (s *session) foreign(p *poll) bool {
	return p.req.Instance != "" && (s.stale || p.req.Instance != s.instance)
}

// refuse returns why p is refused; nil if that is not certain. A process that names
// itself has to be told whether another one holds the worker now, which a stale session
// does not know.
func (s *session) refuse(p *poll) error {
	switch shown := p.req.Token.Counter; {
	case !s.known || p.req.Token.Worker == 0 || shown > s.Used:
		return nil
	case s.foreign(p):
		if s.stale || s.instance == "" {
			return nil
		}
		return store.ErrDuplicateWorker()
	case shown < s.Used:
		return store.ErrInvalidToken()
	}
	return nil
}

// silence is how long a session is kept without a poll.
const silence = 10 * time.Minute

// sessionOf returns the session of p's worker, a new one if there is none.
func (m *memory) sessionOf(req store.PollRequest) *session {
	s := m.byNumber[req.Token.Worker]
	if req.Token.Worker == 0 {
		s = m.byID[req.WorkerID]
	}
	if s == nil {
		s = &session{WorkerSession: store.WorkerSession{Number: req.Token.Worker}}
		if s.Number == 0 {
			s.ID = req.WorkerID
		}
		m.file(s)
	}
	return s
}

func (m *memory) file(s *session) {
	if s.Number != 0 {
		m.byNumber[s.Number] = s
	}
	if s.ID != "" {
		m.byID[s.ID] = s
	}
}

// forget removes s, unless a poll needs it.
func (m *memory) forget(s *session) {
	s.known = false
	if s.batched != nil || s.next != nil {
		return
	}
	if m.byNumber[s.Number] == s {
		delete(m.byNumber, s.Number)
	}
	if m.byID[s.ID] == s {
		delete(m.byID, s.ID)
	}
}

// learn stores the row of p's worker. A worker that polled both with its token and by
// its id has two sessions until now; they are merged.
func (m *memory) learn(p *poll, r *store.PollResult, now time.Time) {
	s := p.session
	for _, other := range []*session{m.byNumber[r.Session.Number], m.byID[r.Session.ID]} {
		if other != nil && other != s {
			m.merge(s, other)
			s, p.session = other, other
		}
	}
	if s.Number != r.Session.Number { // the worker was deleted and has registered again
		delete(m.byNumber, s.Number)
		s.Used = 0
	}
	r.Session.Used = max(r.Session.Used, s.Used)
	s.WorkerSession, s.known, s.seen = r.Session, true, now
	s.profile = m.profileOf(s)
	s.reads++
	if p.req.Instance != "" {
		s.instance = p.req.Instance
	}
	if r.Job != nil && !r.Redelivered {
		s.written = now
	}
	m.file(s)
}

// merge moves the polls of one session to another.
func (m *memory) merge(from, to *session) {
	p := from.next
	from.next = nil
	m.forget(from)
	if p == nil {
		return
	}
	p.session = to
	if older := to.next; older != nil && older.no > p.no {
		m.supersede(p)
		return
	} else if older != nil {
		m.supersede(older)
	}
	to.next = p
}

// changed records that the row of s may have changed. A parked poll is judged again.
func (m *memory) changed(s *session) {
	if s == nil {
		return
	}
	s.stale = true
	if s.next != nil && s.next.state == parked {
		m.recall(s.next)
	}
	m.forgetIdle(s)
}

// forgetIdle removes s if it has no polls.
func (m *memory) forgetIdle(s *session) {
	if s.batched == nil && s.next == nil {
		m.forget(s)
	}
}

// missed records that notifications were lost, so every row must be read again.
func (m *memory) missed() {
	m.pending.counted = time.Time{}
	m.pending.changes.Add(1)
	m.lost = true
	for _, s := range m.byNumber {
		s.stale = true
		m.forgetIdle(s)
	}
}

// readAtOnce is about how many sessions' rows are read again at once. With more sessions each
// row is read less often, because to read 100 000 takes most of a second.
const readAtOnce = 10_000

// known returns the sessions whose rows are to be read again now, and removes those of
// workers that have been silent.
func (m *memory) known(now time.Time) (list []store.WorkerSession) {
	m.dropProfiles()
	parts := 1 + len(m.byNumber)/readAtOnce
	if m.turn++; m.lost {
		m.lost, parts = false, 1
	}
	list = make([]store.WorkerSession, 0, min(len(m.byNumber), 2*readAtOnce))
	for _, s := range m.byNumber {
		if s.next != nil && s.next.state == parked {
			s.seen = now
		}
		switch {
		case !s.known || s.batched != nil:
		case now.Sub(s.seen) > silence:
			m.forgetIdle(s)
		case int(s.Number)%parts == m.turn%parts:
			s.asked = s.reads
			list = append(list, s.WorkerSession)
		}
	}
	return list
}

// corrected stores a row that had changed, unless newer information came meanwhile. A
// parked poll is judged again.
func (m *memory) corrected(row store.WorkerSession) {
	s := m.byNumber[row.Number]
	if s == nil || !s.known || s.batched != nil || s.reads != s.asked {
		return
	}
	if row.Used > s.Used {
		s.instance = "" // the worker may have registered in another process
	}
	row.Used = max(row.Used, s.Used)
	s.WorkerSession = row
	s.profile = m.profileOf(s)
	if s.next != nil && s.next.state == parked {
		m.recall(s.next)
	}
}

// gone ends the session of a worker without a row. Its parked poll is refused by
// the database.
func (m *memory) gone(number uint32) {
	if s := m.byNumber[number]; s != nil && s.batched == nil && s.reads == s.asked {
		m.changed(s)
	}
}

// closedGrace is how long a worker may take to poll again after the connection of its
// parked poll has closed.
const closedGrace = 10 * time.Second

// polled records that s has sent p. After a pause that is written soon, because another
// controller may have written that a connection of the worker closed.
func (s *session) polled(p *poll, now time.Time) {
	s.wait = p.wait
	s.returned = s.returned || !s.closed.IsZero() || now.Sub(s.seen) > closedGrace
	s.closed, s.closedWritten = time.Time{}, false
}

// due returns the beats to be written. Those of workers whose process names itself are
// written more often, because their rows tell for how long that process has been silent.
func (m *memory) due(now time.Time, every time.Duration) (beats []store.Presence) {
	for _, s := range m.byNumber {
		often := every
		if s.instance != "" {
			often = min(every, store.WorkerSilence/3)
		}
		closed := !s.closed.IsZero() && !s.closedWritten && now.Sub(s.closed) >= closedGrace
		// A beat between the close and its record could seem later than the close.
		if s.known && s.batched == nil && (closed || s.closed.IsZero() && s.seen.After(s.written) && (s.returned || now.Sub(s.written) >= often)) {
			beats = append(beats, store.Presence{Number: s.Number, Used: s.Used, Age: now.Sub(s.seen), Wait: s.wait, Closed: closed || s.closedWritten})
		}
	}
	return beats
}

// recorded records that the beats of the given workers were written, as of the given time.
func (m *memory) recorded(beats []store.Presence, workers []uint32, at time.Time) {
	written := make(map[uint32]bool, len(workers))
	for _, number := range workers {
		written[number] = true
	}
	for _, b := range beats {
		if s := m.byNumber[b.Number]; s != nil && s.known && written[b.Number] {
			s.written, s.returned = at, s.returned && s.seen.After(at)
			s.closedWritten = b.Closed && !s.closed.IsZero()
		}
	}
}
