package otp

import (
	"sync/atomic"
	"time"
)

// timer delivers a message to one incarnation, once or at an interval.
type timer struct {
	s      *server
	clock  *time.Timer
	every  time.Duration // 0: once
	body   any
	queued atomic.Bool // a tick waits in the mailbox
	off    atomic.Bool
}

// SendAfter delivers msg to HandleInfo of this incarnation after d. After
// cancel it does not come, even if it was queued already. The timer dies with
// the process.
func (c *Ctx) SendAfter(d time.Duration, msg any) (cancel func()) {
	return c.s.startTimer(d, 0, msg)
}

// SendEvery delivers msg to HandleInfo every d. A tick that comes while the one
// before is still queued is left out, so a slow server is not flooded.
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

// fire runs when the time is over, in a goroutine of the runtime.
func (t *timer) fire() {
	if !t.rearm() {
		return
	}
	if t.every > 0 && t.queued.Swap(true) {
		return
	}
	t.s.send(letter{kind: infoLetter, body: t})
}

// rearm prepares the next tick. It returns false when the timer is over.
func (t *timer) rearm() bool {
	t.s.p.mu.Lock()
	defer t.s.p.mu.Unlock()
	if t.off.Load() || t.s.p.phase == dead {
		return false
	}
	if t.every > 0 {
		t.clock.Reset(t.every)
	} else {
		delete(t.s.timers, t)
	}
	return true
}

func (t *timer) open() (any, bool) {
	t.queued.Store(false)
	return t.body, !t.off.Load()
}

func (t *timer) cancel() {
	t.stop()
	t.s.p.mu.Lock()
	delete(t.s.timers, t)
	t.s.p.mu.Unlock()
}

func (t *timer) stop() {
	t.off.Store(true)
	t.clock.Stop()
}
