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
	workerGone  struct{}                 // timer: the worker has ended, and this process still runs
)

// Updated is the event pubsub.DeploymentUpdated. It reports that a deployment has changed.
// It is a hint; the rows have the state.
type Updated struct{ ID string }

const (
	// publishEvery bounds how often changes are published.
	publishEvery = 100 * time.Millisecond
	// aloneFor is the longest time that the state process runs after the worker's end.
	aloneFor = time.Second
)

const errCrashed = "The worker of this deployment has crashed"

// state is the DeploymentState process. It publishes changes and records the deployment's end.
// A restart loses nothing, because it monitors the worker again, which also reports an end that
// it has missed.
type state struct {
	otp.Base
	d         *Deployments
	processes *processes

	watching   *otp.Proc
	publishing bool         // a timer for publish runs
	ends       otp.Job[int] // records the end; the result is how many repositories are unfinished
	crashed    string       // why the deployment is abandoned
}

// Init implements otp.Server.
func (s *state) Init(c *otp.Ctx) error {
	s.ends = otp.Job[int]{Begin: s.end, Done: s.ended, Outage: store.DescribeOutage}
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
		s.ends.Tick(c)
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

// end records that the deployment is done, if the rows agree, or that its worker has
// crashed.
func (s *state) end() func(context.Context) (int, error) {
	db, processes, message := s.d.db, s.processes, s.crashed
	if message == "" {
		return func(ctx context.Context) (int, error) { return db.Finish(ctx, processes.claim) }
	}
	return func(ctx context.Context) (int, error) {
		limited, cancel := context.WithTimeoutCause(ctx, repoStop, errReposTooSlow)
		defer cancel()
		processes.stop(limited) // before their repositories are recorded as failed
		return 0, db.Abandon(ctx, processes.claim, message)
	}
}

// abandon records the end of a deployment whose worker has crashed.
func (s *state) abandon(c *otp.Ctx, message string) {
	if !s.ends.Running() {
		s.crashed = message
		s.ends.Start(c)
	}
}

var errReposTooSlow = errors.New("workers of repositories do not end")

// ended handles the result of an attempt to record the end.
func (s *state) ended(c *otp.Ctx, left int, err error) (next time.Duration) {
	switch {
	case err == nil && left > 0:
		otp.Cast(s.watching, rescan{})
	case err == nil:
		s.publish()
		s.leave(c)
	case isOver(err):
		s.leave(c) // it was ended, or another controller has taken it over
	default:
		if !store.IsUnavailable(err) {
			c.Logger().Error().Err(err).Msg("recording a deployment's end failed")
		}
		if s.crashed != "" {
			return s.d.cfg.Retry
		} // else the worker sends drained again
	}
	return 0
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
	logger.Error().Err(m.Reason).Str("deployment", s.processes.claim.ID).Msg("deployment worker crashed")
	s.abandon(c, errCrashed)
}
