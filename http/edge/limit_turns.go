package edge

import (
	"context"
	"slices"
	"sync"
	"time"

	"takt/store"
)

// turns limits how many transfers (files, or bodies that are not small) run at once;
// further ones wait. Each transfer belongs to a key: a worker, or else a remote address.
// Turns are given in order of arrival within a key, and to one key after the other. A key
// may hold at most three times what is free, so that a key with many slow transfers does
// not shut out the others.
type turns struct {
	name string
	most int // transfers that run at once

	mu      sync.Mutex // guards what follows
	running int
	given   int                 // turns given so far
	by      map[string]*turnKey // those with a transfer
	line    []*waiter           // in order of arrival
}

// turnKey is what one key holds.
type turnKey struct {
	running, waiting int
	served           int // turns.given when it was served last, or when it came
}

type waiter struct {
	*turnKey
	ready chan struct{} // closed when the turn has come
}

const (
	// turnTimeout is how long a transfer waits for its turn. After that, turnRetry is its
	// Retry-After.
	turnTimeout = 20 * time.Second
	turnRetry   = 5 * time.Second
	// TurnQueue is how many transfers may wait.
	TurnQueue = 1024
	// maxBodies is how many bodies with a right key, each of up to MaxJSON bytes, are in
	// memory at once.
	maxBodies = 256
)

func newTurns(name string, most int) *turns {
	return &turns{name: name, most: most, by: map[string]*turnKey{}}
}

// fair reports whether a key that holds own may have one more while so many are free.
func fair(own, free int) bool { return own < 3*free }

// take waits for a turn of key who. The caller must give it back. Errors: Overloaded, or
// ctx's cause.
func (t *turns) take(ctx context.Context, who string) error {
	w, err := t.enter(who)
	if err != nil {
		return err
	}
	timer := time.NewTimer(turnTimeout)
	defer timer.Stop()
	select {
	case <-w.ready:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return t.leave(ctx, who, w)
}

// enter adds a waiter, which may get its turn at once.
func (t *turns) enter(who string) (*waiter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.by[who]
	if k == nil {
		k = &turnKey{served: t.given}
	}
	if !fair(k.waiting, TurnQueue-len(t.line)) {
		return nil, t.overload(len(t.line), TurnQueue)
	}
	t.by[who] = k
	k.waiting++
	w := &waiter{k, make(chan struct{})}
	t.line = append(t.line, w)
	t.serve()
	return w, nil
}

// leave removes a waiter that has given up. If its turn came meanwhile, it keeps the turn,
// or gives it back if its client is gone.
func (t *turns) leave(ctx context.Context, who string, w *waiter) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.line, w); i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
		w.waiting--
	} else if ctx.Err() == nil {
		return nil
	} else {
		w.running--
		t.running--
	}
	t.tidy(who, w.turnKey)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return t.overload(t.running+len(t.line)+1, t.most)
}

func (t *turns) giveBack(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.by[who]
	k.running--
	t.running--
	t.tidy(who, k)
}

// tidy forgets a key that holds nothing any more, and serves the others.
func (t *turns) tidy(who string, k *turnKey) {
	if k.running+k.waiting == 0 {
		delete(t.by, who)
	}
	t.serve()
}

// serve gives turns to waiters that may have one: first to the key that was served longest
// ago.
func (t *turns) serve() {
	for t.running < t.most {
		next := -1
		for i, w := range t.line {
			if fair(w.running, t.most-t.running) && (next < 0 || w.served < t.line[next].served) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := t.line[next]
		t.line = slices.Delete(t.line, next, next+1)
		t.running++
		t.given++
		w.waiting--
		w.running++
		w.served = t.given
		close(w.ready)
	}
}

func (t *turns) overload(load, limit int) error {
	return &store.Error{
		Code: store.Overloaded, Message: "Too many transfers at once, try again later", RetryAfter: turnRetry,
		Overload: &store.Overload{Rule: t.name, Load: load, Limit: limit},
	}
}
