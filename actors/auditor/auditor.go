// Package auditor checks that the database keeps what takt promises.
//
// Auditor (handle: [Auditor]) checks every invariant once a minute, and on demand. A
// violation is a metric, and is logged when it begins and when it ends. The checks only
// read. A repair is made only on demand, and only where it loses no data.
//
// # State
//
// The result of the last check. A restart loses it, but makes a new check at once.
//
// # Failure
//
// While the database is unavailable, checks are skipped.
//
// # Concurrency
//
// The handle may be used by any goroutine. Checks run beside the actor, one at a time.
// Every controller runs its own checks, because a check takes only some milliseconds.
package auditor

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/store"
)

// Invariants is the SQL of the checks.
type Invariants interface {
	// Check checks all invariants. With repair it also makes the repairs that exist.
	Check(ctx context.Context, repair bool) ([]store.Invariant, error)
}

// interval is the time between two checks.
const interval = time.Minute

// patience is the longest wait for the result of a check, including the checks before
// it.
const patience = 5 * time.Minute

const name = "takt/orchestration/auditor"

// Auditor is the handle. It stays valid over restarts.
type Auditor struct {
	ref  otp.Ref
	db   Invariants
	last atomic.Pointer[[]store.Invariant]
}

// New returns the handle for the actor that Spec describes. It starts nothing.
func New(sys *otp.System, db Invariants) *Auditor {
	return &Auditor{ref: sys.Ref(name), db: db}
}

// Spec describes the actor to its supervisor.
func (a *Auditor) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "auditor", Name: name, Server: func() otp.Server { return &auditor{a: a} }}
}

// Last returns the result of the last check; nil before the first.
func (a *Auditor) Last() []store.Invariant {
	if last := a.last.Load(); last != nil {
		return *last
	}
	return nil
}

// Check checks now. With repair it also makes the repairs that lose no data; the result
// then shows what was broken before them. Errors: Unavailable.
func (a *Auditor) Check(ctx context.Context, repair bool) ([]store.Invariant, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, otp.ErrTimeout)
	defer cancel()
	return otp.CallWait[[]store.Invariant](ctx, a.ref, time.Second, checkNow{repair})
}

// The messages.
type (
	checkNow struct{ repair bool } // call

	checkDue struct{} // timer
	checked  struct {
		found []store.Invariant
		err   error
	}
)

// asked is a requested check. from is empty if the timer requested it.
type asked struct {
	from   otp.From
	repair bool
}

// auditor is the Auditor actor. The first check of line is running.
type auditor struct {
	otp.Base
	a      *Auditor
	line   []asked
	broken map[string]int64 // by invariant, as last logged
}

// Init requests the first check.
func (s *auditor) Init(c *otp.Ctx) error {
	s.broken = map[string]int64{}
	c.SendEvery(interval, checkDue{})
	s.ask(c, asked{})
	return nil
}

// HandleCall implements otp.Server.
func (s *auditor) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	r, ok := req.(checkNow)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	s.ask(c, asked{from, r.repair})
	return otp.NoReply, nil
}

// HandleInfo implements otp.Server.
func (s *auditor) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case checkDue:
		if len(s.line) == 0 {
			s.ask(c, asked{})
		}
	case checked:
		s.line[0].from.Reply(msg.found, msg.err)
		s.line = slices.Delete(s.line, 0, 1)
		s.note(c, msg)
		if len(s.line) > 0 {
			s.check(c)
		}
	default:
		s.Base.HandleInfo(c, msg)
	}
}

func (s *auditor) ask(c *otp.Ctx, a asked) {
	if s.line = append(s.line, a); len(s.line) == 1 {
		s.check(c)
	}
}

// check runs the first check of line beside the actor.
func (s *auditor) check(c *otp.Ctx) {
	db, repair := s.a.db, s.line[0].repair
	c.Async(func(ctx context.Context) any {
		found, err := db.Check(ctx, repair)
		return checked{found, err}
	})
}

// note stores the result and logs what has changed.
func (s *auditor) note(c *otp.Ctx, r checked) {
	switch {
	case store.IsOutage(r.err):
		c.Suspend("database unavailable")
		return
	case r.err != nil:
		c.Logger().Error().Err(r.err).Msg("the invariants could not be checked")
		return
	}
	c.Resume()
	s.a.last.Store(&r.found)
	for _, i := range r.found {
		left := i.Broken - i.Repaired
		if left == s.broken[i.Name] && i.Repaired == 0 {
			continue
		}
		level := zerolog.InfoLevel
		if left > 0 {
			level = zerolog.ErrorLevel
		}
		s.broken[i.Name] = left
		c.Logger().WithLevel(level).Str("invariant", i.Name).Int64("broken", i.Broken).Int64("repaired", i.Repaired).
			Strs("examples", i.Examples).Msg(i.Promise)
	}
}
