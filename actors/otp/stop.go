package otp

import (
	"slices"
	"time"
)

// stopRows stops the given rows, the last one first, each within its own time.
// Temporary children are forgotten, all others can be started again.
func (s *supervisor) stopRows(rows []*child) {
	for _, row := range slices.Backward(slices.Clone(rows)) {
		s.stop(row)
		s.drop(row)
	}
}

// stop ends the process of a row, if it has one, and waits. A worker that does
// not obey in its time is killed, and abandoned if it does not notice that.
func (s *supervisor) stop(row *child) { s.stopWith(row, ErrShutdown) }

// stopWith is stop with another reason than shutdown.
func (s *supervisor) stopWith(row *child, reason error) {
	if !row.alive() || s.p.isKilled() {
		return
	}
	p, limit := row.proc, row.spec.patience()
	if limit != BrutalKill {
		p.Exit(reason)
		if s.await(p.done, limit) {
			s.record(row, p)
			return
		}
	}
	if s.p.isKilled() {
		return
	}
	p.Kill()
	s.await(p.done, Infinity)
	s.record(row, p)
}

// record keeps how a child that we have stopped ended.
func (s *supervisor) record(row *child, p *Proc) {
	reason := p.Reason()
	s.update(func() { row.lastExit, row.lastExitAt = reason, time.Now() })
}

// stopInstances stops all children of a Dynamic supervisor at once, with one
// common deadline: a pool of thousands must not take thousands of times as long.
func (s *supervisor) stopInstances() {
	s.update(func() { s.open = false })
	left, limit := s.linked(), s.spec.Children[0].patience()
	if limit == BrutalKill {
		for _, p := range left {
			p.Kill()
		}
		s.awaitAll(left, nil)
		return
	}
	for _, p := range left {
		p.Exit(ErrShutdown)
	}
	var expired <-chan time.Time
	if limit != Infinity {
		t := time.NewTimer(limit)
		defer t.Stop()
		expired = t.C
	}
	s.awaitAll(left, expired)
}

// awaitAll waits for all of them; when the time is over it kills the rest.
func (s *supervisor) awaitAll(procs []*Proc, expired <-chan time.Time) {
	for i, p := range procs {
		select {
		case <-p.done:
			continue
		case <-expired:
			expired = nil
			for _, late := range procs[i:] {
				late.Kill()
			}
		case <-s.p.ctx.Done():
			return
		}
		s.await(p.done, Infinity) // killed: at most the grace
	}
}
