package otp

import (
	"context"
	"errors"
	"slices"
)

// request is a message of a supervisor's API. It runs in the supervisor's goroutine.
type request func(s *supervisor) (any, error)

// ask sends a request to a supervisor. As in OTP it has no timeout, because the
// supervisor may be busy with a child for any length of time. Only ctx bounds it.
func ask[R any](ctx context.Context, sup Target, do func(s *supervisor) (R, error)) (R, error) {
	s, err := supervisorOf(sup)
	if err != nil {
		var none R
		return none, err
	}
	value, _, err := s.p.call(ctx, 0, request(func(s *supervisor) (any, error) { return do(s) }))
	return typed[R](sup, value, err)
}

// order is ask for requests without a result.
func order(ctx context.Context, sup Target, do func(s *supervisor) error) error {
	_, err := ask(ctx, sup, func(s *supervisor) (any, error) { return nil, do(s) })
	return err
}

// supervisorOf returns the supervisor that a request is for.
func supervisorOf(sup Target) (*supervisor, error) {
	switch p := sup.Whereis(); {
	case p == nil:
		return nil, &DownError{Name: sup.Name(), Reason: ErrNoProc}
	case p.supervisor == nil:
		return nil, ErrNotSupervisor
	default:
		return p.supervisor, nil
	}
}

// StartChild adds a child at the end and starts it. Errors: [*SpecError],
// [*AlreadyStartedError], [ErrAlreadyPresent], [*ChildError] if the start
// failed (the specification is not kept then), and [Ignore] (it is kept unless
// temporary).
func StartChild(ctx context.Context, sup Target, spec ChildSpec) (*Proc, error) {
	return ask(ctx, sup, func(s *supervisor) (*Proc, error) { return s.startChild(&spec) })
}

func (s *supervisor) startChild(spec *ChildSpec) (*Proc, error) {
	if s.dynamic() {
		return nil, ErrSimpleOneForOne
	}
	if err := spec.check(s.spec.AutoShutdown); err != nil {
		return nil, err
	}
	if old, err := s.find(spec.ID); err == nil {
		if old.alive() {
			return nil, &AlreadyStartedError{Proc: old.proc}
		}
		return nil, ErrAlreadyPresent
	}
	row := &child{spec: spec}
	p, err := s.start(row)
	var running *AlreadyStartedError
	switch {
	case err == nil, errors.Is(err, Ignore) && spec.Restart != Temporary:
		s.update(func() { s.rows = append(s.rows, row) })
		return p, err
	case errors.Is(err, Ignore), errors.As(err, &running):
		return nil, err
	default:
		return nil, &ChildError{ID: spec.ID, Reason: err}
	}
}

// StartDynamic starts an instance of a Dynamic supervisor's template. Errors:
// what the start failed with, [Ignore], [ErrMaxChildren].
func StartDynamic(ctx context.Context, sup Target, args any) (*Proc, error) {
	return ask(ctx, sup, func(s *supervisor) (*Proc, error) { return s.startInstance(args) })
}

func (s *supervisor) startInstance(args any) (*Proc, error) {
	if !s.dynamic() {
		return nil, &SpecError{Problem: "invalid_child_spec", Value: args}
	}
	full := false
	s.update(func() { full = len(s.instances)+s.tasks >= s.spec.MaxChildren })
	row := &child{spec: &s.spec.Children[0], args: args}
	var err error
	switch {
	case full:
		err = ErrMaxChildren
	case row.spec.Key != nil: // its panic is the start's failure, not ours
		protect(func() { row.key = row.spec.Key(args) }, func(reason error) { err = reason })
	}
	if err != nil {
		return nil, err
	}
	return s.start(row)
}

// TerminateChild stops a child and cancels its pending restart. Its
// specification is kept unless it is temporary. Errors: [ErrNotFound],
// [ErrSimpleOneForOne].
func TerminateChild(ctx context.Context, sup Target, id string) error {
	return order(ctx, sup, func(s *supervisor) error {
		row, err := s.find(id)
		if err == nil {
			s.stop(row, ErrShutdown)
		}
		return err
	})
}

// TerminateProc stops an instance of a Dynamic supervisor. An instance that has
// already ended is no error. Other supervisors return [ErrNotFound].
func TerminateProc(ctx context.Context, sup Target, p *Proc) error {
	return order(ctx, sup, func(s *supervisor) error {
		row := s.instances[p]
		switch {
		case !s.dynamic():
			return ErrNotFound
		case p == nil:
			return ErrSimpleOneForOne
		case row != nil:
			s.stop(row, ErrShutdown)
		case p.parent == s && p.task != nil:
			s.stop(&child{spec: p.spec, proc: p}, ErrShutdown)
		case p.Alive():
			return ErrNotFound
		}
		return nil
	})
}

// RestartChild starts a child that is stopped. Errors: what the start failed
// with, [Ignore], [ErrRunning], [ErrRestarting], [ErrNotFound],
// [ErrSimpleOneForOne].
func RestartChild(ctx context.Context, sup Target, id string) (*Proc, error) {
	return ask(ctx, sup, func(s *supervisor) (*Proc, error) {
		row, err := s.idle(id)
		if err != nil {
			return nil, err
		}
		return s.start(row)
	})
}

// DeleteChild removes the specification of a child that is stopped. Errors as
// in [RestartChild].
func DeleteChild(ctx context.Context, sup Target, id string) error {
	return order(ctx, sup, func(s *supervisor) error {
		row, err := s.idle(id)
		if err == nil {
			s.update(func() { s.rows = slices.DeleteFunc(s.rows, func(c *child) bool { return c == row }) })
		}
		return err
	})
}

// find returns the row of that id, or OTP's error.
func (s *supervisor) find(id string) (*child, error) {
	if s.dynamic() {
		return nil, ErrSimpleOneForOne
	}
	if row := s.row(func(c *child) bool { return c.spec.ID == id }); row != nil {
		return row, nil
	}
	return nil, ErrNotFound
}

// idle returns the row of a child that is stopped.
func (s *supervisor) idle(id string) (*child, error) {
	row, err := s.find(id)
	switch {
	case err != nil:
		return nil, err
	case row.restarting:
		return nil, ErrRestarting
	case row.proc != nil:
		return nil, ErrRunning
	}
	return row, nil
}

// Operator is the term in [RestartRunning]'s reason: the child ends with
// Shutdown(Operator), in OTP's words {shutdown, operator}.
const Operator = "operator"

// RestartRunning is the operator's restart, which OTP lacks. A running child ends
// with Shutdown([Operator]) and its supervisor applies its strategy as after a
// crash, but in order: the children that the strategy restarts with it are stopped
// in reverse order, then all are started in order.
//
// It does not count against the intensity. If a start fails, RestartRunning returns
// its error, and the supervisor goes on with the usual retries, which count. The end
// of ctx ends the wait, not the restart.
//
// Errors: what the start failed with, [ErrTemporary], [ErrNotRunning],
// [ErrRestarting], [ErrNotFound], [ErrSimpleOneForOne].
func RestartRunning(ctx context.Context, sup Target, id string) (*Proc, error) {
	return ask(ctx, sup, func(s *supervisor) (*Proc, error) { return s.restartRunning(id) })
}

func (s *supervisor) restartRunning(id string) (*Proc, error) {
	row, err := s.find(id)
	switch {
	case err != nil:
		return nil, err
	case row.spec.Restart == Temporary:
		return nil, ErrTemporary
	case row.restarting:
		return nil, ErrRestarting
	case row.proc == nil:
		return nil, ErrNotRunning
	}
	reason := Shutdown(Operator)
	e := s.restarting(row, reason)
	e.Detail = "requested"
	s.p.sys.emit(e)
	for _, c := range slices.Backward(slices.Clone(s.group(row))) {
		if c == row {
			s.stop(c, reason)
		} else {
			s.stop(c, ErrShutdown)
		}
	}
	s.update(func() { row.restarting = true }) // so the tree shows it
	if err := s.again(row); err != nil {
		return nil, err
	}
	if row.proc == nil {
		return nil, Ignore
	}
	return row.proc, nil
}
