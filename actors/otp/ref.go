package otp

import (
	"context"
	"errors"
	"time"
)

// Ref is a process by name. It stays valid when the process is restarted: each
// use finds the incarnation of the moment. The zero Ref finds nothing. Refs may
// be copied and compared.
type Ref struct{ name *refName }

type refName struct {
	sys  *System
	name string
}

// Ref returns the reference to whatever runs under name now or later.
func (s *System) Ref(name string) Ref { return Ref{&refName{s, name}} }

// Name returns the name.
func (r Ref) Name() string {
	if r.name == nil {
		return "(none)"
	}
	return r.name.name
}

// Whereis returns the process of the moment, nil if there is none.
func (r Ref) Whereis() *Proc {
	if r.name == nil {
		return nil
	}
	return r.name.sys.names.lookup(r.name.name)
}

func (r Ref) target() (*Proc, string) { return r.Whereis(), r.Name() }

// Await returns the process, waiting for it to be started or restarted until
// ctx ends. The error is an [ErrNoProc].
func (r Ref) Await(ctx context.Context) (*Proc, error) {
	if r.name == nil {
		return nil, &DownError{Name: r.Name(), Reason: ErrNoProc}
	}
	return r.name.sys.names.await(ctx, r.name.name)
}

// CallWait is [Call] for those who would rather wait for a restart than fail:
// for up to wait it waits for a process to send the request to. A request that
// may have reached a process is never sent again.
func CallWait[R any](ctx context.Context, r Ref, wait time.Duration, req any) (R, error) {
	var none R
	value, sent, err := r.try(ctx, req)
	if missing(err) && !sent {
		value, err = r.callWhenThere(ctx, wait, req)
	}
	if err != nil {
		return none, err
	}
	return typed[R](r.Name(), value)
}

// try calls the process of the moment.
func (r Ref) try(ctx context.Context, req any) (value any, sent bool, err error) {
	p := r.Whereis()
	if p == nil {
		return nil, false, &DownError{Name: r.Name(), Reason: ErrNoProc}
	}
	return p.call(ctx, p.sys.callLimit(ctx), req)
}

// callWhenThere waits for a process and calls it; if that is gone again, it
// waits for the next one, wait in all.
func (r Ref) callWhenThere(ctx context.Context, wait time.Duration, req any) (any, error) {
	gap, cancel := context.WithTimeoutCause(ctx, wait, ErrTimeout)
	defer cancel()
	for {
		if _, err := r.Await(gap); err != nil {
			return nil, &DownError{Name: r.Name(), Reason: err}
		}
		value, sent, err := r.try(ctx, req)
		if sent || !missing(err) {
			return value, err
		}
	}
}

// missing reports whether a call failed because there was no process.
func missing(err error) bool {
	var down *DownError
	return errors.As(err, &down)
}
