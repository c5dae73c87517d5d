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
	// Most is how many units there are, Each how many of them one key may hold; 0 means Most.
	Most, Each int
	// Fair leaves units to other keys: a key may hold at most three times the units that are
	// free.
	Fair bool
	// Wait is how long further callers wait for a unit; 0 means not at all. Queue is how many
	// may wait, 0 means any number; those of one key are at most three times the free places.
	Wait  time.Duration
	Queue int
	// Refusal is the error for callers that get no unit; empty fields have defaults.
	Refusal store.Error
}

// Limiter gives out the units of a [Limit]. Each caller has a key, such as a worker, a remote
// address or a build; Each and the limit on a key's waiters don't apply to the key "". Waiters
// with the same key are served in order of arrival, different keys in turn. Safe for concurrent
// use.
type Limiter struct {
	Limit

	mu    sync.Mutex           // guards what follows
	taken int                  // units held now
	given int                  // units given out so far
	by    map[string]*limitKey // keys with units or waiters
	line  []*unit              // waiters, in order of arrival
}

// limitKey is what a key holds.
type limitKey struct {
	name    string
	held    []*unit // oldest first
	waiting int
	served  int // Limiter.given when the key last got a unit, or when it was added
}

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
	return &Limiter{Limit: l, by: map[string]*limitKey{}}
}

// fair reports whether a key with own units may get another one while so many are free.
func fair(own, free int) bool { return own < 3*free }

// Take takes a unit for the key who, and may wait for it. Without an error the caller must
// call release. If no unit is free, the next caller gets the oldest unit of the key with most
// units, if that was taken with a cut; cut is then called with an error, under the Limiter's
// lock, so it must be quick. Errors: Refusal, or ctx's cause.
func (l *Limiter) Take(ctx context.Context, who string, cut func(error)) (release func(), err error) {
	l.mu.Lock()
	k := l.by[who]
	if k == nil {
		k = &limitKey{name: who, served: l.given}
	}
	u := &unit{limitKey: k, cut: cut}
	release = func() { l.release(u) }
	switch {
	case who != "" && l.Each > 0 && len(k.held) >= l.Each:
		err = l.refuse(len(k.held), l.Each)
	case l.free(k) || l.cutOldest():
		l.give(u)
	case l.Wait == 0:
		err = l.refuse(l.taken, l.Most)
	case len(l.line) >= l.Queue || who != "" && !fair(k.waiting, l.Queue-len(l.line)):
		err = l.refuse(len(l.line), l.Queue)
	default:
		u.ready = make(chan struct{})
		l.line, l.by[who] = append(l.line, u), k
		k.waiting++
	}
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

// Do calls f while it holds a unit of a key, see Take.
func (l *Limiter) Do(ctx context.Context, who string, f func() error) error {
	release, err := l.Take(ctx, who, nil)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// free reports whether a key may get a unit now. The caller of this method and those below
// holds mu, except for release and leave.
func (l *Limiter) free(k *limitKey) bool {
	return l.taken < l.Most && (!l.Fair || fair(len(k.held), l.Most-l.taken))
}

func (l *Limiter) give(u *unit) {
	l.taken++
	l.given++
	l.by[u.name], u.served = u.limitKey, l.given
	u.held = append(u.held, u)
	if u.ready != nil {
		close(u.ready)
	}
}

// cutOldest takes the oldest unit away from the key that holds most, if it has a cut.
func (l *Limiter) cutOldest() bool {
	var heaviest *limitKey
	for name, k := range l.by {
		if name != "" && (heaviest == nil || len(k.held) > len(heaviest.held)) {
			heaviest = k
		}
	}
	if heaviest == nil || len(heaviest.held) == 0 || heaviest.held[0].cut == nil {
		return false
	}
	u := heaviest.held[0]
	l.remove(u)
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
	l.taken--
	l.tidy(u.limitKey)
	return true
}

// tidy forgets a key without units and waiters.
func (l *Limiter) tidy(k *limitKey) {
	if len(k.held)+k.waiting == 0 {
		delete(l.by, k.name)
	}
}

// serve gives free units to waiters, first to the key that has got none for longest.
func (l *Limiter) serve() {
	for l.taken < l.Most {
		next := -1
		for i, u := range l.line {
			if l.free(u.limitKey) && (next < 0 || u.served < l.line[next].served) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		u := l.line[next]
		l.line = slices.Delete(l.line, next, next+1)
		u.waiting--
		l.give(u)
	}
}

func (l *Limiter) release(u *unit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remove(u) {
		l.serve()
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
		l.tidy(u.limitKey)
	} else if ctx.Err() == nil {
		return nil
	} else if l.remove(u) {
		l.serve()
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
