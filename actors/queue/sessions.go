package queue

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"takt/actors/otp"
	"takt/store"
)

// session is a worker session with the polls of that worker. A worker has at most one poll in
// a batch and one outside.
type session struct {
	store.WorkerSession // valid if known; otherwise only Number or ID is set
	known               bool
	profile             *profile // according to the row; nil before that was read
	// stale is true if the row may have changed since it was read.
	stale bool
	// instance is the process of the worker that the database served last; "" if that named
	// none or is not known.
	instance string
	// seen is the time of the last poll, or while one is parked, of the last recount. written
	// is when seen was last written to the row. wait is how long the last poll may park.
	seen, written time.Time
	wait          time.Duration
	// closed is when the connection of the worker's parked poll closed before the answer, answered
	// when its last poll was answered with builds; zero if the worker has polled since.
	// closedWritten is true if the row says that it does not poll. returned is true if the worker
	// polls again but the row may say that it does not.
	closed, answered        time.Time
	closedWritten, returned bool
	every                   time.Duration // between its last two polls
	// elsewhere is true if another controller has answered the worker since its last poll here.
	elsewhere bool
	// reads is how often a batch has read the row; asked is reads when the last recount that
	// included the session began.
	reads, asked int
	batched      *poll // in a batch
	next         *poll // in no batch
}

// foreign reports whether p names a process that may not be the one that holds the worker.
func (s *session) foreign(p *poll) bool {
	return p.req.Instance != "" && (s.stale || p.req.Instance != s.instance)
}

// refuse returns why p is refused, nil if that is not certain. A stale session can't refuse a
// process that names itself, because another one may hold the worker now, and p's error must
// say so.
func (s *session) refuse(p *poll) error {
	switch shown := p.req.Token.Counter; {
	case !s.known || p.req.Token.Worker == 0:
		return nil
	case p.req.WorkerID != "" && p.req.WorkerID != s.ID:
		return store.ErrInvalidToken()
	case shown > s.Used:
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

// sessionOf returns the session of the worker that sent req, a new one if there is none.
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

// file makes s findable by its number and id.
func (m *memory) file(s *session) {
	if s.Number != 0 {
		m.byNumber[s.Number] = s
	}
	if s.ID != "" {
		m.byID[s.ID] = s
	}
}

// forget removes s, or only makes it unknown while it has polls.
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

// learn stores the row of p's worker. A worker that has polled both with its token and by
// its id has two sessions until then, which are merged.
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
	if len(newJobs(r)) > 0 {
		s.written, s.answered, s.returned = now, now, false
	}
	m.file(s)
}

// merge moves the poll of one session to another. Of two polls the newer one stays.
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

// changed records that the row of s may have changed. A parked poll goes to the database. s
// may be nil.
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

// freed records that a build of s has ended. Its row is not read for that: the batch of the
// worker's next poll locks it anyway, and a wrong number of held builds, for example after a
// repeated result, is found by the next recount. An end may change more of a worker that gets no
// builds. s may be nil.
func (m *memory) freed(s *session) {
	if s == nil || !s.known || s.stale || s.batched != nil || s.Held == 0 || s.Drained {
		m.changed(s)
		return
	}
	s.Held--
	if s.next != nil && s.next.state == parked {
		m.recall(s.next)
	}
}

// forgetIdle removes s if it has no polls.
func (m *memory) forgetIdle(s *session) {
	if s.batched == nil && s.next == nil {
		m.forget(s)
	}
}

// missed records that notifications may have been lost, so every row must be read again.
func (m *memory) missed() {
	m.pending.counted = time.Time{}
	m.pending.changes.Add(1)
	m.lost = true
	for _, s := range m.byNumber {
		s.stale = true
		m.forgetIdle(s)
	}
}

// readAtOnce is about how many sessions' rows one recount reads. With more sessions each row
// is read less often, because reading 100 000 takes most of a second.
const readAtOnce = 10_000

// known returns the sessions whose rows the recount should read, and forgets those of workers
// that have been silent.
func (m *memory) known(now time.Time) (list []store.WorkerSession) {
	m.dropProfiles()
	parts := 1 + len(m.byNumber)/readAtOnce
	if m.part++; m.lost {
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
		case int(s.Number)%parts == m.part%parts:
			s.asked = s.reads
			list = append(list, s.WorkerSession)
		}
	}
	return list
}

// corrected stores a row that has changed, unless a batch has read it since. A parked poll
// goes to the database.
func (m *memory) corrected(row store.WorkerSession) {
	s := m.byNumber[row.Number]
	if s == nil || !s.known || s.batched != nil || s.reads != s.asked {
		return
	}
	if row.Used > s.Used {
		s.instance = "" // the worker may have registered in another process
		s.elsewhere = true
	}
	row.Used = max(row.Used, s.Used)
	s.WorkerSession = row
	s.profile = m.profileOf(s)
	if s.next != nil && s.next.state == parked {
		m.recall(s.next)
	}
}

// gone handles that a worker has no row any more. Its parked poll goes to the database, which
// refuses it.
func (m *memory) gone(number uint32) {
	if s := m.byNumber[number]; s != nil && s.batched == nil && s.reads == s.asked {
		m.changed(s)
	}
}

// closedGrace is how long a worker may take to poll again after the connection of its
// parked poll has closed.
const closedGrace = 10 * time.Second

// polled records that the worker has sent p. After a pause, the next recount writes that,
// because another controller may have written that a connection of the worker closed.
func (s *session) polled(p *poll, now time.Time) {
	s.wait, s.every = p.wait, min(now.Sub(s.seen), store.MaxPollEvery)
	s.returned = s.returned || !s.closed.IsZero() || s.closedWritten || now.Sub(s.seen) > closedGrace
	s.closed, s.answered, s.closedWritten = time.Time{}, time.Time{}, false
	s.elsewhere = false
}

// quit returns when the worker stopped to poll although it has room for builds; zero if it did not.
// A worker that does not park its polls takes its time.
func (s *session) quit() time.Time {
	if s.closed.IsZero() && s.wait > 0 && s.Free() {
		return s.answered
	}
	return s.closed
}

// due returns the heartbeats to write. Those of a worker whose process names itself are written
// more often, because another process may register as the worker once this one has been
// silent for store.WorkerSilence.
func (m *memory) due(now time.Time, every time.Duration) (heartbeats []store.Presence) {
	for _, s := range m.byNumber {
		often := every
		if s.instance != "" {
			often = min(every, store.WorkerSilence/3)
		}
		quit := s.quit()
		closed := !quit.IsZero() && !s.closedWritten && now.Sub(quit) >= closedGrace
		// Until the close is written no other heartbeat is, because it could seem to be later.
		if s.known && s.batched == nil && (closed || quit.IsZero() && s.seen.After(s.written) && (s.returned || now.Sub(s.written) >= often)) {
			heartbeats = append(heartbeats, store.Presence{Number: s.Number, Used: s.Used, Age: now.Sub(s.seen), Wait: s.wait, Every: s.every, Closed: closed || s.closedWritten})
		}
	}
	return heartbeats
}

// recorded records that the heartbeats of workers, as of the time at, need not be written again.
func (m *memory) recorded(heartbeats []store.Presence, workers []uint32, at time.Time) {
	written := make(map[uint32]bool, len(workers))
	for _, number := range workers {
		written[number] = true
	}
	for _, b := range heartbeats {
		if s := m.byNumber[b.Number]; s != nil && s.known && written[b.Number] {
			s.written, s.returned = at, s.returned && s.seen.After(at)
			s.closedWritten = b.Closed && !s.quit().IsZero()
		}
	}
}

// poll is one request of a worker. Its caller fills the first group and sends the poll to
// the actor; from then on that group is immutable. All other fields are actor only.
type poll struct {
	req     store.PollRequest
	arrived time.Time     // on this controller's clock
	wait    time.Duration // how long it may be parked; 0: not at all
	out     chan answer   // has room for one answer, so sending never blocks
	span    trace.Span    // of the request; nil unless it is recorded

	no      uint64 // order of arrival, from 1
	session *session
	state   state
	// in is the list of waiting or parked polls that has it, at is its element there.
	at *list.Element
	in *list.List
	// wasParked is true once it was parked. handed is the session's Handed at that time.
	wasParked bool
	handed    uint64
	takes     *profile // its worker's when it parked; nil if that had no free slot
	wokenFor  *class   // nil if it was not woken
	gone      bool     // its caller left while it was in a batch
	counted   bool     // memory.admitted includes it
	// lockedAt is when its worker's row was first found locked by another transaction; zero
	// if it is not locked. locked is how often it was found locked since then.
	lockedAt time.Time
	locked   int
}

// state is the state of a poll.
type state uint8

const (
	blocked   state = iota // an older poll of the same worker is in a batch
	waiting                // waits for the next batch
	batched                // is in a batch
	parked                 // waits for a build
	postponed              // its worker's row is locked; waits for a timer
	ended                  // is answered, or its caller has left
)

// answer is what a poll's caller receives.
type answer struct {
	store.PollReply
	next store.WorkerToken // the reply's token, not yet signed; zero: the one presented
	err  error
}

// answer sends a to the caller, unless it was answered before.
func (p *poll) answer(a answer) {
	select {
	case p.out <- a:
	default:
	}
}

// idle answers that there is no build, with the next token of p's session.
func (p *poll) idle(queueSize int) {
	s := p.session
	p.answer(answer{
		PollReply: store.PollReply{QueueSize: queueSize},
		next:      store.WorkerToken{Worker: s.Number, Counter: max(s.Used, p.req.Token.Counter) + 1},
	})
}

// put puts p into a list, in the order of arrival. It searches from both ends, because a poll
// that is put back usually arrived before most others, and one that a batch has just served
// after most others.
func (p *poll) put(l *list.List, s state) {
	p.in, p.state = l, s
	numberOf := func(e *list.Element) uint64 { return e.Value.(*poll).no } // polls only
	front, back := l.Front(), l.Back()
	for back != nil && numberOf(front) < p.no && numberOf(back) > p.no {
		front, back = front.Next(), back.Prev()
	}
	switch {
	case back == nil:
		p.at = l.PushBack(p)
	case numberOf(back) < p.no:
		p.at = l.InsertAfter(p, back)
	default:
		p.at = l.InsertBefore(p, front)
	}
}

// unlist takes p out of the list that it is in.
func (p *poll) unlist() {
	if p.at != nil {
		p.in.Remove(p.at)
		p.in, p.at = nil, nil
	}
}

var (
	errTooSlow = errors.New("no batch took the poll in time")
	errClosing = errors.New("server closed")
)

// receive waits for p's answer, or for the end of ctx, the server (closing) or the actor. When
// p's wait is over it sends expired to the actor, and fails if there is no answer within
// patience after that. An answer that has arrived is returned in any case.
func (p *poll) receive(ctx context.Context, closing <-chan struct{}, proc *otp.Proc, patience time.Duration) (answer, error) {
	timer := time.NewTimer(cmp.Or(p.wait, patience))
	defer timer.Stop()
	var err error
	for expires := p.wait > 0; err == nil; {
		select {
		case a := <-p.out:
			return a, a.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-closing:
			err = restarting(errClosing)
		case <-timer.C:
			if expires {
				expires = false
				otp.Cast(proc, expired{p})
				timer.Reset(patience)
				continue
			}
			err = store.NewUnavailable("Queue is too slow, try again", errTooSlow)
		case <-proc.Done():
			err = restarting(&otp.DownError{Name: proc.Name(), Reason: proc.Reason()})
		}
	}
	otp.Cast(proc, leave{poll: p, closed: errors.Is(err, context.Canceled)})
	select {
	case a := <-p.out:
		return a, a.err
	default:
		return answer{}, err
	}
}
