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
type Ref struct{ *refName }

// refName is what a Ref points to, so that a Ref as a [Target] needs no allocation.
type refName struct {
	names *names
	name  string
}

// Ref returns a reference to the process that runs under name now or later.
func (s *System) Ref(name string) Ref { return Ref{&refName{&s.names, name}} }

// Name returns the name.
func (r Ref) Name() string {
	if r.refName == nil {
		return "(none)"
	}
	return r.name
}

// Whereis returns the current process, nil if there is none.
func (r Ref) Whereis() *Proc {
	if r.refName == nil {
		return nil
	}
	r.names.mu.RLock()
	defer r.names.mu.RUnlock()
	if p := r.names.owners[r.name]; p != nil && p.shown {
		return p
	}
	return nil
}

// Await returns the process, waiting for it to be started or restarted until
// ctx ends. The error is an [ErrNoProc].
func (r Ref) Await(ctx context.Context) (*Proc, error) {
	if r.refName == nil {
		return nil, &DownError{Name: r.Name(), Reason: ErrNoProc}
	}
	for {
		r.names.mu.Lock()
		p := r.names.owners[r.name]
		if p != nil && p.shown {
			r.names.mu.Unlock()
			return p, nil
		}
		if r.names.next == nil {
			r.names.next = make(chan struct{})
		}
		next := r.names.next
		r.names.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for process %s: %w: %w", r.name, ErrNoProc, context.Cause(ctx))
		}
	}
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

// Whereis returns the process registered under name, nil if there is none.
func (s *System) Whereis(name string) *Proc { return s.Ref(name).Whereis() }

// Names returns the registered names, sorted, including those of processes that are
// still starting.
func (s *System) Names() []string {
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.names.owners))
}

// names maps names to processes. A process takes its name before Init, and shows
// it when Init has succeeded, so no unfinished process is seen. The name is freed before the
// end of the process can be seen.
type names struct {
	mu     sync.RWMutex // guards what follows, and the shown and hidden of processes
	owners map[string]*Proc
	next   chan struct{} // closed when the next name is shown; nil: no caller waits
}

// takeName takes p's name, as the first thing that a process does. Orphans and what they
// start get none, because the successors need the names.
func (p *Proc) takeName() error {
	n := &p.sys.names
	n.mu.Lock()
	defer n.mu.Unlock()
	p.hidden = p.hidden || p.parent != nil && p.parent.p.hidden
	if p.name == "" || p.hidden {
		return nil
	}
	if other := n.owners[p.name]; other != nil {
		return &AlreadyStartedError{Proc: other}
	}
	n.owners[p.name] = p
	return nil
}

// showName makes p visible under its name, unless it became an orphan meanwhile, and
// wakes callers that wait for a name.
func (p *Proc) showName() {
	n := &p.sys.names
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owners[p.name] != p {
		return
	}
	p.shown = true
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// freeName frees p's name, if p has it. An orphan that hides gets no name again.
func (p *Proc) freeName(hide bool) {
	n := &p.sys.names
	n.mu.Lock()
	defer n.mu.Unlock()
	p.hidden = p.hidden || hide
	if n.owners[p.name] == p {
		delete(n.owners, p.name)
	}
}
