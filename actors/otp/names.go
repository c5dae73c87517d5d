package otp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Ref is a process by name. It stays valid when the process is restarted, because
// each use finds the current incarnation. The zero Ref finds nothing. Refs may be
// copied and compared.
type Ref struct{ name *refName }

type refName struct {
	sys  *System
	name string
}

// Ref returns a reference to the process that runs under name now or later.
func (s *System) Ref(name string) Ref { return Ref{&refName{s, name}} }

// Name returns the name.
func (r Ref) Name() string {
	if r.name == nil {
		return "(none)"
	}
	return r.name.name
}

// Whereis returns the current process, nil if there is none.
func (r Ref) Whereis() *Proc { return r.target() }

func (r Ref) target() *Proc {
	if r.name == nil {
		return nil
	}
	return r.name.sys.names.lookup(r.name.name)
}

// Await returns the process, waiting for it to be started or restarted until
// ctx ends. The error is an [ErrNoProc].
func (r Ref) Await(ctx context.Context) (*Proc, error) {
	if r.name == nil {
		return nil, &DownError{Name: r.Name(), Reason: ErrNoProc}
	}
	return r.name.sys.names.await(ctx, r.name.name)
}

// CallWait is [Call] for callers that want to wait for a restart instead of failing.
// It waits up to wait for a process to send the request to. A request that may have
// reached a process is never sent again.
func CallWait[R any](ctx context.Context, r Ref, wait time.Duration, req any) (R, error) {
	var none R
	gap, cancel := ctx, context.CancelFunc(nil)
	for {
		value, sent, err := call(ctx, r, req)
		var down *DownError
		if sent || !errors.As(err, &down) {
			return typed[R](r, value, err)
		}
		if cancel == nil { // only now, because most calls need no timer
			gap, cancel = context.WithTimeoutCause(ctx, wait, ErrTimeout)
			defer cancel()
		}
		if _, err := r.Await(gap); err != nil {
			return none, &DownError{Name: r.Name(), Reason: err}
		}
	}
}

// registry maps names to processes. A name is reserved before Init and becomes visible
// when Init has succeeded, so no half-made process is seen. It is freed before the end
// of the process can be seen.
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
	if o := r.owners[name]; o.shown {
		return o.p
	}
	return nil
}

// await returns the process of that name as soon as there is one.
func (r *registry) await(ctx context.Context, name string) (*Proc, error) {
	for {
		r.mu.Lock()
		o := r.owners[name]
		if !o.shown && r.shown == nil {
			r.shown = make(chan struct{})
		}
		shown := r.shown
		r.mu.Unlock()
		if o.shown {
			return o.p, nil
		}
		select {
		case <-shown:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for process %s: %w: %w", name, ErrNoProc, context.Cause(ctx))
		}
	}
}

// all returns the names that are taken, sorted.
func (r *registry) all() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.owners))
}
