package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"
	"github.com/rs/zerolog"

	"takt/store"
)

const (
	jobWorkers = 8
	// cleanEvery is how often CleanJob runs.
	cleanEvery = 5 * time.Minute
	// maintenanceEvery is how often River looks for the other jobs.
	maintenanceEvery = 10 * time.Second
	// queueMaintenance is River's queue for all jobs except those of throttle queues.
	queueMaintenance = "maintenance"
	// outageSnooze is the delay of a job that could do nothing.
	outageSnooze = 5 * time.Second
	// retention is how long finished actions are kept.
	retention = 30 * 24 * time.Hour
	// restoreLimit is how many queues without a job one pass handles, forgetBatch how
	// many rows one transaction deletes.
	restoreLimit = 500
	forgetBatch  = 1000
)

// CleanJob finds queues that have actions but no live job, and deletes windows whose budget is
// available again.
type CleanJob struct{}

// Kind names the job.
func (CleanJob) Kind() string { return "throttle_clean" }

// ForgetJob deletes old rows.
type ForgetJob struct{}

// Kind names the job.
func (ForgetJob) Kind() string { return "throttle_forget" }

// noticeJob is a job of an earlier release that needs no work. Without a worker for it, River
// would log an error repeatedly.
type noticeJob struct{}

// Kind names the job.
func (noticeJob) Kind() string { return "throttle_notice" }

// Jobs configures River's client for the throttle.
type Jobs struct {
	db      Store
	portals *Portals
	metrics *figures
	cfg     Config
}

// Add adds the throttle's queues, workers and periodic jobs to the configuration of a client.
// New actions wake their portals directly, so the client's polling delays nothing.
func (j *Jobs) Add(c *river.Config, log zerolog.Logger) {
	c.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: jobWorkers, FetchPollInterval: j.cfg.Poll}
	c.Queues[queueMaintenance] = river.QueueConfig{MaxWorkers: 2, FetchPollInterval: maintenanceEvery}
	every := func(d time.Duration, args river.JobArgs) {
		c.PeriodicJobs = append(c.PeriodicJobs, river.NewPeriodicJob(river.PeriodicInterval(d), func() (river.JobArgs, *river.InsertOpts) {
			return args, &river.InsertOpts{Queue: queueMaintenance}
		}, &river.PeriodicJobOpts{ID: args.Kind(), RunOnStart: true}))
	}
	every(cleanEvery, CleanJob{})
	every(24*time.Hour, ForgetJob{})
	w := c.Workers
	river.AddWorker(w, river.WorkFunc(j.attend))
	river.AddWorker(w, river.WorkFunc(func(ctx context.Context, _ *river.Job[CleanJob]) error { return j.clean(ctx, log) }))
	river.AddWorker(w, river.WorkFunc(func(ctx context.Context, _ *river.Job[ForgetJob]) error { return j.forget(ctx, log) }))
	river.AddWorker(w, river.WorkFunc(func(context.Context, *river.Job[noticeJob]) error { return nil }))
}

// attend works the job of a queue: it wakes the queue's portal and snoozes, or ends the job if
// no action waits.
func (j *Jobs) attend(ctx context.Context, job *river.Job[store.ThrottleJob]) error {
	waiting, err := j.db.Waiting(ctx, job.Args.Queue)
	if err == nil && !waiting {
		var ended bool
		if ended, err = j.db.EndJob(ctx, job); err == nil && ended {
			return nil
		}
	}
	if err == nil {
		err = j.portals.Wake(ctx, job.Args.PortalID, map[string]int{job.Args.Queue: 0})
	}
	switch {
	case err == nil:
		return river.JobSnooze(j.cfg.Snooze)
	case errors.Is(err, ErrFull):
		return river.JobSnooze(min(j.cfg.Full, j.cfg.Snooze))
	default: // an outage or a restarting subsystem must not fail the job
		return river.JobSnooze(min(outageSnooze, j.cfg.Snooze))
	}
}

// clean works CleanJob. Repeating it is harmless.
func (j *Jobs) clean(ctx context.Context, log zerolog.Logger) error {
	for {
		restored, err := j.db.Restore(ctx, restoreLimit)
		if err != nil {
			return err
		}
		if len(restored) > 0 {
			j.metrics.restored.Add(float64(len(restored)))
			log.Error().Int("queues", len(restored)).Str("first", restored[0].ID()).Msg("recreated missing jobs of queues")
			j.portals.Resume(ctx, restored)
		}
		if len(restored) < restoreLimit {
			break
		}
	}
	// The loop goes through the whole table of windows in small transactions. The next job does
	// what this one has no time for.
	for after := int64(0); ctx.Err() == nil; {
		_, next, err := j.db.SweepWindows(ctx, after, forgetBatch)
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
	return nil
}

// forget deletes in small transactions for as long as a job may run. The next day's job
// deletes the rest.
func (j *Jobs) forget(ctx context.Context, log zerolog.Logger) error {
	deleted := [2]int{}
	for i, forget := range []func(context.Context, time.Duration, int) (int, error){j.db.Forget, j.db.ForgetQueues} {
		for n := forgetBatch; n == forgetBatch && ctx.Err() == nil; deleted[i] += n {
			var err error
			if n, err = forget(ctx, retention, forgetBatch); err != nil {
				return err
			}
		}
	}
	log.Info().Int("actions", deleted[0]).Int("queues", deleted[1]).Msg("deleted old rows")
	return nil
}
