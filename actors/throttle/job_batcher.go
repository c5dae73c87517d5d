package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"

	"takt/actors/otp"
	"takt/store"
)

const (
	// maxJobs is how many jobs may wait to be inserted, maxJobBatch how many go at
	// once.
	maxJobs     = 10_000
	maxJobBatch = 500
	// jobPause and maxJobPause bound the wait after a failure, which doubles.
	jobPause    = 100 * time.Millisecond
	maxJobPause = 30 * time.Second
)

// JobBatcher is the handle of the actor that inserts jobs without uniqueness.
type JobBatcher struct {
	ref otp.Ref
	db  Queues
	cfg Config
}

// Spec describes the actor to its supervisor.
func (b *JobBatcher) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "job_batcher",
		Server:   func() otp.Server { return &jobBatcher{b: b} },
		Shutdown: b.cfg.Timeout + time.Second,
	}
}

// Insert returns when the job is durable. If ctx ends before, it still will be,
// unless this process ends first.
func (b *JobBatcher) Insert(ctx context.Context, job river.InsertManyParams) error {
	_, err := otp.CallWait[any](ctx, b.ref, b.cfg.RestartGap, job)
	if _, down := errors.AsType[*otp.DownError](err); down {
		return store.NewUnavailable("Throttle is restarting, try again", err)
	}
	return err
}

// Later has the job inserted without waiting for it.
func (b *JobBatcher) Later(job river.InsertManyParams) { otp.Cast(b.ref, job) }

// The messages, besides a job to be inserted.
type (
	inserted struct { // a transaction has ended
		list []asked
		err  error
	}
	insertAgain struct{} // timer
)

// asked is a job that somebody may wait for.
type asked struct {
	job  river.InsertManyParams
	from otp.From
}

// jobBatcher is the JobBatcher actor: one transaction at a time, what fails is
// tried again.
type jobBatcher struct {
	otp.Base
	b      *JobBatcher
	line   []asked
	busy   bool // a transaction or a pause is under way
	pause  time.Duration
	single bool // the next batch is one job: the database refused a larger one
}

// Init starts with nothing.
func (s *jobBatcher) Init(*otp.Ctx) error {
	s.pause = jobPause
	return nil
}

// HandleCall takes a job; the answer comes after its commit.
func (s *jobBatcher) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	job, ok := req.(river.InsertManyParams)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	if len(s.line) >= maxJobs {
		return nil, store.NewUnavailable("Too many jobs wait to be written, try again", nil)
	}
	s.line = append(s.line, asked{job, from})
	s.step(c)
	return otp.NoReply, nil
}

// HandleCast takes a job that nobody waits for.
func (s *jobBatcher) HandleCast(c *otp.Ctx, msg any) {
	job, ok := msg.(river.InsertManyParams)
	if !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	if len(s.line) >= maxJobs {
		logger := c.Logger()
		logger.Error().Str("job", job.Args.Kind()).Msg("too many jobs wait to be written: dropped one")
		return
	}
	s.line = append(s.line, asked{job: job})
	s.step(c)
}

// HandleInfo takes results and timers.
func (s *jobBatcher) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case inserted:
		s.inserted(c, msg)
	case insertAgain:
		s.busy = false
	default:
		s.Base.HandleInfo(c, msg)
	}
	s.step(c)
}

// step begins a transaction if there is something to insert and none runs.
func (s *jobBatcher) step(c *otp.Ctx) {
	if s.busy || len(s.line) == 0 {
		return
	}
	s.busy = true
	n := min(len(s.line), maxJobBatch)
	if s.single {
		n = 1
	}
	list := append([]asked{}, s.line[:n]...)
	s.line = append(s.line[:0], s.line[n:]...)
	b, hard := s.b, c.Context()
	c.Async(func(context.Context) any {
		ctx, cancel := context.WithTimeoutCause(hard, b.cfg.Timeout, errTransactionTooSlow)
		defer cancel()
		params := make([]river.InsertManyParams, len(list))
		for i, a := range list {
			params[i] = a.job
		}
		err := b.db.InsertJobs(ctx, params)
		if err == nil {
			for _, a := range list {
				a.from.Reply(nil, nil)
			}
		}
		return inserted{list, err}
	})
}

func (s *jobBatcher) inserted(c *otp.Ctx, m inserted) {
	if m.err == nil {
		s.busy, s.pause, s.single = false, jobPause, false
		return
	}
	logger := c.Logger()
	if !store.IsUnavailable(m.err) && len(m.list) == 1 {
		// It is this one that the database does not take, and never will.
		logger.Error().Err(m.err).Str("job", m.list[0].job.Args.Kind()).Msg("job could not be written")
		m.list[0].from.Reply(nil, store.Wrap(store.Internal, "Job could not be written", m.err))
		s.busy, s.single = false, len(s.line) > 0
		return
	}
	s.single = !store.IsUnavailable(m.err)
	logger.Warn().Err(m.err).Dur("retry_in", s.pause).Int("jobs", len(m.list)).Msg("jobs could not be written")
	s.line = append(m.list, s.line...)
	c.SendAfter(s.pause, insertAgain{})
	s.pause = min(2*s.pause, maxJobPause)
}
