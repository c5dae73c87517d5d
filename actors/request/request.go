package request

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// RestartGap is how long a request waits for a restarting request_sup.
const RestartGap = time.Second

// Requests is the handle of request_sup.
type Requests struct {
	sup otp.Ref
}

// New returns a handle that starts requests under the dynamic supervisor sup.
func New(sup otp.Ref) Requests { return Requests{sup: sup} }

// Supervisor returns the specification of request_sup, for the tree. Requests
// that are still running when it stops get grace to end.
func Supervisor(grace time.Duration) otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.Dynamic,
		Children: []otp.ChildSpec{{
			ID: "request", Restart: otp.Temporary, Shutdown: grace,
			TaskArgs: func(args any) otp.Task {
				task, _ := args.(otp.Task)
				return task
			},
		}},
	}
}

// Do runs fn in a process of its own and returns its error. fn's context has
// ctx's values and ends, with its cause, when ctx ends or when the process is
// told to stop.
//
// A panic in fn is returned as an error that wraps *otp.PanicError. Unavailable
// is returned, and fn not called, if no process could be started within
// [RestartGap]. Do returns when fn has returned, not before: fn may use what
// belongs to its caller. route names the process.
func (r Requests) Do(ctx context.Context, route string, fn func(ctx context.Context) error) error {
	return r.DoWith(ctx, route, func(ctx context.Context, _ context.CancelCauseFunc) error { return fn(ctx) })
}

// DoWith is Do for who wants to end fn's context from outside: fn is given the
// function that does so.
func (r Requests) DoWith(ctx context.Context, route string, fn func(ctx context.Context, end context.CancelCauseFunc) error) error {
	job := &job{ctx: ctx, fn: fn, over: make(chan struct{})}
	proc, err := r.start(ctx, route, otp.Task{Run: job.run})
	if err != nil {
		return err
	}
	<-proc.Done()
	if job.begin() {
		// The process was told to end before it began.
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return unavailable(fmt.Errorf("serving %s: %w", route, proc.Reason()))
	}
	<-job.over // ended as well, unless the process was given up as stuck
	if job.returned {
		return job.err
	}
	return fmt.Errorf("serving %s: %w", route, proc.Reason())
}

// start starts the task, waiting for a supervisor that restarts.
func (r Requests) start(ctx context.Context, route string, task otp.Task) (*otp.Proc, error) {
	proc, err := otp.StartTask(ctx, r.sup, route, task)
	if err == nil {
		return proc, nil
	}
	gap, cancel := context.WithTimeoutCause(ctx, RestartGap, errNoSupervisor)
	defer cancel()
	for err != nil {
		var sup *otp.Proc
		if sup, err = r.sup.Await(gap); err != nil {
			break
		}
		if proc, err = otp.StartTask(gap, sup, route, task); err == nil {
			return proc, nil
		}
		if !isDown(err) {
			break
		}
		// It ended between the two: wait until its name is free again.
		select {
		case <-sup.Done():
		case <-gap.Done():
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, unavailable(err)
}

var errNoSupervisor = errors.New("request supervisor did not come back in time")

func isDown(err error) bool {
	var down *otp.DownError
	return errors.As(err, &down) || errors.Is(err, otp.ErrNoProc)
}

func unavailable(cause error) error {
	e := store.Wrap(store.Unavailable, "Request could not be served, try again", cause)
	e.RetryAfter = time.Second
	return e
}

// job is one request. begun decides who has it: the process that runs it, or
// its caller if the process ended before it began.
type job struct {
	ctx      context.Context //nolint:containedctx // the caller's, alive as long as Do
	fn       func(ctx context.Context, end context.CancelCauseFunc) error
	begun    atomic.Bool
	over     chan struct{} // closed when run has ended
	returned bool          // fn has returned, not panicked
	err      error
}

// begin reports whether the caller is first to take the job.
func (j *job) begin() bool { return j.begun.CompareAndSwap(false, true) }

// run is the process. fn's error is its caller's, not a failure of the process.
func (j *job) run(process context.Context) error {
	if !j.begin() {
		return nil
	}
	defer close(j.over)
	ctx, cancel := context.WithCancelCause(j.ctx)
	defer cancel(nil)
	stop := context.AfterFunc(process, func() { cancel(context.Cause(process)) })
	defer stop()
	j.err = stopped(process, j.fn(ctx, cancel)) //nolint:contextcheck // the caller's context, ended by the process as well
	j.returned = true
	return nil
}

// stopped makes the failure of a request that ended because its process was told
// to what it is for the caller: nothing wrong with the request, so try again.
func stopped(process context.Context, err error) error {
	var known *store.Error
	if cause := context.Cause(process); cause == nil || !errors.Is(err, cause) || errors.As(err, &known) {
		return err
	}
	return unavailable(err)
}
