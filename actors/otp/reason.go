package otp

import (
	"errors"
	"fmt"
)

// sentinel is the type of the package's error constants. They are constants so that
// they cannot be assigned to.
type sentinel string

func (s sentinel) Error() string { return string(s) }

// Reasons for which a process ends. A reason is an error. [Proc.Reason] returns it,
// Terminate and [Down] get it.
const (
	// ErrNormal is the end of a process that has finished its work.
	ErrNormal = sentinel("normal")
	// ErrShutdown is an orderly end: a supervisor ordered it, or the process is a
	// supervisor that gave up. See also [Shutdown].
	ErrShutdown = sentinel("shutdown")
	// ErrKilled is the end of a process that was killed, by BrutalKill or because its
	// shutdown time was over. Terminate did not run, or did not finish.
	ErrKilled = sentinel("killed")
	// ErrGoexit is the end of a process whose callback called runtime.Goexit.
	ErrGoexit = sentinel("goexit")
)

// Errors of calls.
const (
	// ErrNoProc means that there was no process when the call was made.
	ErrNoProc = sentinel("noproc")
	// ErrTimeout means that no reply came in time; the request may still be
	// handled.
	ErrTimeout = sentinel("timeout")
	// ErrOverload means that the mailbox was full and the request not queued.
	ErrOverload = sentinel("mailbox full")
	// ErrBadReply means that the reply has another type than the caller expects.
	ErrBadReply = sentinel("reply of unexpected type")
	// ErrNotSupervisor answers supervisor requests made to another process.
	ErrNotSupervisor = sentinel("not a supervisor")
)

// Error values of supervisor requests, in OTP's words. The last two are
// [RestartRunning]'s and have no word in OTP.
const (
	ErrRunning         = sentinel("running")
	ErrRestarting      = sentinel("restarting")
	ErrNotFound        = sentinel("not_found")
	ErrAlreadyPresent  = sentinel("already_present")
	ErrSimpleOneForOne = sentinel("simple_one_for_one")
	ErrMaxChildren     = sentinel("max_children")
	ErrTemporary       = sentinel("temporary")   // it is never restarted
	ErrNotRunning      = sentinel("not_running") // it is stopped: see RestartChild
)

// Ignore is returned by Init if the process is not needed: the start
// counts as successful, but there is no process. Requests that start such a
// child return it too.
const Ignore = sentinel("ignore")

// Shutdown returns the reason {shutdown, term}: an orderly end with an
// explanation. errors.Is(reason, ErrShutdown) is true.
func Shutdown(term any) error { return &ShutdownError{Term: term} }

// ShutdownError is the reason that [Shutdown] makes.
type ShutdownError struct{ Term any }

func (e *ShutdownError) Error() string { return fmt.Sprintf("shutdown: %v", e.Term) }

// Is makes every ShutdownError an [ErrShutdown].
func (e *ShutdownError) Is(target error) bool { return target == ErrShutdown }

// Unwrap gives the term if that is an error.
func (e *ShutdownError) Unwrap() error {
	err, _ := e.Term.(error)
	return err
}

// PanicError is the reason of a process whose callback panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the panic value if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// DownError is a call that failed because the called process is not there
// (Reason is [ErrNoProc]) or ended, with Reason, before it replied.
type DownError struct {
	Name   string
	Reason error
}

func (e *DownError) Error() string { return fmt.Sprintf("process %s is down: %v", e.Name, e.Reason) }

// Unwrap gives the reason.
func (e *DownError) Unwrap() error { return e.Reason }

// ChildError is {failed_to_start_child, ID, Reason}. StartChild returns it as
// it is; a supervisor that can't boot fails with Shutdown(*ChildError).
type ChildError struct {
	ID     string
	Reason error
}

func (e *ChildError) Error() string { return fmt.Sprintf("starting child %s: %v", e.ID, e.Reason) }

// Unwrap gives the reason.
func (e *ChildError) Unwrap() error { return e.Reason }

// AlreadyStartedError means that the child, or a process of that name, already runs.
type AlreadyStartedError struct{ Proc *Proc }

func (e *AlreadyStartedError) Error() string { return "already started: " + e.Proc.Name() }

// SpecError is an invalid supervisor or child specification. Group is OTP's
// outer word (supervisor_data, start_spec, bad_start_spec, or empty when a
// request was refused). Problem is what is wrong, Value the invalid value.
type SpecError struct {
	Group, Problem string
	Value          any
}

func (e *SpecError) Error() string {
	if e.Group == "" {
		return fmt.Sprintf("invalid child specification: %s: %v", e.Problem, e.Value)
	}
	return fmt.Sprintf("%s: %s: %v", e.Group, e.Problem, e.Value)
}

// orderly reports whether reason is normal, shutdown or {shutdown, term}. A
// transient child is not restarted after such an end. An error that only carries the
// end of another process (a failed call, a panic with such a value) is not orderly.
// In Erlang it is; see the package comment.
func orderly(reason error) bool {
	if reason == ErrNormal || reason == ErrShutdown { //nolint:errorlint // most ends: no search, no allocation
		return true
	}
	var down *DownError
	var crash *PanicError
	if errors.As(reason, &down) || errors.As(reason, &crash) {
		return false
	}
	return errors.Is(reason, ErrNormal) || errors.Is(reason, ErrShutdown)
}
