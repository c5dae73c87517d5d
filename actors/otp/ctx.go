package otp

import (
	"context"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
)

// Ctx is what a Server may ask of its own process. It is valid inside callbacks
// only.
type Ctx struct {
	s        *server
	logger   *zerolog.Logger
	monitors map[*monitor]struct{}
	asyncs   sync.WaitGroup // goroutines of Async
}

// Self returns the process.
func (c *Ctx) Self() *Proc { return c.s.p }

// Name returns the name of the process.
func (c *Ctx) Name() string { return c.s.p.Name() }

// System returns the system that the process lives in.
func (c *Ctx) System() *System { return c.s.p.sys }

// Logger returns the system's logger with the name of the process.
func (c *Ctx) Logger() zerolog.Logger {
	if c.logger == nil {
		l := c.s.p.sys.opts.Logger.With().Str("proc", c.Name()).Logger()
		c.logger = &l
	}
	return *c.logger
}

// Context is cancelled at the hard deadline only, when the process is killed:
// a graceful stop does not abort the work in progress. Whoever goes on after it
// is cancelled may have a successor already.
func (c *Ctx) Context() context.Context { return c.s.p.ctx }

// Stopping is closed when the process has been asked to end. Long callbacks
// look at it between two pieces of work.
func (c *Ctx) Stopping() <-chan struct{} { return c.s.softContext().Done() }

// Stop ends the process with reason (nil: [ErrNormal]) after the running
// callback. Messages behind it are not handled. In Terminate it replaces the
// reason.
func (c *Ctx) Stop(reason error) {
	if reason == nil {
		reason = ErrNormal
	}
	p := c.s.p
	p.mu.Lock()
	first := p.endLocked(reason)
	if !first && c.s.terminated && p.phase == ending && !p.killed {
		p.reason = reason
	}
	p.mu.Unlock()
	if first {
		p.wake(reason)
	}
}

// Suspend says that the process waits for something outside to come back: not a
// failure, and shown as such in the tree. Repeating it with the same words is
// free.
func (c *Ctx) Suspend(why string) { c.s.suspend(why) }

// Resume ends what Suspend began.
func (c *Ctx) Resume() { c.s.suspend("") }

// suspend sets why the process is suspended; empty: it is not.
func (s *server) suspend(why string) {
	p := s.p
	p.mu.Lock()
	before, late := s.detail, p.phase == dead
	s.detail = why
	p.mu.Unlock()
	switch {
	case late || before == why:
	case why == "":
		p.sys.emit(Event{Kind: EventResumed, Proc: p})
	default:
		p.sys.emit(Event{Kind: EventSuspended, Proc: p, Detail: why})
	}
}

// unexpected logs a message that the server does not know. It is no reason to
// crash: a stranger could send it.
func (c *Ctx) unexpected(what string, msg any) {
	l := c.Logger()
	l.Warn().Str("kind", what).Str("type", fmt.Sprintf("%T", msg)).Msg("unexpected message")
}

// release gives up what belongs to this incarnation.
func (c *Ctx) release() {
	if c == nil {
		return
	}
	for m := range c.monitors {
		m.cancel()
	}
	c.monitors = nil
	c.asyncs.Wait() // whoever ordered the end keeps the time
}
