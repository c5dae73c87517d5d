package edge

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"takt/store"
)

// Limit describes a [Limiter]: how many units can be held at once, and what happens to
// further callers.
type Limit struct {
	// Rule names the limit in Refusal, which then also has the load; "" leaves both out.
	Rule string
	// Most is how many units there are, Each how many of them one share without a credential may
	// hold; 0 means Most. A known address may hold three times the units that are free.
	Most, Each int
	// Fair leaves units to others: a share may hold at most three times the units that are free,
	// and a credential seven times.
	Fair bool
	// Wait is how long further callers wait for a unit; 0 means not at all. Queue is how many
	// may wait, 0 means any number; those of one share are at most three times the free places,
	// and those of a credential seven times.
	Wait  time.Duration
	Queue int
	// Refusal is the error for callers that get no unit; empty fields have defaults.
	Refusal store.Error
}

// Limiter gives out the units of a [Limit]. Each caller has a [Share], whose part may also be a
// build; Each and the limit on a share's waiters don't apply to the empty share. Waiters of the
// same share are served in order of arrival, different credentials in turn, and different shares
// of a credential in turn. Safe for concurrent use.
type Limiter struct {
	Limit

	mu    sync.Mutex           // guards what follows
	taken int                  // units held now
	given int                  // units given out so far
	by    map[Share]*limitKey  // shares with units or waiters
	all   map[string]*limitAll // their credentials
	line  []*unit              // waiters, in order of arrival
}

// limitKey is what a share holds.
type limitKey struct {
	who     Share
	all     *limitAll
	held    []*unit // oldest first
	waiting int
	served  int // Limiter.given when the share last got a unit, or when it was added
}

// limitAll is what all shares of a credential hold; a share without one has its own.
type limitAll struct{ shares, held, waiting, served int }

// unit is a unit that is held or waited for.
type unit struct {
	*limitKey
	cut   func(error)   // see Take
	ready chan struct{} // of a waiter; closed when it holds the unit
}

// Forever is a Limit.Wait that only ends with the caller's context.
const Forever = time.Duration(1<<63 - 1)

// NewLimiter returns a Limiter whose units are all free.
func NewLimiter(l Limit) *Limiter {
	l.Refusal.Code = cmp.Or(l.Refusal.Code, store.Overloaded)
	l.Refusal.Message = cmp.Or(l.Refusal.Message, "Too many requests, try again later")
	l.Queue = cmp.Or(l.Queue, 1<<30)
	return &Limiter{Limit: l, by: map[Share]*limitKey{}, all: map[string]*limitAll{}}
}

// fair reports whether a share with own units may get another one while so many are free, and
// fairAll whether a credential may.
func fair(own, free int) bool    { return own < 3*free }
func fairAll(own, free int) bool { return own < 7*free }

// Take takes a unit for who, and may wait for it. Without an error the caller must call
// release. If no unit is free, the next caller gets the oldest unit of the credential that has
// most, of its share that has most, if that was taken with a cut; cut is then called with an
// error, under the Limiter's lock, so it must be quick. Errors: Refusal, or ctx's cause.
func (l *Limiter) Take(ctx context.Context, who Share, cut func(error)) (release func(), err error) {
	l.mu.Lock()
	k := l.key(who)
	u := &unit{limitKey: k, cut: cut}
	release = func() { l.release(u) }
	switch {
	case who.Part != "" && who.Credential == "" && !who.Known && l.Each > 0 && len(k.held) >= l.Each:
		err = l.refuse(len(k.held), l.Each)
	case l.free(k) || l.cutOldest(k):
		l.give(u)
	case l.Wait == 0:
		err = l.refuse(l.taken, l.Most)
	case len(l.line) >= l.Queue || !l.mayWait(k):
		err = l.refuse(len(l.line), l.Queue)
	default:
		u.ready = make(chan struct{})
		l.line = append(l.line, u)
		k.waiting++
		k.all.waiting++
	}
	l.tidy(k)
	l.mu.Unlock()
	if err != nil || u.ready == nil {
		return release, err
	}
	timer := time.NewTimer(l.Wait)
	defer timer.Stop()
	select {
	case <-u.ready:
		return release, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return release, l.leave(ctx, u)
}

// Do calls f while it holds a unit for who, see Take.
func (l *Limiter) Do(ctx context.Context, who Share, f func() error) error {
	release, err := l.Take(ctx, who, nil)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// key returns what a share holds, and adds it if it holds nothing. The caller of this method
// and those below holds mu, except for release and leave.
func (l *Limiter) key(who Share) *limitKey {
	k := l.by[who]
	if k != nil {
		return k
	}
	all := l.all[who.Credential]
	if all == nil || who.Credential == "" {
		all = &limitAll{served: l.given}
	}
	k = &limitKey{who: who, all: all, served: l.given}
	l.by[who] = k
	if all.shares++; who.Credential != "" {
		l.all[who.Credential] = all
	}
	return k
}

// free reports whether a share may get a unit now.
func (l *Limiter) free(k *limitKey) bool {
	free := l.Most - l.taken
	return free > 0 && (!l.Fair && !k.who.Known || fair(len(k.held), free) && fairAll(k.all.held, free))
}

// mayWait reports whether another caller of a share may wait.
func (l *Limiter) mayWait(k *limitKey) bool {
	free := l.Queue - len(l.line)
	return k.who.Part == "" || fair(k.waiting, free) && fairAll(k.all.waiting, free)
}

func (l *Limiter) give(u *unit) {
	l.taken++
	l.given++
	u.served, u.all.served = l.given, l.given
	u.held = append(u.held, u)
	u.all.held++
	if u.ready != nil {
		close(u.ready)
	}
}

// cutOldest takes the oldest unit away from the heaviest share for the share of taker, if all are
// taken and it has a cut.
func (l *Limiter) cutOldest(taker *limitKey) bool {
	if l.taken < l.Most {
		return false
	}
	var heaviest *limitKey
	for _, k := range l.by {
		if k.who.Part != "" && !k.who.Known && (heaviest == nil || cmp.Or(cmp.Compare(k.all.held, heaviest.all.held), cmp.Compare(len(k.held), len(heaviest.held))) > 0) {
			heaviest = k
		}
	}
	if heaviest == nil || len(heaviest.held) == 0 || heaviest.held[0].cut == nil {
		return false
	}
	u := heaviest.held[0]
	l.remove(u)
	if heaviest != taker {
		l.tidy(heaviest)
	}
	u.cut(l.refuse(l.Most, l.Most))
	return true
}

// remove takes a unit from its holder. It returns false if the holder has lost it already.
func (l *Limiter) remove(u *unit) bool {
	i := slices.Index(u.held, u)
	if i < 0 {
		return false
	}
	u.held = slices.Delete(u.held, i, i+1)
	u.all.held--
	l.taken--
	return true
}

// tidy forgets a share without units and waiters.
func (l *Limiter) tidy(k *limitKey) {
	if len(k.held)+k.waiting > 0 || l.by[k.who] != k {
		return
	}
	delete(l.by, k.who)
	if k.all.shares--; k.all.shares == 0 {
		delete(l.all, k.who.Credential)
	}
}

// serve gives free units to waiters, first to the credential, and of that to the share, that has
// got none for longest.
func (l *Limiter) serve() {
	for l.taken < l.Most {
		next := -1
		for i, u := range l.line {
			if l.free(u.limitKey) && (next < 0 || u.before(l.line[next])) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		u := l.line[next]
		l.line = slices.Delete(l.line, next, next+1)
		u.waiting--
		u.all.waiting--
		l.give(u)
	}
}

// before reports whether a waiter has its turn before another one that came earlier.
func (u *unit) before(other *unit) bool {
	return cmp.Or(cmp.Compare(u.all.served, other.all.served), cmp.Compare(u.served, other.served)) < 0
}

func (l *Limiter) release(u *unit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remove(u) {
		l.serve()
		l.tidy(u.limitKey)
	}
}

// leave removes a waiter that has stopped waiting, and returns its error. If it has got a unit
// meanwhile, it keeps that and gets no error, unless its context has ended.
func (l *Limiter) leave(ctx context.Context, u *unit) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.line, u); i >= 0 {
		l.line = slices.Delete(l.line, i, i+1)
		u.waiting--
		u.all.waiting--
		l.tidy(u.limitKey)
	} else if ctx.Err() == nil {
		return nil
	} else if l.remove(u) {
		l.serve()
		l.tidy(u.limitKey)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return l.refuse(l.taken+len(l.line)+1, l.Most)
}

func (l *Limiter) refuse(load, limit int) error {
	e := l.Refusal
	if l.Rule != "" {
		e.Overload = &store.Overload{Rule: l.Rule, Load: load, Limit: limit}
	}
	return &e
}
