package otp

import (
	"sync"
	"time"
)

// supervisor is the Server of a supervisor process. Everything is done in its
// own goroutine, in the order in which requests and exits arrive; while it
// starts or stops a child it handles nothing else, as in OTP.
type supervisor struct {
	Base
	p      *Proc
	make   func() SupSpec
	spec   SupSpec
	window window

	// The mutex guards what follows. Rows and instances are written by the
	// supervisor's goroutine only, which therefore reads them without it.
	mu        sync.Mutex
	rows      []*child           // in start order
	instances map[*Proc]*child   // of a Dynamic supervisor, by last incarnation
	links     map[*Proc]struct{} // processes that hear of our end
	tasks     int                // those among links that StartTask made
	open      bool               // StartTask is welcome
	gone      bool               // we are dead: no more links
}

// child is one row of a supervisor's table.
type child struct {
	spec       *ChildSpec
	args       any    // of an instance
	key        string // of an instance
	proc       *Proc  // nil: not running; of a restarting one: the last incarnation, if known
	restarting bool   // a retry is queued

	restarts   int
	lastExit   error
	lastExitAt time.Time
}

// alive reports whether the row has a process, as far as the supervisor knows.
func (c *child) alive() bool { return c.proc != nil && !c.restarting }

// stopped reports whether the row has neither a process nor a retry under way.
func (c *child) stopped() bool { return c.proc == nil && !c.restarting }

// childEnded is what a supervisor gets when a child has ended.
type childEnded struct {
	proc   *Proc
	reason error
}

// retry is what a supervisor sends to itself when a restart attempt failed, so
// that requests and exits that have arrived meanwhile are handled first.
type retry struct {
	id   string
	proc *Proc // names the instance of a Dynamic supervisor
}

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
	if s.dynamic() {
		s.update(func() {
			s.instances = map[*Proc]*child{}
			s.open = true
		})
		return nil
	}
	for i := range s.spec.Children {
		s.update(func() { s.rows = append(s.rows, &child{spec: &s.spec.Children[i]}) })
	}
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
	value, err := r.handle(s)
	if s.p.isKilled() {
		return NoReply, nil // the caller learns of our end
	}
	return value, err
}

// HandleInfo handles the end of a child.
func (s *supervisor) HandleInfo(c *Ctx, msg any) {
	e, ok := msg.(childEnded)
	if !ok {
		c.unexpected("info", msg)
		return
	}
	row := s.rowOf(e.proc)
	if row == nil || !row.alive() {
		return // we have stopped it ourselves
	}
	s.update(func() { row.lastExit, row.lastExitAt = e.reason, time.Now() })
	if !s.ended(row, e.reason) {
		c.Stop(ErrShutdown)
	}
}

// HandleCast handles the retry of a failed restart, unless the child has been
// stopped, deleted or revived meanwhile.
func (s *supervisor) HandleCast(c *Ctx, msg any) {
	r, ok := msg.(retry)
	if !ok {
		c.unexpected("cast", msg)
		return
	}
	row := s.rowByID(r.id)
	if s.dynamic() {
		row = s.instances[r.proc]
	}
	if row != nil && row.restarting && !s.restart(row) {
		c.Stop(ErrShutdown)
	}
}

// Terminate stops the children: in reverse order, instances all at once.
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
	again := row.spec.Restart == Permanent || row.spec.Restart == Transient && !orderly(reason)
	if again {
		return s.restart(row)
	}
	s.drop(row)
	return !s.autoShutdown(row)
}

// autoShutdown reports whether the end of row ends the supervisor.
func (s *supervisor) autoShutdown(row *child) bool {
	if !row.spec.Significant {
		return false
	}
	switch s.spec.AutoShutdown {
	case AnySignificant:
		return true
	case AllSignificant:
		for _, other := range s.rows {
			if other.spec.Significant && !other.stopped() {
				return false
			}
		}
		return len(s.instances) == 0
	default:
		return false
	}
}

// dynamic reports whether this is a simple_one_for_one supervisor.
func (s *supervisor) dynamic() bool { return s.spec.Strategy == Dynamic }

// update changes what the mutex guards.
func (s *supervisor) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
