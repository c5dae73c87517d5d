package otp

import "sync/atomic"

// Down is delivered to HandleInfo of a process that monitors Proc, once.
type Down struct {
	Proc   *Proc
	Reason error
}

// monitor is one side of a Monitor call: the watching process's.
type monitor struct {
	down    Down
	unwatch func()
	off     atomic.Bool
}

// Monitor makes the end of p arrive as [Down] in HandleInfo, at once if it has
// ended already, with [ErrNoProc] if p is nil. After demonitor no Down comes, not even a queued one. The
// monitor ends with the process that made it.
func (c *Ctx) Monitor(p *Proc) (demonitor func()) {
	m := &monitor{down: Down{Proc: p}}
	if c.monitors == nil {
		c.monitors = map[*monitor]struct{}{}
	}
	c.monitors[m] = struct{}{}
	notify := func(reason error) {
		m.down.Reason = reason
		c.s.send(letter{kind: infoLetter, body: &downNotice{m: m, c: c}})
	}
	if p == nil {
		m.unwatch = func() {}
		notify(ErrNoProc)
	} else {
		m.unwatch = p.watch(notify)
	}
	return func() {
		m.cancel()
		delete(c.monitors, m)
	}
}

func (m *monitor) cancel() {
	m.off.Store(true)
	m.unwatch()
}

// downNotice is a Down on its way.
type downNotice struct {
	m *monitor
	c *Ctx
}

func (n *downNotice) open() (any, bool) {
	delete(n.c.monitors, n.m)
	return n.m.down, !n.m.off.Load()
}
