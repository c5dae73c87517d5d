package deployment

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// The messages.
type (
	workerBegun struct{}                 // cast
	noted       struct{}                 // cast: a repository's step was written
	drained     struct{}                 // cast: the worker has no repositories left
	unprepared  struct{ message string } // cast: the worker can't continue
	publish     struct{}                 // timer: publish that something has changed
	finished    struct {                 // an attempt to record the end has finished
		left int // unfinished repositories
		err  error
	}
	abandonAgain struct{} // timer
	workerGone   struct{} // timer: the worker has ended, and this process still runs
)

// Updated is the event pubsub.DeploymentUpdated. It says that a deployment has changed.
// It is a hint; the rows have the facts.
type Updated struct{ ID string }

const (
	// publishEvery bounds how often changes are published.
	publishEvery = 100 * time.Millisecond
	// aloneFor is how long the state process runs at most after the worker's end.
	aloneFor = time.Second
)

const errCrashed = "The worker of this deployment has crashed"

// state is the DeploymentState process. It publishes changes and records the deployment's
// end. A restart loses nothing, because it monitors the worker again and so also learns
// of an end that it missed.
type state struct {
	otp.Base
	d         *Deployments
	processes *processes

	watching   *otp.Proc
	publishing bool   // a timer for publish runs
	ending     bool   // an attempt to record the end runs
	crashed    string // why the deployment is abandoned
}

// Init implements otp.Server.
func (s *state) Init(c *otp.Ctx) error {
	s.watch(c)
	s.changed(c)
	return nil
}

// HandleCast implements otp.Server.
func (s *state) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case workerBegun:
		s.watch(c)
	case noted:
		s.changed(c)
	case drained:
		s.finish(c)
	case unprepared:
		s.abandon(c, msg.message)
	default:
		s.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (s *state) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case publish:
		s.publishing = false
		s.publish()
	case finished:
		s.finished(c, msg)
	case abandonAgain:
		s.abandon(c, s.crashed)
	case workerGone:
		s.leave(c) // a resumer resumes the deployment
	case otp.Down:
		s.workerDown(c, msg)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// watch monitors the worker if it has begun.
func (s *state) watch(c *otp.Ctx) {
	if p := s.processes.worker.Load(); p != nil && p != s.watching {
		s.watching = p
		c.Monitor(p)
	}
}

// changed starts a timer to publish that something has changed.
func (s *state) changed(c *otp.Ctx) {
	if !s.publishing {
		s.publishing = true
		c.SendAfter(publishEvery, publish{})
	}
}

func (s *state) publish() {
	s.d.bus.Publish(pubsub.DeploymentUpdated, Updated{ID: s.processes.claim.ID})
}

// finish records that the deployment is done, if the rows agree.
func (s *state) finish(c *otp.Ctx) {
	if s.ending {
		return
	}
	s.ending = true
	db, claim := s.d.db, s.processes.claim
	c.Async(func(ctx context.Context) any {
		left, err := db.Finish(ctx, claim)
		return finished{left, err}
	})
}

// abandon records the end of a deployment whose worker has crashed.
func (s *state) abandon(c *otp.Ctx, message string) {
	if s.ending {
		return
	}
	s.ending, s.crashed = true, message
	db, processes := s.d.db, s.processes
	c.Async(func(ctx context.Context) any {
		limited, cancel := context.WithTimeoutCause(ctx, repoStop, errReposTooSlow)
		defer cancel()
		processes.stop(limited) // before their repositories are recorded as failed
		return finished{err: db.Abandon(ctx, processes.claim, message)}
	})
}

var errReposTooSlow = errors.New("workers of repositories do not end")

// finished handles the result of an attempt to record the end.
func (s *state) finished(c *otp.Ctx, m finished) {
	s.ending = false
	switch {
	case m.err == nil && m.left > 0:
		otp.Cast(s.watching, rescan{})
	case m.err == nil:
		c.Resume()
		s.publish()
		s.leave(c)
	case isOver(m.err):
		s.leave(c) // it was ended, or another controller has taken it over
	default:
		switch {
		case store.IsOutage(m.err):
			c.Suspend("database unavailable")
		case !store.IsUnavailable(m.err):
			logger := c.Logger()
			logger.Error().Err(m.err).Msg("the end of a deployment was not recorded")
		}
		if s.crashed != "" {
			c.SendAfter(s.d.cfg.Retry, abandonAgain{})
		} // else the worker sends drained again
	}
}

// leave asks the resumer to stop this deployment's supervisor, because a process can't
// stop its own supervisor.
func (s *state) leave(c *otp.Ctx) {
	otp.Cast(s.d.resumer, dismiss{c.Self().Supervisor()})
	c.SendAfter(aloneFor, workerGone{}) // in case the message was lost
}

// workerDown decides whether the worker's end was a crash.
func (s *state) workerDown(c *otp.Ctx, m otp.Down) {
	if m.Proc != s.watching {
		return
	}
	sup := c.Self().Supervisor()
	fromAbove := errors.Is(m.Reason, otp.ErrShutdown) || s.d.sys.Whereis(sup.Name()) != sup
	if fromAbove {
		// The supervisor stops this process next, unless an operator has stopped only the
		// worker.
		c.SendAfter(aloneFor, workerGone{})
		return
	}
	logger := c.Logger()
	logger.Error().Err(m.Reason).Str("deployment", s.processes.claim.ID).Msg("a deployment's worker has crashed")
	s.abandon(c, errCrashed)
}
