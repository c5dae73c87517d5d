package otp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// registry maps names to processes. A name is reserved before Init and
// shown when that has succeeded, so nobody sees a half-made one;
// it is freed before the end of the process can be noticed.
type registry struct {
	mu    sync.RWMutex // guards what follows
	owner map[string]*Proc
	waits map[string][]chan struct{} // closed when the name appears
}

func newRegistry() *registry {
	return &registry{owner: map[string]*Proc{}, waits: map[string][]chan struct{}{}}
}

// reserve takes name for p, or returns the process that has it.
func (r *registry) reserve(name string, p *Proc) *Proc {
	if name == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.owner[name]; other != nil {
		return other
	}
	r.owner[name] = p
	return nil
}

// publish makes p visible under name and wakes those who wait for it.
func (r *registry) publish(name string, p *Proc) {
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner[name] != p {
		return // released meanwhile: an orphan
	}
	p.shown.Store(true)
	for _, wait := range r.waits[name] {
		close(wait)
	}
	delete(r.waits, name)
}

// release frees name if p has it.
func (r *registry) release(name string, p *Proc) {
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner[name] == p {
		delete(r.owner, name)
	}
}

// lookup returns the visible process of that name, or nil.
func (r *registry) lookup(name string) *Proc {
	r.mu.RLock()
	p := r.owner[name]
	r.mu.RUnlock()
	if p == nil || !p.shown.Load() {
		return nil
	}
	return p
}

// await returns the process of that name as soon as there is one.
func (r *registry) await(ctx context.Context, name string) (*Proc, error) {
	for {
		p, wait := r.lookupOrWait(name)
		if p != nil {
			return p, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			r.forget(name, wait)
			return nil, fmt.Errorf("waiting for process %s: %w: %w", name, ErrNoProc, context.Cause(ctx))
		}
	}
}

func (r *registry) lookupOrWait(name string) (*Proc, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.owner[name]; p != nil && p.shown.Load() {
		return p, nil
	}
	wait := make(chan struct{})
	r.waits[name] = append(r.waits[name], wait)
	return nil, wait
}

func (r *registry) forget(name string, wait chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := slices.DeleteFunc(r.waits[name], func(c chan struct{}) bool { return c == wait })
	if len(rest) == 0 {
		delete(r.waits, name)
		return
	}
	r.waits[name] = rest
}

// all returns the names that are taken, sorted.
func (r *registry) all() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.owner))
}
