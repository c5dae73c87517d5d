package otp

import (
	"context"
	"errors"
)

// request is a message of a supervisor's API.
type request interface {
	handle(s *supervisor) (any, error)
}

// ask sends a request to a supervisor. As in OTP it waits without end, because
// the supervisor may be busy with a child for as long as that takes; ctx bounds
// it.
func ask[R any](ctx context.Context, sup Target, req request) (R, error) {
	var none R
	p, name := sup.target()
	switch {
	case p == nil:
		return none, &DownError{Name: name, Reason: ErrNoProc}
	case p.supervisor == nil:
		return none, ErrNotSupervisor
	}
	value, _, err := p.call(ctx, 0, req)
	if err != nil {
		return none, err
	}
	return typed[R](name, value)
}

// StartChild adds a child at the end and starts it. Errors: [*SpecError],
// [*AlreadyStartedError], [ErrAlreadyPresent], [*ChildError] if the start
// failed (the specification is not kept then), and [Ignore] (it is kept unless
// temporary).
func StartChild(ctx context.Context, sup Target, spec ChildSpec) (*Proc, error) {
	return ask[*Proc](ctx, sup, startChild{spec})
}

type startChild struct{ spec ChildSpec }

func (r startChild) handle(s *supervisor) (any, error) {
	if s.dynamic() {
		return nil, ErrSimpleOneForOne
	}
	if err := r.spec.check(s.spec.AutoShutdown); err != nil {
		return nil, err
	}
	if old := s.rowByID(r.spec.ID); old != nil {
		if old.alive() {
			return nil, &AlreadyStartedError{Proc: old.proc}
		}
		return nil, ErrAlreadyPresent
	}
	row := &child{spec: &r.spec}
	p, err := s.start(row)
	var running *AlreadyStartedError
	switch {
	case err == nil:
	case errors.Is(err, Ignore):
		if r.spec.Restart == Temporary {
			return nil, err
		}
	case errors.As(err, &running):
		return nil, err
	default:
		return nil, &ChildError{ID: r.spec.ID, Reason: err}
	}
	row.proc = p
	s.update(func() { s.rows = append(s.rows, row) })
	return p, err
}

// StartDynamic starts an instance of a Dynamic supervisor's template. Errors:
// what the start failed with, [Ignore], [ErrMaxChildren].
func StartDynamic(ctx context.Context, sup Target, args any) (*Proc, error) {
	return ask[*Proc](ctx, sup, startDynamic{args})
}

type startDynamic struct{ args any }

func (r startDynamic) handle(s *supervisor) (any, error) {
	if !s.dynamic() {
		return nil, &SpecError{Problem: "invalid_child_spec", Value: r.args}
	}
	s.mu.Lock()
	full := s.fullLocked()
	s.mu.Unlock()
	if full {
		return nil, ErrMaxChildren
	}
	row := &child{spec: &s.spec.Children[0], args: r.args}
	if err := row.name(); err != nil {
		return nil, err
	}
	p, err := s.start(row)
	if err != nil {
		return nil, err
	}
	row.proc = p
	s.update(func() { s.instances[p] = row })
	return p, nil
}

// name asks the template for the instance's key. That is the user's code in our
// goroutine: its panic is the start's failure, not ours.
func (c *child) name() (err error) {
	if c.spec.Key == nil {
		return nil
	}
	defer func() {
		if value := recover(); value != nil {
			err = recovered(value)
		}
	}()
	c.key = c.spec.Key(c.args)
	return nil
}
