package otp

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Ctx is a Server's access to its own process. It is valid inside callbacks only.
type Ctx struct {
	s        *server
	logger   *zerolog.Logger // nil: not asked for yet
	monitors map[*monitor]struct{}
	asyncs   sync.WaitGroup // goroutines of Async
}

// Self returns the process.
func (c *Ctx) Self() *Proc { return c.s.p }

// Name returns the name of the process.
func (c *Ctx) Name() string { return c.s.p.Name() }

// Logger returns the system's logger with the name of the process.
func (c *Ctx) Logger() *zerolog.Logger {
	if c.logger == nil {
		l := c.s.p.sys.opts.Logger.With().Str("proc", c.Name()).Logger()
		c.logger = &l
	}
	return c.logger
}

// Context is cancelled only when the process is killed: a graceful stop does not
// abort the work in progress. After it is cancelled, a successor may already run.
func (c *Ctx) Context() context.Context { return c.s.p.ctx }

// UntilStop returns a context for long callbacks. It is cancelled, with the reason as
// cause, as soon as the process is asked to end.
func (c *Ctx) UntilStop() context.Context {
	s := c.s
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.soft == nil {
		s.soft, s.softEnd = context.WithCancelCause(s.p.ctx)
		if s.p.phase >= ending {
			s.softEnd(s.p.reason)
		}
	}
	return s.soft
}

// Stop ends the process with reason (nil: [ErrNormal]) after the running callback.
// Queued messages are not handled. In Terminate it replaces the reason.
func (c *Ctx) Stop(reason error) { c.s.p.end(reason, c.s.terminated) }

// Suspend marks the process as waiting for something outside to come back. The tree
// shows it as suspended, which is not a failure. A repeated call with the same text does
// nothing, and an empty text resumes.
func (c *Ctx) Suspend(why string) {
	s, p := c.s, c.s.p
	p.mu.Lock()
	before, late := s.detail, p.phase == dead
	s.detail = why
	p.mu.Unlock()
	kind := EventSuspended
	if why == "" {
		kind = EventResumed
	}
	if !late && before != why {
		p.sys.emit(Event{Kind: kind, Proc: p, Detail: why})
	}
}

// Resume ends the suspension.
func (c *Ctx) Resume() { c.Suspend("") }

// unexpected logs a message that the server does not know. The process does not
// crash, because any process could send one.
func (c *Ctx) unexpected(what string, msg any) {
	c.Logger().Warn().Str("kind", what).Str("type", fmt.Sprintf("%T", msg)).Msg("unexpected message")
}

// release cancels the monitors and waits for the Async goroutines.
func (c *Ctx) release() {
	for m := range c.monitors {
		m.unwatch()
	}
	c.asyncs.Wait() // the caller has set a deadline
}

// Async runs f in a goroutine that belongs to this incarnation. Its result
// arrives in HandleInfo, unless it is nil. A panic in f is a crash of the process. ctx is
// that of UntilStop; the process then waits for f to return, as if it were a callback.
func (c *Ctx) Async(f func(ctx context.Context) any) {
	ctx := c.UntilStop()
	c.asyncs.Add(1)
	c.s.p.sys.engine.pool.Schedule(func() {
		defer c.asyncs.Done()
		protect(func() {
			if result := f(ctx); result != nil {
				c.s.send(Msg{Kind: InfoMsg, Body: result})
			}
		}, c.s.p.crash)
	})
}

// Down is delivered to HandleInfo of a process that monitors Proc, once.
type Down struct {
	Proc   *Proc
	Reason error
}

// monitor is the watching process's side of a Monitor call.
type monitor struct {
	unwatch func()
	off     bool
}

// Monitor delivers [Down] to HandleInfo when p ends: at once if it has already ended,
// and with [ErrNoProc] if p is nil. After demonitor no Down comes, not even a queued
// one. The monitor ends with the process that made it.
func (c *Ctx) Monitor(p *Proc) (demonitor func()) {
	m := &monitor{unwatch: func() {}}
	if c.monitors == nil {
		c.monitors = map[*monitor]struct{}{}
	}
	c.monitors[m] = struct{}{}
	notify := func(reason error) {
		c.s.send(Msg{Kind: InfoMsg, Body: notice(func() (any, bool) {
			delete(c.monitors, m)
			return Down{p, reason}, !m.off
		})})
	}
	if p == nil {
		notify(ErrNoProc)
	} else {
		m.unwatch = p.Watch(notify)
	}
	return func() {
		m.off = true
		m.unwatch()
		delete(c.monitors, m)
	}
}

// timer delivers a message to one incarnation, once or at an interval.
type timer struct {
	s      *server
	clock  *time.Timer
	every  time.Duration // 0: once
	body   any
	queued atomic.Bool // a tick waits in the mailbox
	off    atomic.Bool
}

// SendAfter delivers msg to HandleInfo of this incarnation after d. After cancel it
// does not come, even if it was already queued. The timer ends with the process.
func (c *Ctx) SendAfter(d time.Duration, msg any) (cancel func()) {
	return c.s.startTimer(d, 0, msg)
}

// SendEvery delivers msg to HandleInfo every d, see untilTick. A tick is left out while the
// previous one is still queued, so a slow server is not flooded.
func (c *Ctx) SendEvery(d time.Duration, msg any) (cancel func()) {
	return c.s.startTimer(d, d, msg)
}

func (s *server) startTimer(d, every time.Duration, msg any) (cancel func()) {
	t := &timer{s: s, every: every, body: msg}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.phase >= ending {
		return func() {}
	}
	if s.timers == nil {
		s.timers = map[*timer]struct{}{}
	}
	s.timers[t] = struct{}{}
	t.clock = time.AfterFunc(d, t.fire)
	return t.cancel
}

// untilTick returns the time from now to the next tick of a timer. Ticks that are seconds
// apart come when a second begins: the servers of an idle process then wake it once a second,
// together. That makes at most the second tick come early.
func untilTick(now time.Time, every time.Duration) time.Duration {
	if every < time.Second {
		return every
	}
	return now.Add(every).Truncate(time.Second).Sub(now)
}

// fire runs when the time is over, in a goroutine of the runtime.
func (t *timer) fire() {
	p := t.s.p
	p.mu.Lock()
	wanted := !t.off.Load() && p.phase != dead
	switch {
	case !wanted:
	case t.every > 0:
		t.clock.Reset(untilTick(time.Now(), t.every))
		wanted = !t.queued.Swap(true)
	default:
		delete(t.s.timers, t)
	}
	p.mu.Unlock()
	if wanted {
		t.s.send(Msg{Kind: InfoMsg, Body: notice(t.open)})
	}
}

func (t *timer) open() (any, bool) {
	t.queued.Store(false)
	return t.body, !t.off.Load()
}

func (t *timer) cancel() {
	t.off.Store(true)
	t.clock.Stop()
	t.s.p.mu.Lock()
	delete(t.s.timers, t)
	t.s.p.mu.Unlock()
}
