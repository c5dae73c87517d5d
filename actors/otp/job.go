package otp

import (
	"context"
	"time"
)

// Job is work that a server has done in another goroutine, one run at a time: a query, a
// sweep, a connection that it keeps. It is a field of the server, and only the server's callbacks may
// use it. Its fields are set in Init and not changed later. Its messages never reach
// HandleInfo; a [BatchServer] gets a result before the batch that arrived with it.
//
// A run is a goroutine of [Ctx.Async]: a panic in it is a crash of the process, its context
// ends when the process is asked to end, and the process waits for it.
type Job[R any] struct {
	// Begin returns the work of the next run; nil if there is none now. Begin may read the
	// server's fields, because it is called by the server. The work must not. Required.
	Begin func() (work func(ctx context.Context) (R, error))
	// Done handles the result of a run, in the server. next is the pause before the next
	// run; 0: none is planned. Required.
	Done func(c *Ctx, result R, err error) (next time.Duration)
	// Outage returns the argument of [Ctx.Suspend] after a run that ended with err: what the
	// process waits for, or "" if err is nil or no outage. It is called before Done. nil means
	// that the job never suspends the process.
	Outage func(err error) string

	running bool
	again   bool      // requested while it ran
	due     time.Time // of the planned run
	unplan  func()    // cancels the planned run; nil: none is planned
}

// Start begins a run in place of the planned one. If one is running, another one follows it
// immediately, only one however often Start was called meanwhile.
func (j *Job[R]) Start(c *Ctx) {
	j.again = true
	j.Tick(c)
}

// Tick begins a run in place of the planned one, unless a run is under way.
func (j *Job[R]) Tick(c *Ctx) {
	if j.running {
		return
	}
	j.again = false
	work := j.Begin()
	if work == nil {
		return
	}
	if j.unplan != nil {
		j.unplan()
		j.unplan = nil
	}
	j.running = true
	c.Async(func(ctx context.Context) any {
		result, err := work(ctx)
		return handled(func() { j.ended(c, result, err) })
	})
}

// In plans a run for d from now, unless one is planned for earlier.
func (j *Job[R]) In(c *Ctx, d time.Duration) {
	due := time.Now().Add(d)
	if j.unplan != nil {
		if !due.Before(j.due) {
			return
		}
		j.unplan()
	}
	j.due = due
	j.unplan = c.SendAfter(d, handled(func() {
		j.unplan = nil
		j.Start(c)
	}))
}

// Every calls Tick at an interval, see [Ctx.SendEvery], until cancel is called.
func (j *Job[R]) Every(c *Ctx, d time.Duration) (cancel func()) {
	return c.SendEvery(d, handled(func() { j.Tick(c) }))
}

// Running reports whether a run is under way. In Done it is not.
func (j *Job[R]) Running() bool { return j.running }

// Outdated reports, in Done, whether Start was called during the run that has just ended.
func (j *Job[R]) Outdated() bool { return j.again }

func (j *Job[R]) ended(c *Ctx, result R, err error) {
	j.running = false
	if j.Outage != nil {
		c.Suspend(j.Outage(err)) // an empty text resumes
	}
	next := j.Done(c, result, err)
	switch {
	case j.again:
		j.Tick(c)
	case next > 0:
		j.In(c, next)
	}
}

// handled returns a message that f handles, in the server.
func handled(f func()) notice {
	return func() (any, bool) {
		f()
		return nil, false
	}
}
