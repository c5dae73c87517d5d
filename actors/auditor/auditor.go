// Package auditor checks invariants of the database, such as that every running build has a
// worker.
//
// Auditor (handle: [Auditor]) checks all of them once a minute, and on demand. A violation is
// counted in a metric, and logged when it begins and when it ends. The actor repairs nothing;
// operators do (`takt repair`).
//
// # State
//
// The result of the last check. A restart loses it, but makes a new check at once.
//
// # Failure
//
// A check that meets an outage of the database is repeated until it succeeds.
//
// # Concurrency
//
// The handle may be used by any goroutine. Checks run beside the actor, one at a time.
// Every controller runs its own checks, because a check takes only some milliseconds.
package auditor

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/store"
)

// Invariants is the SQL of the checks.
type Invariants interface {
	// Check checks all invariants. It only reads.
	Check(ctx context.Context) ([]store.Invariant, error)
}

const (
	// interval is the time between two checks.
	interval = time.Minute
	// retryInterval is the same while the database is unavailable.
	retryInterval = time.Second
)

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

// Check checks now. Errors: Unavailable.
func (a *Auditor) Check(ctx context.Context) ([]store.Invariant, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, otp.ErrTimeout)
	defer cancel()
	found, err := otp.CallWait[[]store.Invariant](ctx, a.ref, time.Second, checkNow{})
	if _, down := errors.AsType[*otp.DownError](err); down {
		err = store.NewUnavailable("The auditor is restarting, try again", err)
	}
	return found, err
}

// checkNow is the only message, a call.
type checkNow struct{}

// auditor is the Auditor actor.
type auditor struct {
	otp.Base
	a      *Auditor
	checks otp.Job[[]store.Invariant]
	line   []otp.From       // callers that wait for the next check
	askers []otp.From       // callers that wait for the running check
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
	if _, ok := req.(checkNow); !ok {
		return s.Base.HandleCall(c, from, req)
	}
	s.line = append(s.line, from)
	s.checks.Start(c)
	return otp.NoReply, nil
}

// check begins a check for all waiting callers.
func (s *auditor) check() func(context.Context) ([]store.Invariant, error) {
	s.askers, s.line = s.line, nil
	return s.a.db.Check
}

// checked answers the askers, stores the result and logs what has changed.
func (s *auditor) checked(c *otp.Ctx, found []store.Invariant, err error) (next time.Duration) {
	for _, from := range s.askers {
		from.Reply(found, err)
	}
	if store.IsOutage(err) {
		return retryInterval
	}
	if err != nil {
		c.Logger().Error().Err(err).Msg("checking invariants failed")
		return 0
	}
	s.a.last.Store(&found)
	for _, i := range found {
		if i.Broken == s.broken[i.Name] {
			continue
		}
		level := zerolog.InfoLevel
		if i.Broken > 0 {
			level = zerolog.ErrorLevel
		}
		s.broken[i.Name] = i.Broken
		c.Logger().WithLevel(level).Str("invariant", i.Name).Int64("broken", i.Broken).Strs("examples", i.Examples).Msg(i.Promise)
	}
	return 0
}
