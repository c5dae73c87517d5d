package otp

import (
	"errors"
	"slices"
	"strconv"
)

// startRows starts the given rows in order, up to the first failure.
func (s *supervisor) startRows(rows []*child) (failed *child, err error) {
	for _, row := range slices.Clone(rows) {
		if _, err := s.start(row); errors.Is(err, Ignore) {
			s.drop(row)
		} else if err != nil {
			return row, err
		}
	}
	return nil, nil
}

// start starts the child of a row, waits until its Init is over, and records the
// process. An Init that hangs blocks the supervisor until that is killed. If that happens,
// before or meanwhile, the error is ErrKilled and there is no event.
func (s *supervisor) start(row *child) (*Proc, error) {
	if s.p.killed.Load() {
		return nil, ErrKilled
	}
	p, begin := s.newChild(row)
	if !s.link(p) {
		return nil, ErrKilled
	}
	begin()
	s.await(Infinity, p.up)
	err := p.startError()
	if err != nil {
		s.await(Infinity, p.done)
	}
	if s.p.killed.Load() {
		return nil, ErrKilled
	}
	if err == nil {
		s.set(row, p)
	}
	return p.sys.reportStart(p, err)
}

// newChild makes the process of a row. begin starts it.
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
	p = s.p.sys.newProc(label, name, row.spec)
	p.parent = s
	return p, p.configure(row.args)
}

// admit links a task of RunTask, or returns why it may not run.
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
	if len(s.instances)+s.tasks >= s.spec.MaxChildren {
		return ErrMaxChildren
	}
	p.spec = &s.spec.Children[0]
	s.links[p] = struct{}{}
	s.tasks++
	return nil
}

// restart counts a restart of row and attempts it. If the attempt fails, a retry is
// queued after the messages that have arrived meanwhile, and counts again. restart
// returns false if this was one restart too many; the supervisor then has to end.
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
	_ = s.again(row) // a failure has been reported, and a retry is queued
	return true
}

// restarting is the event of a restart. Its path is made here, because a row whose
// start failed has no process.
func (s *supervisor) restarting(row *child, reason error) Event {
	return Event{
		Kind: EventRestarting, Proc: row.proc, Path: s.p.Path() + "/" + row.spec.ID, ID: row.spec.ID,
		Type: row.spec.childType(), Reason: reason, Restarts: row.restarts,
	}
}

// again starts row, and the children that the strategy restarts with it, in order. It
// first stops those that run. It also starts those that had finished or been stopped.
// If a start fails, again returns its error, and the rest stays down until a retry:
// rest_for_one then continues at the child that failed, one_for_all starts over.
func (s *supervisor) again(row *child) error {
	group := slices.Clone(s.group(row))
	if s.spec.Strategy == OneForAll || s.spec.Strategy == RestForOne {
		s.stopRows(group)
		group = slices.DeleteFunc(group, func(c *child) bool { return c.spec.Restart == Temporary })
	}
	failed, err := s.startRows(group)
	if err != nil {
		s.update(func() { failed.restarting = true })
		s.p.server.send(Msg{Kind: InfoMsg, Body: retry{failed}})
	}
	return err
}

// group returns the rows that the strategy restarts with row, in start order.
func (s *supervisor) group(row *child) []*child {
	switch s.spec.Strategy {
	case OneForAll:
		return s.rows
	case RestForOne:
		return s.rows[slices.Index(s.rows, row):]
	default:
		return []*child{row}
	}
}
