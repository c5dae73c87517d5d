package otp

import (
	"errors"
	"slices"
)

// restart counts a restart of row and attempts it. A failed attempt is not
// looped: a retry is queued behind what has arrived meanwhile, and counts again.
// restart returns false when that was one restart too many: the supervisor
// then has to end.
func (s *supervisor) restart(row *child) bool {
	sys := s.p.sys
	if !s.window.add(sys.seconds()) {
		s.drop(row)
		sys.emit(Event{Kind: EventGaveUp, Proc: s.p, Reason: row.lastExit, Detail: row.spec.ID})
		return false
	}
	s.update(func() {
		row.restarts++
		row.restarting = true
	})
	sys.emit(s.restarting(row, row.lastExit))
	_ = s.again(row) // a failure has been reported, and queued a retry
	return true
}

// restarting is the event of a restart. A row that failed to start has no
// process to tell its place.
func (s *supervisor) restarting(row *child, reason error) Event {
	return Event{
		Kind: EventRestarting, Proc: row.proc, Path: s.p.Path() + "/" + row.spec.ID, ID: row.spec.ID,
		Type: row.spec.childType(), Reason: reason, Restarts: row.restarts,
	}
}

// again starts row, and who belongs to it, according to the strategy. The error
// is what a start failed with; a retry is then queued.
func (s *supervisor) again(row *child) error {
	switch s.spec.Strategy {
	case OneForAll, RestForOne:
		return s.restartGroup(s.group(row))
	case Dynamic:
		return s.restartInstance(row)
	default:
		return s.restartOne(row)
	}
}

// group returns the rows that the strategy restarts with row, in start order.
func (s *supervisor) group(row *child) []*child {
	switch i := slices.Index(s.rows, row); s.spec.Strategy {
	case OneForAll:
		return s.rows
	case RestForOne:
		return s.rows[i:]
	default:
		return s.rows[i : i+1]
	}
}

// restartOne restarts a single child.
func (s *supervisor) restartOne(row *child) error {
	p, err := s.start(row)
	switch {
	case err == nil:
		s.set(row, p)
	case errors.Is(err, Ignore):
		s.set(row, nil)
	default:
		s.retry(row)
		return err
	}
	return nil
}

// restartGroup stops what runs of the group and starts all of it in order.
// Children in it that had finished or been stopped come back too. After a
// failure the rest of the group stays down until the retry: rest_for_one then
// goes on at the child that failed, one_for_all begins anew.
func (s *supervisor) restartGroup(group []*child) error {
	group = slices.Clone(group)
	s.stopRows(group)
	group = slices.DeleteFunc(group, func(c *child) bool { return c.spec.Restart == Temporary })
	failed, err := s.startRows(group)
	if err != nil {
		s.retry(failed)
	}
	return err
}

// restartInstance restarts an instance of the template with its arguments. An
// ignored start removes it.
func (s *supervisor) restartInstance(row *child) error {
	p, err := s.start(row)
	switch {
	case err == nil:
		s.update(func() {
			delete(s.instances, row.proc)
			row.proc, row.restarting = p, false
			s.instances[p] = row
		})
	case errors.Is(err, Ignore):
		s.drop(row)
	default:
		s.retry(row)
		return err
	}
	return nil
}

// retry marks row as restarting and queues the next attempt.
func (s *supervisor) retry(row *child) {
	s.update(func() { row.restarting = true })
	s.p.server.send(letter{kind: castLetter, body: retry{id: row.spec.ID, proc: row.proc}})
}
