package limiter

import (
	"cmp"
	"context"
	"sync"
	"time"

	"takt/store"
)

// Limit describes a [Limiter]: how many units can be held at once, and what happens to further
// callers.
type Limit struct {
	// Rule names the limit in refusals, which then also have the load; "" leaves both out.
	Rule string
	// Most is how many units there are, Each how many of them one share without a credential may
	// hold; 0 means Most. A trusted address may hold three times the units that are free.
	Most, Each int
	// AnonymousPart is the part that is for all shares without a credential, and no more of them: 4
	// means a quarter; 0 means that there is no such part.
	AnonymousPart int
	// Fair leaves units to others: a share may hold at most three times the units that are free,
	// and a credential seven times.
	Fair bool
	// Wait is how long further callers wait for a unit; 0 means not at all. Queue is how many
	// may wait, 0 means any number. In a fair limiter those of one share are at most three times
	// the free places, and those of a credential seven times.
	Wait  time.Duration
	Queue int
	// Refusal is the error for callers that get no unit; empty fields have defaults.
	Refusal store.Error
	// Refuse makes that error instead, if it is set. It is called without a lock.
	Refuse func(why Reason, load, limit int) error
}

// Reason is why a caller gets no unit.
type Reason int

// The reasons.
const (
	Taken   Reason = iota // no unit is free, and there is no waiting
	Crowded               // too many wait
	Late                  // no unit became free in time
)

// Forever is a Limit.Wait that only ends with the caller's context.
const Forever = time.Duration(1<<63 - 1)

// Limiter gives out the units of a [Limit].
type Limiter struct {
	limit Limit

	mu        sync.Mutex // guards what follows
	most      int
	taken     int
	cuttable  int // units that have a cut
	anonymous int // units held without a credential
	waiting   int
	peak      int  // most units held when one was given since Settle
	clock     uint // counts the turns: units that were given out, and shares that came
	counts    Counts
	none      share // the empty share
	shares    map[store.Share]*share
	all       map[string]*credential
	idle      []*share // those that are idle, or were when they were listed; the oldest first

	line          line[*credential] // those with waiters
	anonymousLine line[*credential] // those of them that are anonymous
}

// Counts describes a Limiter since its start.
type Counts struct {
	// Most is how many units there are, Held how many are held, Waiting how many callers wait.
	Most, Held, Waiting int
	// Refused counts the callers that got no unit, Expired those of them that waited in vain.
	Refused, Expired int64
	// Peak is how many units were held at most when one was given since the last Settle, QueuePeak
	// how many callers waited at most.
	Peak, QueuePeak int
}

// Unit is a unit that is held. The caller must call Release, once.
type Unit struct {
	l     *Limiter
	share *share
	cut   func(error) // see Take
	held  bool
	ready chan struct{} // of a waiter; closed when it holds the unit

	prev, next *Unit // in the share's list of held ones or of waiters
}

// New returns a Limiter whose units are all free.
func New(l Limit) *Limiter {
	l.Refusal.Code = cmp.Or(l.Refusal.Code, store.Overloaded)
	l.Refusal.Message = cmp.Or(l.Refusal.Message, "Too many requests, try again later")
	l.Queue = cmp.Or(l.Queue, 1<<30)
	made := &Limiter{limit: l, most: l.Most, shares: map[store.Share]*share{}, all: map[string]*credential{}}
	made.none.all = &credential{}
	return made
}

// Take takes a unit for who, and may wait for it. If no unit is free, the next caller gets the
// oldest unit of the credential that has most, of its share that has most, if that was taken
// with a cut; cut is then called with an error, under the Limiter's lock, so it must be quick.
// Errors: Limit.Refusal, or ctx's cause.
func (l *Limiter) Take(ctx context.Context, who store.Share, cut func(error)) (*Unit, error) {
	u := &Unit{l: l, cut: cut}
	l.mu.Lock()
	u.share = l.shareOf(who)
	why, load, limit := l.enter(u)
	l.tidy(u.share)
	l.mu.Unlock()
	switch {
	case limit > 0:
		return nil, l.refuse(why, load, limit)
	case u.ready == nil:
		return u, nil
	}
	timer := time.NewTimer(l.limit.Wait)
	defer timer.Stop()
	select {
	case <-u.ready:
		return u, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return l.leave(ctx, u)
}

// enter gives u a unit or a place in the line, or returns why it gets neither. The caller of
// this method and of those below holds mu, except for Release, leave and refuse.
func (l *Limiter) enter(u *Unit) (why Reason, load, limit int) {
	s := u.share
	switch {
	case s.anonymous() && !s.who.Trusted && l.limit.Each > 0 && s.held.n >= l.limit.Each:
		load, limit = s.held.n, l.limit.Each
	case l.free(s) || l.cutOldest(s):
		l.give(u)
		return Taken, 0, 0
	case l.limit.Wait == 0:
		load, limit = l.taken, max(l.most, 1)
	case l.waiting >= l.limit.Queue || !l.mayWait(s):
		why, load, limit = Crowded, l.waiting, max(l.limit.Queue, 1)
	default:
		l.queue(u)
		return Taken, 0, 0
	}
	l.counts.Refused++
	return why, load, limit
}

// Do calls f while it holds a unit for who, see Take.
func (l *Limiter) Do(ctx context.Context, who store.Share, f func() error) error {
	u, err := l.Take(ctx, who, nil)
	if err != nil {
		return err
	}
	defer u.Release()
	return f()
}

// Waited reports whether the unit was not free at once.
func (u *Unit) Waited() bool { return u.ready != nil }

// Release gives the unit back, unless it was cut.
func (u *Unit) Release() {
	l := u.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remove(u) {
		l.serve()
		l.tidy(u.share)
	}
}

// leave removes a waiter that has stopped waiting, and returns its error. If it has got a unit
// meanwhile, it keeps that and gets no error, unless its context has ended.
func (l *Limiter) leave(ctx context.Context, u *Unit) (*Unit, error) {
	l.mu.Lock()
	gone, held := ctx.Err() != nil, u.held
	if held && !gone {
		l.mu.Unlock()
		return u, nil
	}
	if held {
		l.remove(u)
		l.serve()
	} else {
		l.unqueue(u)
	}
	l.tidy(u.share)
	if !gone {
		l.counts.Refused++
		l.counts.Expired++
	}
	load, limit := l.taken+l.waiting+1, l.most
	l.mu.Unlock()
	if gone {
		return nil, context.Cause(ctx)
	}
	return nil, l.refuse(Late, load, limit)
}

// fair reports whether a share with own units may get another one while so many are free, and
// fairAll whether a credential may.
func fair(own, free int) bool    { return own < 3*free }
func fairAll(own, free int) bool { return own < 7*free }

// free reports whether a share may get a unit now.
func (l *Limiter) free(s *share) bool {
	free := l.room(s.anonymous())
	if free <= 0 {
		return false
	}
	return !l.limit.Fair && !s.who.Trusted || fair(s.held.n, free) && fairAll(s.all.held, free)
}

// room returns how many units are free for the shares without a credential, or for the others.
func (l *Limiter) room(anonymous bool) int {
	free := l.most - l.taken
	if l.limit.AnonymousPart == 0 {
		return free
	}
	part := max(1, l.most/l.limit.AnonymousPart)
	if anonymous {
		return min(free, part-l.anonymous)
	}
	return min(free, l.most-part-(l.taken-l.anonymous))
}

// mayWait reports whether another caller of a share may wait.
func (l *Limiter) mayWait(s *share) bool {
	free := l.limit.Queue - l.waiting
	return s == &l.none || fair(s.waiters.n, free) && fairAll(s.all.waiting, free)
}

func (l *Limiter) give(u *Unit) {
	l.taken++
	if u.cut != nil {
		l.cuttable++
	}
	l.clock++
	l.peak = max(l.peak, l.taken)
	u.held = true
	s := u.share
	s.served, s.all.served = l.clock, l.clock
	l.reorder(s)
	s.held.push(u)
	s.all.held++
	if s.anonymous() {
		l.anonymous++
	}
	if u.ready != nil {
		close(u.ready)
	}
}

// remove takes a unit from its holder. It returns false if the holder has lost it already.
func (l *Limiter) remove(u *Unit) bool {
	if !u.held {
		return false
	}
	u.held = false
	l.taken--
	if u.cut != nil {
		l.cuttable--
	}
	s := u.share
	s.held.remove(u)
	s.all.held--
	if s.anonymous() {
		l.anonymous--
	}
	return true
}

// cutOldest takes the oldest unit away from the heaviest share for the share of taker, if all are
// taken and it has a cut.
func (l *Limiter) cutOldest(taker *share) bool {
	if l.taken < l.most || l.cuttable == 0 {
		return false
	}
	var heaviest *share
	for _, s := range l.shares {
		if !s.who.Trusted && (heaviest == nil || cmp.Or(cmp.Compare(s.all.held, heaviest.all.held), cmp.Compare(s.held.n, heaviest.held.n)) > 0) {
			heaviest = s
		}
	}
	if heaviest == nil || heaviest.held.n == 0 || heaviest.held.first.cut == nil {
		return false
	}
	u := heaviest.held.first
	l.remove(u)
	if heaviest != taker {
		l.tidy(heaviest)
	}
	u.cut(l.refuse(Taken, l.most, l.most))
	return true
}

func (l *Limiter) refuse(why Reason, load, limit int) error {
	if l.limit.Refuse != nil {
		return l.limit.Refuse(why, load, limit)
	}
	e := l.limit.Refusal
	if l.limit.Rule != "" {
		e.Overload = &store.Overload{Rule: l.limit.Rule, Load: load, Limit: limit}
	}
	return &e
}

// Resize changes how many units there are. Units that are held stay.
func (l *Limiter) Resize(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = most
	l.serve()
}

// Settle is Counts, and begins Peak anew.
func (l *Limiter) Settle() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.count()
	l.peak = 0
	return c
}

// Counts returns how many units are held, and what has happened so far.
func (l *Limiter) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count()
}

func (l *Limiter) count() Counts {
	c := l.counts
	c.Most, c.Held, c.Waiting, c.Peak = l.most, l.taken, l.waiting, l.peak
	return c
}
