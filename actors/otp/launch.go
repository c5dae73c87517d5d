package otp

import (
	"context"
	"time"
)

// A process is made in three steps, so that whoever can see it finds it whole:
// newProc and one of the as methods furnish it, then it is linked or listed,
// then launch begins its start. Proc.up tells when the start is over.

// newProc makes a process that does nothing yet.
func (s *System) newProc(k kind, label, name string) *Proc {
	p := &Proc{
		sys: s, id: s.nextID.Add(1), kind: k, label: label, name: name, born: time.Now(),
		up: make(chan struct{}), done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(s.base)
	return p
}

// asServer makes p run a Server; limit bounds its mailbox. The result begins the
// start.
func (p *Proc) asServer(mk func() Server, limit int) (begin func() error) {
	srv := &server{p: p, make: mk}
	p.box = newMailbox(limit, p.sys.engine.pool.Schedule, srv.unwound)
	return func() error { return p.sys.engine.spawn(srv) }
}

// asSupervisor makes p run a supervisor.
func (p *Proc) asSupervisor(mk func() SupSpec) (begin func() error) {
	p.own = &supervisor{p: p, make: mk, links: map[*Proc]struct{}{}}
	return p.asServer(func() Server { return p.own }, 0)
}

// asTask makes p run a Task.
func (p *Proc) asTask(mk func() Task) (begin func() error) {
	return func() error {
		p.sys.engine.pool.Schedule(func() { p.runTask(mk) })
		return nil
	}
}

// asChild makes p run what a child specification says.
func (p *Proc) asChild(spec *ChildSpec, args any) (begin func() error) {
	switch {
	case spec.Server != nil:
		return p.asServer(spec.Server, spec.Mailbox)
	case spec.ServerArgs != nil:
		return p.asServer(func() Server { return spec.ServerArgs(args) }, spec.Mailbox)
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

// launch takes the name and begins the start. An error means that nothing was
// started.
func (p *Proc) launch(begin func() error) error {
	names := p.sys.names
	if other := names.reserve(p.name, p); other != nil {
		return &AlreadyStartedError{Proc: other}
	}
	if p.hidden.Load() {
		names.release(p.name, p) // it became an orphan just now
	}
	if err := begin(); err != nil {
		names.release(p.name, p)
		return err
	}
	return nil
}
