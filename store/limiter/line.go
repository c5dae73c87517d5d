package limiter

import (
	"container/heap"

	"takt/store"
)

// share is what a [store.Share] holds and waits for.
type share struct {
	who     store.Share
	all     *credential
	held    units // oldest first
	waiters units // first come first
	served  uint  // Limiter.clock when the share last got a unit, or when it came
	at      int   // its index in all.line, if it has waiters
	idle    bool  // it has neither units nor waiters
	listed  bool  // it is in Limiter.idle
}

// anonymous reports whether it is a client that has shown no credential.
func (s *share) anonymous() bool { return s.who.Credential == "" && s.who.Part != "" }

// credential is what all shares of a credential hold; a share without one has its own.
type credential struct {
	shares, active, held, waiting int // active are the shares that are not idle
	anonymous                     bool
	served                        uint
	line                          line[*share] // those with waiters
	at                            int          // its index in its line of the Limiter, if there are any
}

func (s *share) turn() (served uint, at *int)      { return s.served, &s.at }
func (c *credential) turn() (served uint, at *int) { return c.served, &c.at }

// line is those with waiters, as a heap: first who has got no unit for longest.
type line[T interface{ turn() (uint, *int) }] []T

func (l line[T]) Len() int { return len(l) }

func (l line[T]) Less(i, j int) bool {
	a, _ := l[i].turn()
	b, _ := l[j].turn()
	return a < b
}

func (l line[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	_, a := l[i].turn()
	_, b := l[j].turn()
	*a, *b = i, j
}

func (l *line[T]) Push(x any) {
	t := x.(T) // only heap.Push calls it
	_, at := t.turn()
	*at = len(*l)
	*l = append(*l, t)
}

func (l *line[T]) Pop() any {
	last := len(*l) - 1
	t := (*l)[last]
	var none T
	(*l)[last] = none
	*l = (*l)[:last]
	return t
}

// maxIdle is how many idle shares are remembered, because most callers come again soon.
const maxIdle = 1024

// shareOf returns what a share holds, and adds it if it is not known.
func (l *Limiter) shareOf(who store.Share) *share {
	if who == (store.Share{}) {
		return &l.none
	}
	s := l.shares[who]
	if s == nil {
		s = &share{who: who, all: l.all[who.Credential], idle: true}
		if l.shares[who] = s; s.all == nil {
			s.all = &credential{anonymous: s.anonymous()}
		}
		if s.all.shares++; who.Credential != "" {
			l.all[who.Credential] = s.all
		}
	}
	if s.idle { // it comes
		l.clock++
		s.idle, s.served = false, l.clock
		if s.all.active++; s.all.active == 1 {
			s.all.served = l.clock
		}
	}
	return s
}

// tidy makes a share without units and waiters idle, and forgets the oldest of too many idle ones.
func (l *Limiter) tidy(s *share) {
	if s.held.n+s.waiters.n > 0 || s == &l.none || s.idle {
		return
	}
	s.idle = true
	s.all.active--
	if !s.listed {
		s.listed = true
		l.idle = append(l.idle, s)
	}
	if len(l.idle) <= maxIdle {
		return
	}
	old := l.idle[0]
	l.idle, old.listed = l.idle[1:], false
	if !old.idle {
		return
	}
	delete(l.shares, old.who)
	if old.all.shares--; old.all.shares == 0 {
		delete(l.all, old.who.Credential)
	}
}

// lineOf returns the line in which a credential waits.
func (l *Limiter) lineOf(c *credential) *line[*credential] {
	if c.anonymous {
		return &l.anonymousLine
	}
	return &l.line
}

// queue adds a waiter.
func (l *Limiter) queue(u *Unit) {
	u.ready = make(chan struct{})
	s := u.share
	if s.waiters.push(u); s.waiters.n == 1 {
		heap.Push(&s.all.line, s)
	}
	if s.all.waiting++; s.all.waiting == 1 {
		heap.Push(l.lineOf(s.all), s.all)
	}
	l.waiting++
	l.counts.QueuePeak = max(l.counts.QueuePeak, l.waiting)
}

// unqueue removes a waiter.
func (l *Limiter) unqueue(u *Unit) {
	s := u.share
	if s.waiters.remove(u); s.waiters.n == 0 {
		heap.Remove(&s.all.line, s.at)
	}
	if s.all.waiting--; s.all.waiting == 0 {
		heap.Remove(l.lineOf(s.all), s.all.at)
	}
	l.waiting--
}

// reorder moves a share that was served behind the others, if it has waiters.
func (l *Limiter) reorder(s *share) {
	if s.waiters.n > 0 {
		heap.Fix(&s.all.line, s.at)
	}
	if s.all.waiting > 0 {
		heap.Fix(l.lineOf(s.all), s.all.at)
	}
}

// serve gives free units to waiters, first to the credential, and of that to the share, that has
// got none for longest. All code that frees units has to call it, so that no later caller gets
// one before them.
func (l *Limiter) serve() {
	for l.taken < l.most && l.waiting > 0 {
		u := l.first()
		if u == nil {
			return
		}
		l.unqueue(u)
		l.give(u)
	}
}

// first returns the waiter whose turn it is, nil if those that wait may not get a unit now.
func (l *Limiter) first() *Unit {
	u := l.firstOf(&l.line)
	if l.room(true) <= 0 {
		return u
	}
	if other := l.firstOf(&l.anonymousLine); u == nil || other != nil && other.share.all.served < u.share.all.served {
		return other
	}
	return u
}

// firstOf is first for one line. Those that may not get a unit hold many, so that there are few.
func (l *Limiter) firstOf(in *line[*credential]) (u *Unit) {
	var passed []*credential
	for u == nil && len(*in) > 0 {
		all := (*in)[0]
		var skipped []*share
		for u == nil && len(all.line) > 0 {
			if s := all.line[0]; l.free(s) {
				u = s.waiters.first
			} else {
				skipped = append(skipped, s)
				heap.Pop(&all.line)
			}
		}
		for _, s := range skipped {
			heap.Push(&all.line, s)
		}
		if u == nil {
			passed = append(passed, all)
			heap.Pop(in)
		}
	}
	for _, all := range passed {
		heap.Push(in, all)
	}
	return u
}

// units is a list of units. Each unit is in one at most.
type units struct {
	first, last *Unit
	n           int
}

func (l *units) push(u *Unit) {
	if u.prev = l.last; u.prev != nil {
		u.prev.next = u
	} else {
		l.first = u
	}
	l.last = u
	l.n++
}

func (l *units) remove(u *Unit) {
	if u.prev != nil {
		u.prev.next = u.next
	} else {
		l.first = u.next
	}
	if u.next != nil {
		u.next.prev = u.prev
	} else {
		l.last = u.prev
	}
	u.prev, u.next = nil, nil
	l.n--
}
