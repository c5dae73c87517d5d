package otp

import (
	"context"
	"slices"
)

// Operator is the term of [RestartRunning]'s reason: the child ends with
// Shutdown(Operator), {shutdown, operator}.
const Operator = "operator"

// RestartRunning is the operator's restart, which OTP lacks: a running child
// ends with Shutdown([Operator]) and its supervisor applies its strategy, as
// after a crash, but orderly: whoever belongs to the child is stopped too, in
// reverse order, and all are started again in order.
//
// It does not count against the intensity. If a start fails, its error is
// returned, and the supervisor goes on with the usual retries, which count. The
// end of ctx ends the wait, not the restart.
//
// Errors: what the start failed with, [ErrTemporary], [ErrNotRunning],
// [ErrRestarting], [ErrNotFound], [ErrSimpleOneForOne].
func RestartRunning(ctx context.Context, sup Target, id string) (*Proc, error) {
	return ask[*Proc](ctx, sup, restartRunning{id})
}

type restartRunning struct{ id string }

func (r restartRunning) handle(s *supervisor) (any, error) {
	row, err := s.busy(r.id)
	if err != nil {
		return nil, err
	}
	reason := Shutdown(Operator)
	e := s.restarting(row, reason)
	e.Detail = "requested"
	s.p.sys.emit(e)
	for _, c := range slices.Backward(slices.Clone(s.group(row))) {
		if c == row {
			s.stopWith(c, reason)
		} else {
			s.stop(c)
		}
		s.drop(c)
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

// busy returns the row of a child that runs and may be restarted, or says why
// not.
func (s *supervisor) busy(id string) (*child, error) {
	row := s.rowByID(id)
	switch {
	case s.dynamic():
		return nil, ErrSimpleOneForOne
	case row == nil:
		return nil, ErrNotFound
	case row.spec.Restart == Temporary:
		return nil, ErrTemporary
	case row.restarting:
		return nil, ErrRestarting
	case row.proc == nil:
		return nil, ErrNotRunning
	}
	return row, nil
}
