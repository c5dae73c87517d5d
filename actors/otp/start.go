package otp

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

// startRows starts the given rows in order, up to the first failure.
func (s *supervisor) startRows(rows []*child) (failed *child, err error) {
	for _, row := range slices.Clone(rows) {
		p, err := s.start(row)
		switch {
		case err == nil:
			s.set(row, p)
		case errors.Is(err, Ignore):
			s.drop(row) // a temporary child is forgotten, others stay in the table
		default:
			return row, err
		}
	}
	return nil, nil
}

// start starts the child of a row and waits until its Init is over. The error is
// ErrKilled, and no event, when we are killed meanwhile.
func (s *supervisor) start(row *child) (*Proc, error) {
	p, begin := s.newChild(row)
	if !s.link(p) {
		return nil, ErrKilled
	}
	begin()
	err := s.awaitStart(p, row.spec.StartTimeout)
	if s.p.isKilled() {
		return nil, ErrKilled
	}
	return p.sys.reportStart(p, err)
}

// newChild makes the process of a row, not started yet.
func (s *supervisor) newChild(row *child) (p *Proc, begin func()) {
	label, name := row.spec.ID, row.spec.Name
	switch {
	case row.key != "":
		label = row.key
		name = s.p.Path() + "/" + label
	case s.dynamic():
		label, name = strconv.FormatUint(s.p.sys.nextID.Add(1), 10), ""
	case name == "":
		name = s.p.Path() + "/" + label
	}
	if s.p.hidden.Load() {
		name = "" // our successor needs the names
	}
	p = s.p.sys.newProc(label, name)
	p.spec, p.parent = row.spec, s
	return p, p.asChild(row.spec, row.args)
}

// awaitStart waits until the Init of p is over.
func (s *supervisor) awaitStart(p *Proc, limit time.Duration) error {
	if !s.await(p.up, limit) {
		if s.p.isKilled() {
			return ErrKilled
		}
		p.Kill()
		s.await(p.done, Infinity)
		return ErrTimeout
	}
	if err := p.startError(); err != nil {
		s.await(p.done, Infinity)
		return err
	}
	return nil
}

// await waits for c, at most limit (0 and Infinity: without end). It returns
// false when the time was over or we are killed. Then nothing of ours matters any
// more, and our children must be left alone: they are told by orphan.
func (s *supervisor) await(c <-chan struct{}, limit time.Duration) bool {
	var expired <-chan time.Time
	if limit > 0 && limit != Infinity {
		t := time.NewTimer(limit)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-c:
		return true
	case <-expired:
		return false
	case <-s.p.ctx.Done():
		return false
	}
}

// startTask is StartTask, in the caller's goroutine.
func (s *supervisor) startTask(ctx context.Context, label string, t Task) (*Proc, error) {
	p := s.newTask(s.p.sys.base, label)
	if t.Init != nil {
		p.up = make(chan struct{})
	} else {
		p.phase, p.begun = running, true
	}
	if err := s.admit(p); err != nil {
		p.cancel(err)
		return nil, err
	}
	p.sys.engine.pool.Schedule(func() { p.runTask(func() Task { return t }) })
	if p.up == nil {
		return p, nil
	}
	select {
	case <-p.up:
		if err := p.startError(); err != nil {
			return nil, err
		}
		return p, nil
	case <-ctx.Done():
		p.Kill()
		return nil, context.Cause(ctx)
	}
}

// newTask makes a task's process.
func (s *supervisor) newTask(ctx context.Context, label string) *Proc {
	p := &Proc{
		sys: s.p.sys, id: s.p.sys.nextID.Add(1), cheap: true, parent: s, born: time.Now(),
		label: label, done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	return p
}

// admit links a task, if there is room.
func (s *supervisor) admit(p *Proc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open:
	case s.spec.Strategy != Dynamic:
		return ErrNotSupervisor
	default:
		return &DownError{Name: s.p.Name(), Reason: ErrShutdown}
	}
	if s.fullLocked() {
		return ErrMaxChildren
	}
	p.spec = &s.spec.Children[0]
	s.links[p] = struct{}{}
	s.tasks++
	return nil
}

// fullLocked reports whether a Dynamic supervisor has all children it may have.
func (s *supervisor) fullLocked() bool {
	return s.spec.MaxChildren > 0 && len(s.instances)+s.tasks >= s.spec.MaxChildren
}
