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
}

// guest reports whether it is a client that has shown no credential.
func (s *share) guest() bool { return s.who.Credential == "" && s.who.Part != "" }

// credential is what all shares of a credential hold; a share without one has its own.
type credential struct {
	shares, held, waiting int
	guest                 bool
	served                uint
	line                  line[*share] // those with waiters
	at                    int          // its index in its line of the Limiter, if there are any
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
	t := x.(T) //nolint:forcetypeassert // only heap.Push calls it
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

// maxSpare is how many unused shares are kept.
const maxSpare = 64

// shareOf returns what a share holds, and adds it if it holds nothing.
func (l *Limiter) shareOf(who store.Share) *share {
	if who == (store.Share{}) {
		return &l.none
	}
	s := l.shares[who]
	if s != nil {
		return s
	}
	if n := len(l.spare) - 1; n >= 0 {
		s, l.spare = l.spare[n], l.spare[:n]
	} else {
		s = &share{all: &credential{}}
	}
	l.clock++
	s.who, s.served = who, l.clock
	l.shares[who] = s
	all, known := l.all[who.Credential]
	switch {
	case known:
		s.all = all
	case who.Credential != "":
		l.all[who.Credential] = s.all
	}
	if !known {
		s.all.served, s.all.guest = l.clock, s.guest()
	}
	s.all.shares++
	return s
}

// tidy forgets a share without units and waiters.
func (l *Limiter) tidy(s *share) {
	if s.held.n+s.waiters.n > 0 || l.shares[s.who] != s {
		return
	}
	delete(l.shares, s.who)
	if s.all.shares--; s.all.shares > 0 {
		return // what is left needs s.all
	}
	if s.who.Credential != "" {
		delete(l.all, s.who.Credential)
	}
	if len(l.spare) < maxSpare {
		l.spare = append(l.spare, s)
	}
}

// lineOf returns the line in which a credential waits.
func (l *Limiter) lineOf(c *credential) *line[*credential] {
	if c.guest {
		return &l.strangers
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
	if other := l.firstOf(&l.strangers); u == nil || other != nil && other.share.all.served < u.share.all.served {
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
