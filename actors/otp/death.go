package otp

import "time"

// finish makes p dead. Its own goroutine calls it when all callbacks are over. A process
// that was killed and did not return in time is abandoned: it is stuck, and the call that
// its goroutine makes later only removes it from the leaked ones.
//
// The order matters: the exit is reported and the name is free before the supervisor can
// react, and the supervisor gets its message before done is closed. So a request to the
// supervisor that is made after done was closed is handled after this end.
func (p *Proc) finish(stuck bool) {
	p.mu.Lock()
	if p.phase == dead {
		p.mu.Unlock()
		if !stuck {
			p.sys.update(func() { delete(p.sys.leaked, p) })
			p.sys.emit(Event{Kind: EventReturned, Proc: p})
		}
		return
	}
	p.endLocked(ErrNormal)
	if p.killed.Load() {
		p.reason = ErrKilled
	}
	if stuck {
		p.sys.update(func() { p.sys.leaked[p] = struct{}{} }) // under the lock: finish must find it
	}
	if p.grace != nil {
		p.grace.Stop()
	}
	p.phase, p.stuck = dead, stuck
	begun, reason := p.begun, p.reason
	p.mu.Unlock()

	if p.server != nil {
		p.server.close()
	}
	if stuck {
		p.sys.emit(Event{Kind: EventAbandoned, Proc: p, Reason: reason, Stack: p.sys.dump()})
	}
	if begun && (p.task == nil || !orderly(reason)) {
		p.sys.emit(Event{Kind: EventExit, Proc: p, Reason: reason})
	}
	if p.name != "" {
		p.freeName(false)
	}
	p.endContext(reason)
	if p.supervisor != nil {
		p.supervisor.orphan(reason)
	}
	if p.parent != nil {
		p.parent.lost(p, begun, reason)
	} else {
		p.sys.forget(p)
	}
	close(p.done)
	if !begun {
		close(p.up)
	}

	// Last, so that watchers find everything removed and orphans adopted.
	p.mu.Lock()
	watchers := p.watchers
	p.watchers, p.notified = nil, true
	p.mu.Unlock()
	for w := range watchers {
		(*w)(reason)
	}
}

// orphaned is called for a child whose supervisor died without stopping it. The
// child gets the supervisor's reason as exit signal. Its name is freed at once,
// because the restarted supervisor needs it for the successor. A deadline is set
// here, because no supervisor is left to enforce one.
func (p *Proc) orphaned(reason error) {
	const orphanLimit = 10 * time.Second
	p.hide()
	p.sys.adopt(p)
	p.Exit(reason)
	limit := time.AfterFunc(orphanLimit, p.Kill)
	p.Watch(func(error) { limit.Stop() })
}

// hide frees the name of p and of all processes below it. They get no names again.
func (p *Proc) hide() {
	p.freeName(true)
	if p.supervisor != nil {
		for _, child := range p.supervisor.linked() {
			child.hide()
		}
	}
}

// Watch calls f with the reason when the process has ended, at once if it has
// already. It is for callers that are not processes, which can't use
// [Ctx.Monitor]. f runs in the goroutine in which the process ends, after its name
// is free, and must be quick. After cancel no call of f begins, but one may be running.
func (p *Proc) Watch(f func(reason error)) (cancel func()) {
	p.mu.Lock()
	if p.notified {
		reason := p.reason
		p.mu.Unlock()
		f(reason)
		return func() {}
	}
	if p.watchers == nil {
		p.watchers = map[*func(error)]struct{}{}
	}
	p.watchers[&f] = struct{}{}
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.watchers, &f)
		p.mu.Unlock()
	}
}
