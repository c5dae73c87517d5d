package otp

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// taskContext is the context of a process of [RunTask]. It is derived from the caller's only
// when somebody waits for its end, because most requests are over before and deriving costs as
// much as the rest of the process.
type taskContext struct {
	parent context.Context
	own    atomic.Pointer[ownContext] // nil until it is needed
	over   atomic.Bool                // end was called

	mu    sync.Mutex // guards what follows, and the change of own and over
	cause error      // of the end, unless the parent had ended before
}

type ownContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

// derive returns a context of its own, which has ended if end was called.
func (c *taskContext) derive() context.Context {
	if own := c.own.Load(); own != nil {
		return own.Context
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.own.Load()
	if own == nil {
		own = &ownContext{}
		if c.cause == nil {
			own.Context, own.cancel = context.WithCancelCause(c.parent)
		} else { // an end of the parent comes later
			own.Context, own.cancel = context.WithCancelCause(context.WithoutCancel(c.parent))
			own.cancel(c.cause)
		}
		c.own.Store(own)
	}
	return own.Context
}

// end ends the context. Only the first cause counts, as in package context.
func (c *taskContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over.Load() {
		return
	}
	c.over.Store(true)
	if own := c.own.Load(); own != nil {
		own.cancel(cause)
	} else if c.parent.Err() == nil {
		c.cause = cause
	}
}

// now returns a context that answers what does not need to be waited for. Once the context has
// ended, the parent knows neither that nor the cause.
func (c *taskContext) now() context.Context {
	if c.over.Load() || c.own.Load() != nil {
		return c.derive()
	}
	return c.parent
}

func (c *taskContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }
func (c *taskContext) Done() <-chan struct{}       { return c.derive().Done() }
func (c *taskContext) Err() error                  { return c.now().Err() }
func (c *taskContext) Value(key any) any           { return c.now().Value(key) }
