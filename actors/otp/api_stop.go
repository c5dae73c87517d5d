package otp

import (
	"context"
	"slices"
)

// TerminateChild stops a child and cancels its pending restart. Its
// specification is kept unless it is temporary. Errors: [ErrNotFound],
// [ErrSimpleOneForOne].
func TerminateChild(ctx context.Context, sup Target, id string) error {
	_, err := ask[any](ctx, sup, terminateChild{id: id})
	return err
}

// TerminateProc stops an instance of a Dynamic supervisor; one that has ended
// already is no error. Elsewhere it answers [ErrNotFound].
func TerminateProc(ctx context.Context, sup Target, p *Proc) error {
	_, err := ask[any](ctx, sup, terminateChild{proc: p})
	return err
}

type terminateChild struct {
	id   string
	proc *Proc
}

func (r terminateChild) handle(s *supervisor) (any, error) {
	if s.dynamic() {
		return nil, r.instance(s)
	}
	row := s.rowByID(r.id)
	if r.proc != nil || row == nil {
		return nil, ErrNotFound
	}
	s.stop(row)
	s.drop(row)
	return nil, nil
}

func (r terminateChild) instance(s *supervisor) error {
	if r.proc == nil {
		return ErrSimpleOneForOne
	}
	row := s.instances[r.proc]
	switch {
	case row != nil:
		s.stop(row)
		s.drop(row)
	case r.proc.parent == s && r.proc.cheap:
		s.stop(&child{spec: r.proc.spec, proc: r.proc})
	case r.proc.Alive():
		return ErrNotFound
	}
	return nil
}

// RestartChild starts a child that is stopped. Errors: what the start failed
// with, [Ignore], [ErrRunning], [ErrRestarting], [ErrNotFound],
// [ErrSimpleOneForOne].
func RestartChild(ctx context.Context, sup Target, id string) (*Proc, error) {
	return ask[*Proc](ctx, sup, restartChild{id})
}

type restartChild struct{ id string }

func (r restartChild) handle(s *supervisor) (any, error) {
	row, err := s.idle(r.id)
	if err != nil {
		return nil, err
	}
	p, err := s.start(row)
	if err == nil {
		s.set(row, p)
	}
	return p, err
}

// DeleteChild removes the specification of a child that is stopped. Errors as
// in [RestartChild].
func DeleteChild(ctx context.Context, sup Target, id string) error {
	_, err := ask[any](ctx, sup, deleteChild{id})
	return err
}

type deleteChild struct{ id string }

func (r deleteChild) handle(s *supervisor) (any, error) {
	row, err := s.idle(r.id)
	if err != nil {
		return nil, err
	}
	s.update(func() { s.rows = slices.DeleteFunc(s.rows, func(c *child) bool { return c == row }) })
	return nil, nil
}

// idle returns the row of a child that is stopped, or OTP's complaint.
func (s *supervisor) idle(id string) (*child, error) {
	row := s.rowByID(id)
	switch {
	case s.dynamic():
		return nil, ErrSimpleOneForOne
	case row == nil:
		return nil, ErrNotFound
	case row.restarting:
		return nil, ErrRestarting
	case row.proc != nil:
		return nil, ErrRunning
	}
	return row, nil
}
