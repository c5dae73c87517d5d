package heijunka

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/store"
)

// lane is a place to work in. Its worker is a process that comes and goes; the
// lane stays as long as a request holds it or a worker has it. The pool's mutex
// guards all of it.
type lane struct {
	pool *lanes
	id   uint64
	proc *otp.Proc // its worker; nil: none at the moment
	// leaving: the worker is to go as soon as the lane is free.
	leaving bool

	busy  bool
	lost  bool                    // its worker crashed under the holder
	round uint64                  // of holders, so that a slot is given back once
	end   context.CancelCauseFunc // ends the holder's context; nil until bind
	since time.Duration           // when it became busy, or idle

	served, failed int64
}

// Slot is a held lane. The zero Slot is none.
type Slot struct {
	lane  *lane
	round uint64
	watch *watch // set if a process holds it
}

// errLaneLost is the cause for which a request's context ends when its worker
// has crashed.
var errLaneLost = errors.New("the request's pool worker crashed")

// Return gives the slot back and reports whether that was still to be done.
// failed counts into the pool's error rate.
func (s Slot) Return(failed bool) bool {
	if s.lane == nil {
		return false
	}
	if s.watch != nil {
		s.watch.cancel()
	}
	was, _ := s.lane.pool.giveBack(s, failed)
	return was
}

// Worker is the process whose lane it is; nil while it is replaced.
func (s Slot) Worker() *otp.Proc {
	if s.lane == nil {
		return nil
	}
	s.lane.pool.mu.Lock()
	defer s.lane.pool.mu.Unlock()
	return s.lane.proc
}

// take makes the lane a holder's.
func (l *lane) take(now time.Duration) Slot {
	l.busy, l.lost, l.end, l.since = true, false, nil, now
	l.round++
	return Slot{lane: l, round: l.round}
}

// afterLoss turns what a request ended with after its worker crashed into what
// its caller should know: nothing wrong with the request, so try again.
func afterLoss(err error) error {
	if _, known := errors.AsType[*store.Error](err); known || err == nil {
		return err
	}
	return unavailable("Request could not be served, try again", errors.Join(errLaneLost, err))
}

func unavailable(message string, cause error) error {
	e := store.Wrap(store.Unavailable, message, cause)
	e.RetryAfter = time.Second
	return e
}
