package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"
	"github.com/rs/zerolog"

	"takt/actors/pubsub"
	"takt/store"
)

// The queues of River.
const (
	queueDefault     = river.QueueDefault
	queueMaintenance = "maintenance"
)

const (
	// outageSnooze and fullSnooze are how soon a job tries again that could do
	// nothing.
	outageSnooze = 5 * time.Second
	fullSnooze   = 10 * time.Second
	// restoreLimit is how many queues without a job are found in one pass,
	// forgetBatch how many rows are deleted in one transaction.
	restoreLimit = 500
	forgetBatch  = 1000
)

// throttleWorker works the job of a queue: it sees to it that somebody looks after
// the queue, and ends when nothing waits there.
type throttleWorker struct {
	river.WorkerDefaults[store.ThrottleJob]
	db      Queues
	portals *Portals
	cfg     Config
}

// Work implements river.Worker.
func (w *throttleWorker) Work(ctx context.Context, job *river.Job[store.ThrottleJob]) error {
	waiting, err := w.db.Waiting(ctx, job.Args.Queue)
	if err == nil && !waiting {
		var ended bool
		if ended, err = w.db.EndJob(ctx, job); err == nil && ended {
			return nil
		}
	}
	if err == nil {
		err = w.portals.Wake(ctx, job.Args.PortalID, map[string]int{job.Args.Queue: 0})
	}
	switch {
	case err == nil:
		return river.JobSnooze(w.cfg.Snooze)
	case errors.Is(err, ErrFull):
		return river.JobSnooze(min(fullSnooze, w.cfg.Snooze))
	default: // the job must not die of an outage, or of a subsystem that restarts
		return river.JobSnooze(min(outageSnooze, w.cfg.Snooze))
	}
}

// CleanJob looks for queues that have actions and no living job, and deletes
// budget that is back.
type CleanJob struct{}

// Kind names the job.
func (CleanJob) Kind() string { return "throttle_clean" }

// jobCleaner is JobCleaner. It is harmless if repeated, and bounded.
type jobCleaner struct {
	river.WorkerDefaults[CleanJob]
	db      Queues
	portals *Portals
	metrics *metrics
	log     zerolog.Logger
}

// Work implements river.Worker.
func (w *jobCleaner) Work(ctx context.Context, _ *river.Job[CleanJob]) error {
	if err := w.restore(ctx); err != nil {
		return err
	}
	return w.sweep(ctx)
}

func (w *jobCleaner) restore(ctx context.Context) error {
	for {
		restored, err := w.db.Restore(ctx, restoreLimit)
		if err != nil {
			return err
		}
		if len(restored) > 0 {
			w.metrics.restored.Add(float64(len(restored)))
			w.log.Error().Int("queues", len(restored)).Str("first", restored[0].ID()).Msg("queues had actions and no job; they have now")
			w.portals.Resume(ctx, restored)
		}
		if len(restored) < restoreLimit {
			return nil
		}
	}
}

// sweep deletes budget that is back in queues that nobody claims from, and merges
// what was spent at about the same time: the whole table, in small transactions.
func (w *jobCleaner) sweep(ctx context.Context) error {
	for after := int64(0); ctx.Err() == nil; {
		_, next, err := w.db.SweepWindows(ctx, after, forgetBatch)
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
	return nil // the rest waits for the next round
}

// ForgetJob deletes what is old.
type ForgetJob struct{}

// Kind names the job.
func (ForgetJob) Kind() string { return "throttle_forget" }

// forgetter deletes in small transactions, for as long as a job may run; the rest
// waits for the next day.
type forgetter struct {
	river.WorkerDefaults[ForgetJob]
	db  Queues
	cfg Config
	log zerolog.Logger
}

// Work implements river.Worker.
func (w *forgetter) Work(ctx context.Context, _ *river.Job[ForgetJob]) error {
	actions, err := w.all(ctx, w.db.Forget)
	if err != nil {
		return err
	}
	queues, err := w.all(ctx, w.db.ForgetQueues)
	if err != nil {
		return err
	}
	w.log.Info().Int("actions", actions).Int("queues", queues).Msg("deleted what was old")
	return nil
}

// all calls forget until nothing is left, and returns how much went.
func (w *forgetter) all(ctx context.Context, forget func(ctx context.Context, age time.Duration, limit int) (int, error)) (total int, err error) {
	for ctx.Err() == nil {
		n, err := forget(ctx, w.cfg.Retention, forgetBatch)
		if err != nil {
			return total, err
		}
		if total += n; n < forgetBatch {
			break
		}
	}
	return total, nil
}

// NoticeJob tells operators of something that ended badly.
type NoticeJob struct {
	PortalID int64  `json:"portal_id"`
	Text     string `json:"text"`
	Actions  int    `json:"actions"`
}

// Kind names the job.
func (NoticeJob) Kind() string { return "throttle_notice" }

func notice(n NoticeJob) river.InsertManyParams {
	return river.InsertManyParams{Args: n, InsertOpts: &river.InsertOpts{Queue: queueMaintenance}}
}

// notifier publishes notices: once, by whichever controller takes the job.
type notifier struct {
	river.WorkerDefaults[NoticeJob]
	bus pubsub.Bus
	log zerolog.Logger
}

// Work implements river.Worker.
func (w *notifier) Work(_ context.Context, job *river.Job[NoticeJob]) error {
	n := job.Args
	w.log.Error().Int64("portal", n.PortalID).Int("actions", n.Actions).Msg(n.Text)
	w.bus.Publish(pubsub.ThrottleNotice, n)
	return nil
}
