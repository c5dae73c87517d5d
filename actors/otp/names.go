package otp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// registry maps names to processes. A name is reserved before Init and shown
// when that has succeeded, so nobody sees a half-made process; it is freed before
// the end of the process can be noticed.
type registry struct {
	mu     sync.RWMutex // guards what follows
	owners map[string]owner
	shown  chan struct{} // closed when the next name is shown; nil: nobody waits
}

// owner is who has a name.
type owner struct {
	p     *Proc
	shown bool
}

func newRegistry() *registry { return &registry{owners: map[string]owner{}} }

// reserve takes name for p, or returns the process that has it.
func (r *registry) reserve(name string, p *Proc) *Proc {
	if name == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, taken := r.owners[name]; taken {
		return other.p
	}
	r.owners[name] = owner{p: p}
	return nil
}

// publish makes p visible under name, unless it became an orphan meanwhile, and
// wakes those who wait for a name.
func (r *registry) publish(name string, p *Proc) {
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[name].p != p {
		return
	}
	r.owners[name] = owner{p: p, shown: true}
	if r.shown != nil {
		close(r.shown)
		r.shown = nil
	}
}

// release frees name if p has it.
func (r *registry) release(name string, p *Proc) {
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[name].p == p {
		delete(r.owners, name)
	}
}

// lookup returns the visible process of that name, or nil.
func (r *registry) lookup(name string) *Proc {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.lookupLocked(name)
}

func (r *registry) lookupLocked(name string) *Proc {
	if o := r.owners[name]; o.shown {
		return o.p
	}
	return nil
}

// await returns the process of that name as soon as there is one.
func (r *registry) await(ctx context.Context, name string) (*Proc, error) {
	for {
		p, shown := r.lookupOrWait(name)
		if p != nil {
			return p, nil
		}
		select {
		case <-shown:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for process %s: %w: %w", name, ErrNoProc, context.Cause(ctx))
		}
	}
}

func (r *registry) lookupOrWait(name string) (*Proc, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.lookupLocked(name); p != nil {
		return p, nil
	}
	if r.shown == nil {
		r.shown = make(chan struct{})
	}
	return nil, r.shown
}

// all returns the names that are taken, sorted.
func (r *registry) all() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.owners))
}
