package otp

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Shutdown stops all trees, the last one started first, and waits. When ctx ends, it
// kills the processes that are left. It returns the paths of those that did not return
// even then. Nothing can be started afterwards. A second Shutdown returns the paths of
// those that have still not returned.
func (s *System) Shutdown(ctx context.Context) (leaked []string) {
	var first bool
	s.update(func() { first, s.closed = !s.closed, true })
	for rest := s.remaining(); len(rest) > 0; rest = s.remaining() {
		for _, p := range rest {
			s.stop(ctx, p)
		}
	}
	if first {
		s.engine.close()
	}
	s.update(func() {
		for p := range s.leaked {
			leaked = append(leaked, p.Path())
		}
	})
	slices.Sort(leaked)
	return leaked
}

// stop ends p and waits.
func (s *System) stop(ctx context.Context, p *Proc) {
	defer s.forget(p)
	p.Exit(ErrShutdown)
	select {
	case <-p.done:
	case <-ctx.Done():
		p.killTree()
		<-p.done
	}
}

// remaining returns what has to be stopped, in order.
func (s *System) remaining() (all []*Proc) {
	s.update(func() {
		all = slices.Clone(s.tops)
		slices.Reverse(all)
		all = slices.AppendSeq(all, maps.Keys(s.orphans))
	})
	return all
}

// killTree kills p and everything below it.
func (p *Proc) killTree() {
	var children []*Proc
	if p.supervisor != nil {
		children = p.supervisor.linked()
	}
	p.Kill() // first, so that it restarts no child
	for _, child := range children {
		child.killTree()
	}
}

// stopRows stops the given rows, the last one first, each within its own shutdown
// time. The rows of temporary children are removed; all others can be started again.
func (s *supervisor) stopRows(rows []*child) {
	for _, row := range slices.Backward(slices.Clone(rows)) {
		s.stop(row, ErrShutdown)
	}
}

// stop ends the process of a row, if it has one, with reason and waits. Then it
// records that the row has no process. A pending restart is cancelled.
func (s *supervisor) stop(row *child, reason error) {
	if row.alive() && !s.p.killed.Load() {
		s.end(reason, row.spec.patience(), row.proc)
		s.exited(row, row.proc.Reason())
	}
	s.drop(row)
}

// stopInstances stops all children of a Dynamic supervisor at once, with one common
// deadline, because thousands of them in turn would take too long.
func (s *supervisor) stopInstances() {
	s.update(func() { s.open = false })
	s.end(ErrShutdown, s.spec.Children[0].patience(), s.linked()...)
}

// end ends processes and waits. Those that do not end within limit are killed, and
// abandoned if they do not return then.
func (s *supervisor) end(reason error, limit time.Duration, procs ...*Proc) {
	ends := make([]<-chan struct{}, len(procs))
	for i, p := range procs {
		ends[i] = p.done
		if limit != BrutalKill {
			p.Exit(reason)
		}
	}
	if limit != BrutalKill && s.await(limit, ends...) || s.p.killed.Load() {
		return
	}
	for _, p := range procs {
		p.Kill()
	}
	s.await(Infinity, ends...)
}

// await waits for all events, at most limit. It returns
// false when the time is over or the supervisor is killed. After a kill its children
// must be left alone, because orphan ends them.
func (s *supervisor) await(limit time.Duration, events ...<-chan struct{}) bool {
	var expired <-chan time.Time
	if limit != Infinity {
		t := time.NewTimer(limit)
		defer t.Stop()
		expired = t.C
	}
	for _, event := range events {
		select {
		case <-event:
		case <-expired:
			return false
		case <-s.p.ctx.Done():
			return false
		}
	}
	return true
}
