package otp

import (
	"context"
	"time"
)

// A process is made in three steps, so that whoever can see it finds it whole:
// newProc and one of the as methods furnish it, then it is linked or listed,
// then it begins. It takes its name itself, as in OTP, so whoever is told of it
// by name can write to it. Proc.up tells when the start is over.

// newProc makes a process that does nothing yet.
func (s *System) newProc(label, name string) *Proc {
	p := &Proc{
		sys: s, id: s.nextID.Add(1), label: label, name: name, born: time.Now(),
		up: make(chan struct{}), done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(s.base)
	return p
}

// asServer makes p run a Server; limit and drain are those of [ChildSpec]. The
// result begins the start.
func (p *Proc) asServer(mk func() Server, limit int, drain bool) (begin func()) {
	s := &server{p: p, make: mk, address: p.sys.engine.address(p), drain: drain}
	s.box = newMailbox(limit, p.sys.engine.pool.Schedule, s.unwound)
	p.server = s
	return func() { p.sys.engine.spawn(s) }
}

// asSupervisor makes p run a supervisor.
func (p *Proc) asSupervisor(mk func() SupSpec) (begin func()) {
	p.supervisor = &supervisor{p: p, make: mk, links: map[*Proc]struct{}{}}
	return p.asServer(func() Server { return p.supervisor }, 0, true)
}

// asTask makes p run a Task.
func (p *Proc) asTask(mk func() Task) (begin func()) {
	return func() { p.sys.engine.pool.Schedule(func() { p.runTask(mk) }) }
}

// asChild makes p run what a child specification says.
func (p *Proc) asChild(spec *ChildSpec, args any) (begin func()) {
	switch {
	case spec.Server != nil:
		return p.asServer(spec.Server, spec.Mailbox, spec.Drain)
	case spec.ServerArgs != nil:
		return p.asServer(func() Server { return spec.ServerArgs(args) }, spec.Mailbox, spec.Drain)
	case spec.Task != nil:
		return p.asTask(spec.Task)
	case spec.TaskArgs != nil:
		return p.asTask(func() Task { return spec.TaskArgs(args) })
	case spec.Supervisor != nil:
		return p.asSupervisor(spec.Supervisor)
	default:
		return p.asSupervisor(func() SupSpec { return spec.SupervisorArgs(args) })
	}
}

// enter takes the name, as the first thing that a process does.
func (p *Proc) enter() error {
	if other := p.sys.names.reserve(p.name, p); other != nil {
		return &AlreadyStartedError{Proc: other}
	}
	if p.hidden.Load() {
		p.sys.names.release(p.name, p) // it became an orphan just now
	}
	return nil
}
