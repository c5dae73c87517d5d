package otp

import (
	"cmp"
	"context"
	"errors"
	"slices"
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

// ChildState is what a supervisor says about a child's process.
type ChildState uint8

// The states: OTP returns a pid, restarting or undefined.
const (
	Running ChildState = iota
	Restarting
	Undefined
)

// ChildInfo is a row of [WhichChildren].
type ChildInfo struct {
	ID    string // of instances: the template's
	Type  ChildType
	State ChildState
	Proc  *Proc // nil unless Running
}

// Counts is the result of [CountChildren].
type Counts struct {
	Specs       int // specifications; a Dynamic supervisor has one
	Active      int // running processes
	Supervisors int // children that are supervisors, running or not
	Workers     int // all others
}

// WhichChildren returns the children, last started first; instances of a
// Dynamic supervisor likewise, tasks included.
func WhichChildren(ctx context.Context, sup Target) ([]ChildInfo, error) {
	return ask[[]ChildInfo](ctx, sup, whichChildren{})
}

type whichChildren struct{}

func (whichChildren) handle(s *supervisor) (any, error) {
	var infos []ChildInfo
	for _, row := range slices.Backward(s.rows) {
		infos = append(infos, row.info())
	}
	for _, row := range s.instances {
		infos = append(infos, row.info())
	}
	if s.dynamic() {
		for _, p := range s.linked() {
			if p.cheap {
				infos = append(infos, (&child{spec: p.spec, proc: p}).info())
			}
		}
		slices.SortFunc(infos, func(a, b ChildInfo) int { return cmp.Compare(b.Proc.serial(), a.Proc.serial()) })
	}
	return infos, nil
}

func (c *child) info() ChildInfo {
	i := ChildInfo{ID: c.spec.ID, Type: c.spec.childType()}
	switch {
	case c.restarting:
		i.State = Restarting
	case c.proc == nil:
		i.State = Undefined
	default:
		i.Proc = c.proc
	}
	return i
}

// serial orders processes by age.
func (p *Proc) serial() uint64 {
	if p == nil {
		return 0
	}
	return p.id
}

// CountChildren counts the children.
func CountChildren(ctx context.Context, sup Target) (Counts, error) {
	return ask[Counts](ctx, sup, countChildren{})
}

type countChildren struct{}

func (countChildren) handle(s *supervisor) (any, error) {
	var n Counts
	count := func(c *child) {
		if c.spec.childType() == Supervisor {
			n.Supervisors++
		} else {
			n.Workers++
		}
	}
	for _, row := range s.rows {
		count(row)
		n.Specs++
		if row.alive() && row.proc.Alive() {
			n.Active++
		}
	}
	for _, row := range s.instances {
		count(row)
		if row.alive() {
			n.Active++
		}
	}
	if s.dynamic() {
		s.mu.Lock()
		n.Specs, n.Active, n.Workers = 1, n.Active+s.tasks, n.Workers+s.tasks
		s.mu.Unlock()
	}
	return n, nil
}
