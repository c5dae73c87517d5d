package otp

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// phase is how far a process has come. It only grows.
type phase uint8

const (
	starting phase = iota
	running
	ending // has a reason to end; callbacks may still run
	dead   // all is released, except that its goroutine may be stuck
)

// Proc is one incarnation of a process: a server, a supervisor or a task. A
// restart makes a new Proc. Its methods may be used from any goroutine, also after
// its end. For [Call] and [Cast] a nil Proc means that there is no process.
type Proc struct {
	sys    *System
	id     uint64       // unique in its system
	label  string       // last part of its path
	task   fmt.Stringer // label of a task of RunTask, which has no row at its supervisor and few events
	name   string       // registered name; empty: none
	spec   *ChildSpec
	parent *supervisor // nil: no supervisor
	born   time.Time

	// A task has neither of these, a server the first, a supervisor both.
	server     *server
	supervisor *supervisor

	up     chan struct{}   // closed when Init has succeeded or failed; nil: it runs inline
	done   chan struct{}   // closed when it is dead
	ctx    context.Context // the process's own, handed to its callbacks
	cancel context.CancelCauseFunc
	own    taskContext // ctx of a process of RunTask, which has no cancel
	over   atomic.Bool // phase >= ending, readable without the lock
	killed atomic.Bool // by Kill; set under the lock
	shown  bool        // its name is visible; guarded by the names' mutex
	hidden bool        // an orphan: it and what it starts have no names; guarded as shown

	mu       sync.Mutex // guards what follows, and some of the server's fields
	phase    phase
	begun    bool // Init has succeeded
	ordered  bool // by Exit, whose caller enforces the deadline
	stuck    bool // was abandoned
	notified bool // watchers have been called
	reason   error
	watchers map[*func(error)]struct{}
	onEnd    func()      // of a task of RunTask: called when it has to end
	grace    *time.Timer // abandons it after a kill
}

// Name returns the registered name, or the path of a process without one.
func (p *Proc) Name() string {
	if p == nil {
		return "(none)"
	}
	if p.name == "" {
		return p.Path()
	}
	return p.name
}

// Path returns the position in the tree: the ids from the root down. It is built at
// each call, because most processes end before it is needed.
func (p *Proc) Path() string {
	if p.parent == nil {
		return p.label
	}
	if p.task != nil {
		return p.parent.p.Path() + "/" + p.task.String()
	}
	return p.parent.p.Path() + "/" + p.label
}

// Supervisor returns the process's supervisor, nil if it has none.
func (p *Proc) Supervisor() *Proc {
	if p.parent == nil {
		return nil
	}
	return p.parent.p
}

// Done is closed when the process has ended: Terminate has run, the name is free.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Alive reports whether the process has not ended.
func (p *Proc) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Reason returns why the process ended, nil while it has not.
func (p *Proc) Reason() error {
	if p.Alive() {
		return nil
	}
	return p.why()
}

// Mailbox returns how many messages wait or are being handled.
func (p *Proc) Mailbox() int {
	if p.server == nil {
		return 0
	}
	return p.server.box.UserMessageCount()
}

// Handled returns how many messages the process has handled, and how long that
// took in all.
func (p *Proc) Handled() (messages int64, busy time.Duration) {
	if p.server == nil {
		return 0, 0
	}
	return p.server.messages.Load(), time.Duration(p.server.busy.Load())
}

// Kill ends the process at once, as exit(Pid, kill) does: Terminate does not
// run. A process that does not return within [KillGrace] is abandoned.
func (p *Proc) Kill() {
	p.mu.Lock()
	if p.phase != dead && !p.killed.Swap(true) {
		p.grace = time.AfterFunc(KillGrace, func() { p.finish(true) })
	}
	p.endLocked(ErrKilled)
	p.mu.Unlock()
	p.endContext(ErrKilled)
	p.wake(ErrKilled)
}

// Exit asks the process to end with reason, as an exit signal of its supervisor
// does: a server runs Terminate, a supervisor first stops its children, a task
// finds its context cancelled. It does not wait; see [Proc.Done].
func (p *Proc) Exit(reason error) {
	if p.supervisor != nil { // it first handles what is queued
		// Not through its address, which may not be registered yet.
		p.server.box.PostUserMessage(&parcel{msg: Msg{Kind: orderMsg, Body: reason}})
		return
	}
	p.stopBy(reason)
}

// stopBy ends the process by order of its supervisor or of [Proc.Exit].
func (p *Proc) stopBy(order any) {
	reason, _ := order.(error)
	p.mu.Lock()
	p.ordered = true
	p.mu.Unlock()
	p.end(reason, false)
}

// crash ends the process because a callback failed. It replaces the reason of
// an end that is under way, as a crash in terminate does in OTP.
func (p *Proc) crash(reason error) { p.end(reason, true) }

// end makes the process end with reason. If it is ending already, its earlier reason
// stays unless replace is set.
func (p *Proc) end(reason error, replace bool) {
	if reason == nil {
		reason = ErrNormal
	}
	p.mu.Lock()
	if !p.endLocked(reason) && replace && p.phase == ending && !p.killed.Load() {
		p.reason = reason
	}
	p.mu.Unlock()
	p.wake(reason)
}

func (p *Proc) endLocked(reason error) (first bool) {
	if p.phase >= ending {
		return false
	}
	p.phase, p.reason = ending, reason
	p.over.Store(true)
	if p.server != nil && p.server.softEnd != nil {
		p.server.softEnd(reason)
	}
	if p.onEnd != nil {
		p.onEnd()
	}
	return true
}

// wake makes the process notice that it has to end.
func (p *Proc) wake(reason error) {
	if p.server != nil {
		p.server.box.poke()
		return
	}
	p.endContext(reason)
}

func (p *Proc) endContext(cause error) {
	if p.cancel == nil {
		p.own.end(cause)
		return
	}
	p.cancel(cause)
}

// protect runs f. If f panics or ends the goroutine, crashed is called before the
// stack is unwound.
func protect(f func(), crashed func(reason error)) {
	returned := false
	defer func() {
		if !returned {
			crashed(recovered(recover()))
		}
	}()
	f()
	returned = true
}

// recovered turns what stopped a callback into a reason: a panic value, or nil
// for runtime.Goexit.
func recovered(value any) error {
	if value == nil {
		return ErrGoexit
	}
	return &PanicError{Value: value, Stack: debug.Stack()}
}

// why returns the reason that the process has to end, nil if it has not.
func (p *Proc) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

// deadline returns how long a process that ends by itself may take to end. It is
// bounded because a Terminate that hangs must not prevent the restart. It is Infinity
// for supervisors, and for a process that was ordered to end, because the one that
// gave the order enforces a deadline.
func (p *Proc) deadline() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch limit := p.spec.patience(); {
	case p.ordered || p.supervisor != nil:
		return Infinity
	case limit == BrutalKill:
		return defaultShutdown
	default:
		return limit
	}
}

// succeed marks Init as done and makes the name visible. It returns false if the
// process already has to end; then its start fails.
func (p *Proc) succeed() bool {
	p.mu.Lock()
	if p.phase != starting {
		p.mu.Unlock()
		return false
	}
	p.phase, p.begun = running, true
	p.mu.Unlock()
	p.showName()
	close(p.up)
	return true
}

// startError returns why Init failed. Only valid after up was closed.
func (p *Proc) startError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		return nil
	}
	return p.reason
}
