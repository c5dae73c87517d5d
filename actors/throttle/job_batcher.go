package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/riverqueue/river"

	"takt/actors/otp"
	"takt/store"
)

const (
	// maxJobs is how many jobs may wait to be inserted, maxJobBatch how many are inserted
	// at once.
	maxJobs     = 10_000
	maxJobBatch = 500
	// jobPause and maxJobPause bound the pause after a failure. The pause doubles.
	jobPause    = 100 * time.Millisecond
	maxJobPause = 30 * time.Second
)

// JobBatcher is the handle of the actor that inserts jobs without uniqueness.
type JobBatcher struct {
	ref otp.Ref
	db  Queues
}

// Spec describes the actor to its supervisor.
func (b *JobBatcher) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "job_batcher",
		Server:   func() otp.Server { return &jobBatcher{db: b.db, pause: jobPause} },
		Shutdown: transactionTime + time.Second,
	}
}

// Insert inserts the job in the background. The job is lost if this process ends first.
func (b *JobBatcher) Insert(job river.InsertManyParams) { otp.Cast(b.ref, job) }

// The messages, besides a job to be inserted.
type (
	inserted    struct{ err error } // a transaction has ended
	insertAgain struct{}            // timer
)

// jobBatcher is the JobBatcher actor. It runs one transaction at a time and retries
// failed ones.
type jobBatcher struct {
	otp.Base
	db      Queues
	waiting []river.InsertManyParams
	batch   int // how many of them the running transaction has, or the retry after a pause
	pause   time.Duration
	single  bool // the next batch is one job, because the database refused a larger one
}

// Init starts with nothing.
func (s *jobBatcher) Init(*otp.Ctx) error { return nil }

// HandleCast adds a job.
func (s *jobBatcher) HandleCast(c *otp.Ctx, msg any) {
	job, ok := msg.(river.InsertManyParams)
	if !ok {
		s.Base.HandleCast(c, msg)
		return
	}
	if len(s.waiting) >= maxJobs {
		logger := c.Logger()
		logger.Error().Str("job", job.Args.Kind()).Msg("too many jobs wait to be written: dropped one")
		return
	}
	s.waiting = append(s.waiting, job)
	s.step(c)
}

// HandleInfo handles results and timers.
func (s *jobBatcher) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case inserted:
		s.inserted(c, msg.err)
	case insertAgain:
		s.batch = 0
	default:
		s.Base.HandleInfo(c, msg)
	}
	s.step(c)
}

// step begins a transaction if there is something to insert and none runs.
func (s *jobBatcher) step(c *otp.Ctx) {
	if s.batch > 0 || len(s.waiting) == 0 {
		return
	}
	s.batch = min(len(s.waiting), maxJobBatch)
	if s.single {
		s.batch = 1
	}
	db, hard, jobs := s.db, c.Context(), slices.Clone(s.waiting[:s.batch])
	c.Async(func(context.Context) any {
		ctx, cancel := transaction(hard)
		defer cancel()
		return inserted{db.InsertJobs(ctx, jobs)}
	})
}

func (s *jobBatcher) inserted(c *otp.Ctx, err error) {
	logger := c.Logger()
	refused := err != nil && !store.IsUnavailable(err)
	if refused && s.batch == 1 {
		// The database refuses this very job, and always will.
		logger.Error().Err(err).Str("job", s.waiting[0].Args.Kind()).Msg("job could not be written")
	} else if err != nil {
		logger.Warn().Err(err).Dur("retry_in", s.pause).Int("jobs", s.batch).Msg("jobs could not be written")
		c.SendAfter(s.pause, insertAgain{})
		s.pause, s.single = min(2*s.pause, maxJobPause), refused
		return
	}
	s.waiting = slices.Delete(s.waiting, 0, s.batch)
	s.single = refused && len(s.waiting) > 0
	if s.batch = 0; !refused {
		s.pause = jobPause
	}
}
