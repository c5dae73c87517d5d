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

// checkNow is the only message, a call.
type checkNow struct{ repair bool }

// asked is a requested check. from is empty if the timer requested it.
type asked struct {
	from   otp.From
	repair bool
}

// auditor is the Auditor actor.
type auditor struct {
	otp.Base
	a      *Auditor
	checks otp.Job[[]store.Invariant]
	line   []asked          // the requested checks
	asker  asked            // of the check that runs
	broken map[string]int64 // by invariant, as last logged
}

// Init requests the first check.
func (s *auditor) Init(c *otp.Ctx) error {
	s.broken = map[string]int64{}
	s.checks = otp.Job[[]store.Invariant]{Begin: s.check, Done: s.checked, Outage: store.DescribeOutage}
	s.checks.Every(c, interval)
	s.checks.Start(c)
	return nil
}

// HandleCall implements otp.Server.
func (s *auditor) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	r, ok := req.(checkNow)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	s.line = append(s.line, asked{from, r.repair})
	s.checks.Tick(c)
	return otp.NoReply, nil
}

// check begins the first check of line, or one for the timer.
func (s *auditor) check() func(context.Context) ([]store.Invariant, error) {
	s.asker = asked{}
	if len(s.line) > 0 {
		s.asker = s.line[0]
		s.line = slices.Delete(s.line, 0, 1)
	}
	db, repair := s.a.db, s.asker.repair
	return func(ctx context.Context) ([]store.Invariant, error) { return db.Check(ctx, repair) }
}

// checked answers the asker, stores the result and logs what has changed.
func (s *auditor) checked(c *otp.Ctx, found []store.Invariant, err error) (next time.Duration) {
	s.asker.from.Reply(found, err)
	if len(s.line) > 0 {
		defer s.checks.Start(c)
	}
	if err != nil {
		if !store.IsOutage(err) {
			c.Logger().Error().Err(err).Msg("the invariants could not be checked")
		}
		return 0
	}
	s.a.last.Store(&found)
	for _, i := range found {
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
	return 0
}
