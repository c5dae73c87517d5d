package otp

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// supervisor is the Server of a supervisor process. It handles requests and exits in
// its own goroutine, in order of arrival. While it starts or stops a child it handles
// nothing else, as in OTP.
type supervisor struct {
	Base
	p      *Proc
	make   func() SupSpec
	spec   SupSpec
	window window

	// The mutex guards what follows. Only the supervisor's goroutine writes rows and
	// instances, so it reads them without the mutex.
	mu        sync.Mutex
	rows      []*child           // in start order
	instances map[*Proc]*child   // of a Dynamic supervisor, by last incarnation
	links     map[*Proc]struct{} // processes that have to end when this one ends
	tasks     int                // how many of links run inline
	open      bool               // RunTask is allowed
	gone      bool               // this process is dead: no more links
}

// child is one row of a supervisor's table.
type child struct {
	spec       *ChildSpec
	args       any    // of an instance
	key        string // of an instance
	proc       *Proc  // nil: not running; while restarting: the last incarnation, if known
	restarting bool   // a retry is queued

	restarts   int
	lastExit   error
	lastExitAt time.Time
}

// alive reports whether the row has a process, as far as the supervisor knows.
func (c *child) alive() bool { return c.proc != nil && !c.restarting }

// childEnded is the message that a supervisor gets when a child has ended.
type childEnded struct {
	proc   *Proc
	reason error
}

// retry is the message that a supervisor sends to itself when a restart failed, so
// that requests and exits that have arrived meanwhile are handled first.
type retry struct{ row *child }

// Init checks the specification and starts the children in order. If one
// fails, those before it are stopped and the start fails with
// Shutdown(*ChildError).
func (s *supervisor) Init(*Ctx) error {
	spec := s.make().withDefaults()
	s.update(func() { s.spec = spec })
	if s.spec.Init != nil {
		if err := s.spec.Init(); err != nil {
			return err
		}
	}
	if err := s.spec.check(); err != nil {
		return err
	}
	s.window = window{limit: s.spec.Intensity, period: int64(s.spec.Period / time.Second)}
	s.update(func() {
		if s.dynamic() {
			s.instances, s.open = map[*Proc]*child{}, true
			return
		}
		for i := range s.spec.Children {
			s.rows = append(s.rows, &child{spec: &s.spec.Children[i]})
		}
	})
	if failed, err := s.startRows(s.rows); err != nil {
		s.stopRows(s.rows)
		return Shutdown(&ChildError{ID: failed.spec.ID, Reason: err})
	}
	return nil
}

// HandleCall handles the requests of api.go.
func (s *supervisor) HandleCall(c *Ctx, from From, req any) (any, error) {
	r, ok := req.(request)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	value, err := r(s)
	if s.p.killed.Load() {
		return NoReply, nil // the caller gets a DownError
	}
	return value, err
}

// HandleInfo handles the end of a child, unless the supervisor has stopped it itself,
// and the retry of a failed restart, unless the child has been stopped, deleted or
// started meanwhile.
func (s *supervisor) HandleInfo(c *Ctx, msg any) {
	goesOn := true
	switch m := msg.(type) {
	case childEnded:
		if row := s.rowOf(m.proc); row != nil && row.alive() {
			s.exited(row, m.reason)
			goesOn = s.ended(row, m.reason)
		}
	case retry:
		if m.row.restarting {
			goesOn = s.restart(m.row)
		}
	default:
		c.unexpected("info", msg)
	}
	if !goesOn {
		c.Stop(ErrShutdown)
	}
}

// Terminate stops the children in reverse order, or all instances at once.
func (s *supervisor) Terminate(*Ctx, error) {
	if s.dynamic() {
		s.stopInstances()
		return
	}
	s.stopRows(s.rows)
}

// ended decides what follows the end of a child. It returns false when the
// supervisor has to end itself.
func (s *supervisor) ended(row *child, reason error) bool {
	if row.spec.Restart == Permanent || row.spec.Restart == Transient && !orderly(reason) {
		return s.restart(row)
	}
	s.drop(row)
	return !s.autoShutdown(row)
}

// autoShutdown reports whether the end of row ends the supervisor.
func (s *supervisor) autoShutdown(row *child) bool {
	if !row.spec.Significant || s.spec.AutoShutdown == Never {
		return false
	}
	lives := func(c *child) bool { return c.spec.Significant && (c.proc != nil || c.restarting) }
	return s.spec.AutoShutdown == AnySignificant || len(s.instances) == 0 && !slices.ContainsFunc(s.rows, lives)
}

// dynamic reports whether this is a simple_one_for_one supervisor.
func (s *supervisor) dynamic() bool { return s.spec.Strategy == Dynamic }

// update changes what the mutex guards.
func (s *supervisor) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// rowOf returns the row or instance whose (last) process is p.
func (s *supervisor) rowOf(p *Proc) *child {
	if s.dynamic() {
		return s.instances[p]
	}
	return s.row(func(c *child) bool { return c.proc == p })
}

// row returns the first row of that kind, nil if there is none.
func (s *supervisor) row(is func(*child) bool) *child {
	if i := slices.IndexFunc(s.rows, is); i >= 0 {
		return s.rows[i]
	}
	return nil
}

// set records the process of a row.
func (s *supervisor) set(row *child, p *Proc) {
	s.update(func() {
		if s.dynamic() {
			delete(s.instances, row.proc)
			s.instances[p] = row
		}
		row.proc, row.restarting = p, false
	})
}

// exited records an end, for the tree.
func (s *supervisor) exited(row *child, reason error) {
	s.update(func() { row.lastExit, row.lastExitAt = reason, time.Now() })
}

// drop records that a row has no process and no pending restart. The rows of
// temporary children and of instances are removed.
func (s *supervisor) drop(row *child) {
	s.update(func() {
		switch {
		case s.dynamic():
			delete(s.instances, row.proc)
		case row.spec.Restart == Temporary:
			s.rows = slices.DeleteFunc(s.rows, func(r *child) bool { return r == row })
		}
		row.proc, row.restarting = nil, false
	})
}

// link records p as a child before it starts. It returns false if the supervisor is
// dead.
func (s *supervisor) link(p *Proc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return false
	}
	s.links[p] = struct{}{}
	return true
}

// linked returns the linked processes.
func (s *supervisor) linked() (procs []*Proc) {
	s.update(func() { procs = slices.Collect(maps.Keys(s.links)) })
	return procs
}

// lost is called by a child that has ended, in its goroutine. A child whose start
// failed sends no message, because the supervisor is waiting for it.
func (s *supervisor) lost(p *Proc, begun bool, reason error) {
	s.mu.Lock()
	delete(s.links, p)
	if p.task != nil {
		s.tasks--
	}
	s.mu.Unlock()
	if begun && p.task == nil {
		s.p.server.send(Msg{Kind: InfoMsg, Body: childEnded{p, reason}})
	}
}

// orphan is called when the supervisor is dead. Children that it did not stop get its
// reason as exit signal.
func (s *supervisor) orphan(reason error) {
	s.update(func() { s.gone, s.open = true, false })
	for _, p := range s.linked() {
		p.orphaned(reason)
	}
}

// window is a supervisor's restart intensity. It counts in whole seconds, so
// the window is anything from period to period + 1 s, as in OTP.
type window struct {
	limit    int
	period   int64 // seconds
	restarts []int64
}

// add counts a restart at second now. It returns false if that is one too many.
func (w *window) add(now int64) bool {
	w.restarts = slices.DeleteFunc(w.restarts, func(at int64) bool { return at < now-w.period })
	w.restarts = append(w.restarts, now)
	return len(w.restarts) <= w.limit
}
