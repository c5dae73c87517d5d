package otp

import (
	"runtime"
	"time"
)

// EventKind is what an [Event] reports.
type EventKind uint8

// The kinds of events.
const (
	// EventStarted: a child is up. Reported by its supervisor.
	EventStarted EventKind = iota
	// EventIgnored: a start returned [Ignore].
	EventIgnored
	// EventStartFailed: a start failed with Reason.
	EventStartFailed
	// EventExit: a process that was up has ended with Reason. Reported by the
	// process itself, before its supervisor gets the message.
	EventExit
	// EventRestarting: a supervisor begins to restart the child.
	EventRestarting
	// EventGaveUp: a supervisor has had too many restarts and ends.
	EventGaveUp
	// EventSuspended: a process waits for something outside; see Detail.
	EventSuspended
	// EventResumed: a suspended process continues.
	EventResumed
	// EventAbandoned: a killed process did not return; it counts as leaked.
	EventAbandoned
	// EventReturned: an abandoned process has returned after all.
	EventReturned
)

// String returns the kind in snake case, for logs and metrics.
func (k EventKind) String() string {
	return word(k, "started", "ignored", "start_failed", "exit", "restarting", "gave_up",
		"suspended", "resumed", "abandoned", "returned")
}

// Event is one thing that happened in a supervision tree.
type Event struct {
	Kind     EventKind
	Path     string // of the process
	ID       string // of its child specification; empty: unsupervised
	Type     ChildType
	Reason   error
	Restarts int // EventRestarting: of this child so far, in this supervisor's life
	At       time.Time
	Detail   string
	Lifetime time.Duration // EventExit: how long it ran
	Stack    []byte        // EventAbandoned: all goroutines, cut to 64 KiB; may be empty
	Proc     *Proc         // nil when there is no process
}

// Abnormal reports whether the event needs an operator's attention. Starts, resumes,
// returns and orderly ends do not.
func (e Event) Abnormal() bool {
	switch e.Kind {
	case EventStarted, EventIgnored, EventResumed, EventReturned:
		return false
	case EventExit:
		return !orderly(e.Reason)
	default:
		return true
	}
}

// emit completes e and hands it to the hook.
func (s *System) emit(e Event) {
	if s.opts.OnEvent == nil {
		return
	}
	e.At = time.Now()
	if p := e.Proc; p != nil {
		e.Path, e.ID, e.Type = p.Path(), p.spec.ID, p.spec.childType()
		if e.Kind == EventExit {
			e.Lifetime = e.At.Sub(p.born)
		}
	}
	defer func() { // a panic of the hook must not disturb the process that ends
		if value := recover(); value != nil {
			s.opts.Logger.Error().Interface("panic", value).Msg("event hook panicked")
		}
	}()
	s.opts.OnEvent(e)
}

// dump returns the stacks of all goroutines, at most once a second, because it stops
// the world. Otherwise it returns nil.
func (s *System) dump() []byte {
	now := time.Now().UnixNano()
	last := s.dumped.Load()
	if now-last < int64(time.Second) || !s.dumped.CompareAndSwap(last, now) {
		return nil
	}
	stack := make([]byte, 64<<10)
	return stack[:runtime.Stack(stack, true)]
}
