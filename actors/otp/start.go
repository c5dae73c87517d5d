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

// restart counts a restart of row and attempts it. A failed attempt is not
// looped: a retry is queued behind what has arrived meanwhile, and counts again.
// restart returns false when that was one restart too many: the supervisor
// then has to end.
func (s *supervisor) restart(row *child) bool {
	sys := s.p.sys
	if !s.window.add(sys.seconds()) {
		s.drop(row)
		sys.emit(Event{Kind: EventGaveUp, Proc: s.p, Reason: row.lastExit, Detail: row.spec.ID})
		return false
	}
	s.update(func() {
		row.restarts++
		row.restarting = true
	})
	sys.emit(s.restarting(row, row.lastExit))
	_ = s.again(row) // a failure has been reported, and queued a retry
	return true
}

// restarting is the event of a restart. A row that failed to start has no
// process to tell its place.
func (s *supervisor) restarting(row *child, reason error) Event {
	return Event{
		Kind: EventRestarting, Proc: row.proc, Path: s.p.Path() + "/" + row.spec.ID, ID: row.spec.ID,
		Type: row.spec.childType(), Reason: reason, Restarts: row.restarts,
	}
}

// again starts row, and who belongs to it, according to the strategy. The error
// is what a start failed with; a retry is then queued.
func (s *supervisor) again(row *child) error {
	switch s.spec.Strategy {
	case OneForAll, RestForOne:
		return s.restartGroup(s.group(row))
	case Dynamic:
		return s.restartInstance(row)
	default:
		return s.restartOne(row)
	}
}

// group returns the rows that the strategy restarts with row, in start order.
func (s *supervisor) group(row *child) []*child {
	switch i := slices.Index(s.rows, row); s.spec.Strategy {
	case OneForAll:
		return s.rows
	case RestForOne:
		return s.rows[i:]
	default:
		return s.rows[i : i+1]
	}
}

// restartOne restarts a single child.
func (s *supervisor) restartOne(row *child) error {
	p, err := s.start(row)
	switch {
	case err == nil:
		s.set(row, p)
	case errors.Is(err, Ignore):
		s.set(row, nil)
	default:
		s.retry(row)
		return err
	}
	return nil
}

// restartGroup stops what runs of the group and starts all of it in order.
// Children in it that had finished or been stopped come back too. After a
// failure the rest of the group stays down until the retry: rest_for_one then
// goes on at the child that failed, one_for_all begins anew.
func (s *supervisor) restartGroup(group []*child) error {
	group = slices.Clone(group)
	s.stopRows(group)
	group = slices.DeleteFunc(group, func(c *child) bool { return c.spec.Restart == Temporary })
	failed, err := s.startRows(group)
	if err != nil {
		s.retry(failed)
	}
	return err
}

// restartInstance restarts an instance of the template with its arguments. An
// ignored start removes it.
func (s *supervisor) restartInstance(row *child) error {
	p, err := s.start(row)
	switch {
	case err == nil:
		s.update(func() {
			delete(s.instances, row.proc)
			row.proc, row.restarting = p, false
			s.instances[p] = row
		})
	case errors.Is(err, Ignore):
		s.drop(row)
	default:
		s.retry(row)
		return err
	}
	return nil
}

// retry marks row as restarting and queues the next attempt.
func (s *supervisor) retry(row *child) {
	s.update(func() { row.restarting = true })
	s.p.server.send(letter{kind: castLetter, body: retry{id: row.spec.ID, proc: row.proc}})
}
