package otp

import (
	"context"
	"errors"
)

// Task is what a process without a mailbox does: Run in a goroutine. The
// process ends when Run returns: nil is [ErrNormal], an error is the reason, a
// panic a crash.
//
// ctx is cancelled when the process is asked to end, with the reason as cause
// ([ErrShutdown], [ErrKilled], ...). Returning nil or the context's error then
// counts as the reason that was asked for. A Run that does not return in its
// shutdown time is abandoned.
type Task struct {
	// Init may be nil. The starter waits for it.
	Init func(ctx context.Context) error
	Run  func(ctx context.Context) error
}

// runTask is the life of a task process.
func (p *Proc) runTask(mk func() Task) {
	var result error
	if p.attempt(&result, func() error { return p.live(mk) }) {
		result = p.verdict(result)
	}
	p.settle(result)
	p.finish()
}

// live makes the task and runs it.
func (p *Proc) live(mk func() Task) error {
	if p.over.Load() {
		return p.why()
	}
	t := mk()
	if t.Init != nil {
		if err := t.Init(p.ctx); err != nil {
			p.fail(err)
			return err
		}
	}
	p.succeed()
	return t.Run(p.ctx)
}

// attempt runs f. It returns false, and the crash as result, if f did not
// return. After runtime.Goexit the goroutine is lost, so the process has to end
// here.
func (p *Proc) attempt(result *error, f func() error) bool {
	finished := false
	defer func() {
		if finished {
			return
		}
		value := recover()
		*result = recovered(value)
		if value == nil {
			p.settle(*result)
			p.finish()
		}
	}()
	*result = f()
	finished = true
	return finished
}

// verdict turns what Run returned into the reason of the end.
func (p *Proc) verdict(result error) error {
	asked := p.why()
	switch {
	case asked != nil && (result == nil || errors.Is(result, context.Canceled) || errors.Is(result, asked)):
		return asked
	case result == nil:
		return ErrNormal
	default:
		return result
	}
}

// settle fixes the reason of a task's end.
func (p *Proc) settle(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.endLocked(reason) && p.phase == ending && !p.killed {
		p.reason = reason
	}
}

// StartTask runs t as a temporary child of a [Dynamic] supervisor without going
// through the supervisor's mailbox: a supervised goroutine for the price of
// little more than a goroutine. label ends up in the path and need not be unique; the task
// has no name. Only its abnormal ends are reported as events. ctx bounds the
// wait for t.Init, if there is one. The error is a [*DownError] when the
// supervisor is not running, and [ErrMaxChildren] when it is full.
func StartTask(ctx context.Context, sup Target, label string, t Task) (*Proc, error) {
	p, name := sup.target()
	switch {
	case p == nil:
		return nil, &DownError{Name: name, Reason: ErrNoProc}
	case p.own == nil:
		return nil, ErrNotSupervisor
	}
	return p.own.startTask(ctx, label, t)
}
