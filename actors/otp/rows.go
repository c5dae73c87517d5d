package otp

import "slices"

// rowByID returns the row of that id, nil if there is none.
func (s *supervisor) rowByID(id string) *child {
	for _, row := range s.rows {
		if row.spec.ID == id {
			return row
		}
	}
	return nil
}

// rowOf returns the row or instance whose (last) process is p.
func (s *supervisor) rowOf(p *Proc) *child {
	if s.dynamic() {
		return s.instances[p]
	}
	for _, row := range s.rows {
		if row.proc == p {
			return row
		}
	}
	return nil
}

// set records the process of a row; nil: it has none now.
func (s *supervisor) set(row *child, p *Proc) {
	s.update(func() { row.proc, row.restarting = p, false })
}

// drop records that a row has no process, nor will get one by itself. Temporary
// children and instances go altogether.
func (s *supervisor) drop(row *child) {
	s.update(func() {
		switch {
		case s.dynamic():
			delete(s.instances, row.proc)
		case row.spec.Restart == Temporary:
			s.rows = slices.DeleteFunc(s.rows, func(r *child) bool { return r == row })
		}
		row.proc, row.restarting = nil, false
	})
}

// link notes p as ours before it starts. It returns false if we are dead.
func (s *supervisor) link(p *Proc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return false
	}
	s.links[p] = struct{}{}
	return true
}

// linked returns our processes.
func (s *supervisor) linked() []*Proc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkedLocked()
}

func (s *supervisor) linkedLocked() []*Proc {
	all := make([]*Proc, 0, len(s.links))
	for p := range s.links {
		all = append(all, p)
	}
	return all
}

// lost is called by a child that has ended, in its goroutine. A child
// whose start failed is not worth a message: we are waiting for it.
func (s *supervisor) lost(p *Proc, begun bool, reason error) {
	s.unlink(p)
	if begun && !p.cheap {
		s.p.server.send(letter{kind: infoLetter, body: childEnded{p, reason}})
	}
}

func (s *supervisor) unlink(p *Proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, p)
	if p.cheap {
		s.tasks--
	}
}

// orphan is called when we have died: children that we did not stop get our
// reason as exit signal.
func (s *supervisor) orphan(reason error) {
	s.mu.Lock()
	s.gone, s.open = true, false
	left := s.linkedLocked()
	s.mu.Unlock()
	for _, p := range left {
		p.orphaned(reason)
	}
}
