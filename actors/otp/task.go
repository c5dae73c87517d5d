package otp

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// runTask runs a task process from its start to its end.
func (p *Proc) runTask(task func(context.Context) error) {
	defer p.finish(false) // after runtime.Goexit too
	protect(func() { p.crash(p.live(task)) }, p.crash)
}

// live runs the task and returns the reason of the end.
func (p *Proc) live(task func(context.Context) error) error {
	if p.over.Load() {
		return nil
	}
	if err := p.takeName(); err != nil {
		return err
	}
	if !p.succeed() {
		return nil
	}
	result, ordered := task(p.ctx), p.why()
	if ordered != nil && (result == nil || errors.Is(result, context.Canceled) || errors.Is(result, ordered)) {
		return ordered
	}
	return result
}

// RunTask runs fn as a temporary child of a [Dynamic] supervisor, in the caller's
// goroutine and without the supervisor's mailbox, and returns when fn has returned.
// label is the last part of the task's path; the task has no name. Only its abnormal
// ends are reported as events.
//
// fn's context is the process's. It has ctx's values and deadline and ends with ctx.
// It also ends as soon as the process is ordered to end, with the reason as cause.
// onEnd, if not nil, is called then too: at most once, in the goroutine that gives
// the order, and never after RunTask has returned. It must be quick and must not use
// the process.
//
// An error of fn goes to the caller and is no failure of the process. A panic in fn is
// a failure and is returned as a [*PanicError]. After runtime.Goexit the process ends
// with [ErrGoexit], and the goroutine goes on ending. The error is an [*EndedError] if
// the process was ordered to end and fn therefore returned an error of its context, or
// nil after the process had been abandoned.
//
// ran is false if fn was not called. The error is then [ErrMaxChildren],
// [ErrNotSupervisor] (sup is not a Dynamic supervisor), or a [*DownError] because the
// supervisor is not running.
func RunTask(ctx context.Context, sup Target, label fmt.Stringer, onEnd func(), fn func(context.Context) error) (ran bool, err error) {
	s, err := supervisorOf(sup)
	if err != nil {
		return false, err
	}
	p := &Proc{
		sys: s.p.sys, id: s.p.sys.nextID.Add(1), task: label, parent: s, born: time.Now(),
		phase: running, begun: true, onEnd: onEnd, done: make(chan struct{}),
	}
	p.own.parent = ctx
	p.ctx = &p.own
	if err := s.admit(p); err != nil {
		return false, err
	}
	returned := false
	defer func() {
		p.mu.Lock()
		p.onEnd = nil
		p.mu.Unlock()
		if returned {
			err = p.leave(err)
			return
		}
		err = recovered(recover())
		p.crash(err)
		p.finish(false)
	}()
	ran = true
	err = fn(p.ctx) //nolint:contextcheck // derived from ctx, above
	returned = true
	return ran, err
}

// leave ends a process of RunTask whose function has returned result, and
// returns what its caller gets.
func (p *Proc) leave(result error) error {
	ordered := p.over.Load()
	p.finish(false)
	if !ordered {
		return result
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck && result == nil || errors.Is(result, context.Canceled) || result != nil && errors.Is(result, context.Cause(p.ctx)) {
		return &EndedError{Reason: p.reason, Err: result}
	}
	return result
}

// EndedError is what [RunTask] returns when its process was ordered to end with
// Reason before fn had finished. Err is what fn returned.
type EndedError struct{ Reason, Err error }

func (e *EndedError) Error() string { return fmt.Sprintf("process was ended: %v", e.Reason) }

// Unwrap gives both errors.
func (e *EndedError) Unwrap() []error { return []error{e.Reason, e.Err} }
