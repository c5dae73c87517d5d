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
	hired struct{} // cast: the worker has begun
	noted struct { // cast: a repository's step was written
		repo string
		step store.RepoStep
	}
	drained    struct{}                 // cast: the worker has nothing left
	unprepared struct{ message string } // cast: the worker can't go on
	tell       struct{}                 // timer: publish what has changed
	counted    struct {                 // the rows were counted
		progress store.DeploymentProgress
		err      error
	}
	finished struct { // it was tried to record the end
		left int
		err  error
	}
	abandoned  struct{ err error } // likewise
	endAgain   struct{}            // timer: try that again
	workerGone struct{}            // timer: the worker is gone, and nobody has ended us
)

// Updated is the event pubsub.DeploymentUpdated: something about a deployment
// has changed. It is a hint: the rows say what.
type Updated struct {
	ID       string
	Progress store.DeploymentProgress
}

const (
	// tellEvery bounds how often changes are published.
	tellEvery = 100 * time.Millisecond
	// reposPatience is what RepoWorkers get to end after their worker has crashed.
	reposPatience = repoStop
	// aloneFor is how long the state waits for its own end after the worker's.
	aloneFor = time.Second
)

const errCrashed = "The worker of this deployment has crashed"

// state is the DeploymentState process. It shows what is recorded, and records
// the end. A restart loses nothing: it counts the rows anew, and monitors the
// worker again, whose end meanwhile it then learns.
type state struct {
	otp.Base
	d         *Deployments
	processes *processes

	watching *otp.Proc
	dirty    bool // something was written since the last count
	telling  bool // a count is under way or about to be
	ending   bool // an attempt to record the end is under way
	crashed  string
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
	case hired:
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
	case tell:
		s.count(c)
	case counted:
		s.counted(c, msg)
	case finished:
		s.finished(c, msg)
	case abandoned:
		s.ended(c, msg.err)
	case endAgain:
		s.abandon(c, s.crashed)
	case workerGone:
		s.leave(c) // resumed by whoever looks next
	case otp.Down:
		s.workerDown(c, msg)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// watch monitors the worker, once it has begun.
func (s *state) watch(c *otp.Ctx) {
	if p := s.processes.current(); p != nil && p != s.watching {
		s.watching = p
		c.Monitor(p)
	}
}

// changed has the rows counted soon.
func (s *state) changed(c *otp.Ctx) {
	s.dirty = true
	if !s.telling {
		s.telling = true
		c.SendAfter(tellEvery, tell{})
	}
}

func (s *state) count(c *otp.Ctx) {
	s.dirty = false
	db, id := s.d.db, s.processes.claim.ID
	c.Async(func(ctx context.Context) any {
		found, err := db.Progress(ctx, id)
		return counted{found[id], err}
	})
}

// counted publishes the figures. Whoever misses them asks the database.
func (s *state) counted(c *otp.Ctx, m counted) {
	s.telling = false
	if m.err == nil {
		s.d.bus.Publish(pubsub.DeploymentUpdated, Updated{ID: s.processes.claim.ID, Progress: m.progress})
	}
	if s.dirty || m.err != nil {
		s.changed(c)
	}
}

// finish records that the deployment is done, if the rows say so as well.
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

func (s *state) finished(c *otp.Ctx, m finished) {
	if m.err == nil && m.left > 0 {
		s.ending = false
		otp.Cast(s.watching, rescan{})
		return
	}
	s.ended(c, m.err)
}

// abandon records the end of a deployment that nobody works on any more.
func (s *state) abandon(c *otp.Ctx, message string) {
	if s.ending {
		return
	}
	s.ending, s.crashed = true, message
	db, processes := s.d.db, s.processes
	c.Async(func(ctx context.Context) any {
		limited, cancel := context.WithTimeoutCause(ctx, reposPatience, errReposTooSlow)
		defer cancel()
		processes.stop(limited) // before their repositories are said to have failed
		return abandoned{db.Abandon(ctx, processes.claim, message)}
	})
}

var errReposTooSlow = errors.New("workers of repositories do not end")

// ended looks how an attempt to record the end went.
func (s *state) ended(c *otp.Ctx, err error) {
	s.ending = false
	switch {
	case err == nil:
		c.Resume()
		s.d.bus.Publish(pubsub.DeploymentUpdated, Updated{ID: s.processes.claim.ID})
		s.leave(c)
	case store.CodeOf(err) == store.StaleAttempt, store.CodeOf(err) == store.NotFound:
		s.leave(c) // ended or taken over by somebody else
	default:
		s.outage(c, err)
		if s.crashed != "" {
			c.SendAfter(s.d.cfg.Retry, endAgain{})
		} // else the worker says again that it is through
	}
}

func (s *state) outage(c *otp.Ctx, err error) {
	if store.IsUnavailable(err) {
		c.Suspend("database unavailable")
		return
	}
	logger := c.Logger()
	logger.Error().Err(err).Msg("the end of a deployment was not recorded")
}

// leave asks for the end of this deployment's supervisor, from outside: it can't
// be asked from within.
func (s *state) leave(c *otp.Ctx) {
	otp.Cast(s.d.resumer, dismiss{c.Self().Supervisor()})
	c.SendAfter(aloneFor, workerGone{}) // if that was not heard
}

// workerDown decides whether the worker's end was a crash.
func (s *state) workerDown(c *otp.Ctx, m otp.Down) {
	if m.Proc != s.watching {
		return
	}
	sup := c.Self().Supervisor()
	fromAbove := errors.Is(m.Reason, otp.ErrShutdown) || s.d.sys.Whereis(sup.Name()) != sup
	if fromAbove {
		// We are next. If not, an operator has stopped the worker alone.
		c.SendAfter(aloneFor, workerGone{})
		return
	}
	logger := c.Logger()
	logger.Error().Err(m.Reason).Str("deployment", s.processes.claim.ID).Msg("a deployment's worker has crashed")
	s.abandon(c, errCrashed)
}
