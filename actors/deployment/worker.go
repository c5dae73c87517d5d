package deployment

import (
	"context"
	"errors"
	"time"

	"takt/actors/deployment/forge"
	"takt/actors/otp"
	"takt/store"
)

// The messages.
type (
	rescan struct{} // cast: repositories must be copied again, because of a retry
	lost   struct { // a lost repository was recorded, or the run is over
		repo string
		err  error
	}
	fill     struct{} // timer: start RepoWorkers, or report again that no repositories are left
	watchdog struct{} // timer: look for hanging RepoWorkers
)

// startAgain is the wait before the next try to start RepoWorkers.
const startAgain = 50 * time.Millisecond

// job is the worker's view of its deployment.
type job struct {
	request store.DeploymentRequest
	account Account
	open    []store.DeploymentRepo // the unfinished repositories when it was read
}

// worker is the DeploymentWorker process. It lists the repositories and starts a
// RepoWorker for each. It is never restarted, because its crash ends its deployment. The
// state process records that end.
type worker struct {
	otp.Base
	d         *Deployments
	processes *processes
	job       *job

	queue   []string // names of repositories to start
	running map[*otp.Proc]*repoWorker
	losing  map[string]bool // names of repositories whose loss is being written
	filling bool            // a timer for fill runs
	loads   otp.Job[*job]   // reads the deployment, and plans it if it has no plan
}

// Init implements otp.Server.
func (w *worker) Init(c *otp.Ctx) error {
	w.running, w.losing = map[*otp.Proc]*repoWorker{}, map[string]bool{}
	w.processes.worker.Store(c.Self())
	otp.Cast(w.state(), workerBegun{})
	w.loads = otp.Job[*job]{Begin: w.load, Done: w.loaded, Outage: store.DescribeOutage}
	w.loads.Start(c)
	c.SendEvery(min(5*time.Second, w.d.cfg.Patience/4), watchdog{})
	return nil
}

func (w *worker) state() otp.Ref {
	return w.d.sys.Ref(w.d.deploymentSup.Name() + "/" + w.processes.claim.ID + "/state")
}

// HandleCast implements otp.Server.
func (w *worker) HandleCast(c *otp.Ctx, msg any) {
	if _, ok := msg.(rescan); !ok {
		w.Base.HandleCast(c, msg)
		return
	}
	w.loads.Start(c)
}

// HandleInfo implements otp.Server.
func (w *worker) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case fill:
		w.filling = false
		w.fill(c)
	case otp.Down:
		w.repoDown(c, msg)
	case lost:
		w.lost(c, msg)
	case watchdog:
		w.killHanging(c)
	default:
		w.Base.HandleInfo(c, msg)
	}
}

// Terminate implements otp.Server. It stops the RepoWorkers.
func (w *worker) Terminate(c *otp.Ctx, _ error) {
	ctx, cancel := context.WithTimeoutCause(c.Context(), repoStop, errReposTooSlow)
	defer cancel()
	w.processes.stop(ctx)
}

// load reads the deployment, and plans it if it has no plan.
func (w *worker) load() func(context.Context) (*job, error) {
	d, claim := w.d, w.processes.claim
	return func(ctx context.Context) (*job, error) { return d.prepare(ctx, claim) }
}

func (w *worker) loaded(c *otp.Ctx, job *job, err error) (next time.Duration) {
	switch {
	case err == nil:
		w.job = job
		otp.Cast(w.state(), noted{})
		w.enqueue(job.open)
		w.fill(c)
		return 0
	case isOver(err): // another process has ended it and will stop this one
		return 0
	case w.job == nil && !store.IsUnavailable(err):
		c.Logger().Error().Err(err).Str("deployment", w.processes.claim.ID).Msg("preparing a deployment failed")
		otp.Cast(w.state(), unprepared{forge.Message(err)}) // the next load sends it again, in case it was missed
	}
	return w.d.cfg.Retry
}

// isOver reports whether a write failed because the run is no longer current.
func isOver(err error) bool {
	code := store.CodeOf(err)
	return code == store.StaleAttempt || code == store.NotFound
}

// enqueue adds the repositories that no RepoWorker has. A RepoWorker finds out when it
// begins if its repository is already finished.
func (w *worker) enqueue(open []store.DeploymentRepo) {
	known := make(map[string]bool, len(w.queue)+len(w.running))
	for _, name := range w.queue {
		known[name] = true
	}
	for _, r := range w.running {
		known[r.name] = true
	}
	for _, r := range open {
		if !known[r.Name] && !w.losing[r.Name] {
			w.queue = append(w.queue, r.Name)
		}
	}
}

// fill starts RepoWorkers until the deployment's concurrency is reached.
func (w *worker) fill(c *otp.Ctx) {
	for len(w.queue) > 0 && len(w.running) < w.job.request.Concurrency {
		if err := w.start(c, w.queue[0]); err != nil {
			w.fillIn(c, startAgain) // repo_sup is restarting or full
			return
		}
		w.queue = w.queue[1:]
	}
	w.reportDrained(c)
}

// fillIn calls fill in a while, unless a timer for that runs.
func (w *worker) fillIn(c *otp.Ctx, d time.Duration) {
	if !w.filling {
		w.filling = true
		c.SendAfter(d, fill{})
	}
}

func (w *worker) start(c *otp.Ctx, name string) error {
	ctx, cancel := context.WithTimeoutCause(c.Context(), repoStop, otp.ErrTimeout)
	defer cancel()
	sup := w.d.repoSup.Whereis()
	if sup == nil {
		return otp.ErrNoProc
	}
	r := &repoWorker{d: w.d, processes: w.processes, job: w.job, name: name, worker: c.Context(), state: w.state()}
	r.silentUntil(time.Now())
	p, err := otp.StartDynamic(ctx, sup, r)
	if err != nil {
		return err
	}
	r.sup = sup
	w.running[p] = r
	w.processes.repos.Store(p, nil)
	c.Monitor(p)
	return nil
}

// repoDown handles a RepoWorker's end. It records the outcome if the RepoWorker did
// not.
func (w *worker) repoDown(c *otp.Ctx, m otp.Down) {
	r := w.running[m.Proc]
	if r == nil {
		return
	}
	delete(w.running, m.Proc)
	w.processes.repos.Delete(m.Proc)
	switch crash, panicked := errors.AsType[*otp.PanicError](m.Reason); {
	case errors.Is(m.Reason, otp.ErrNormal):
	case errors.Is(m.Reason, otp.ErrShutdown), w.d.repoSup.Whereis() != r.sup:
		w.queue = append([]string{r.name}, w.queue...) // stopped by a supervisor: the repository continues where it was
	case panicked:
		logger := c.Logger()
		logger.Error().Err(crash).Str("deployment", w.processes.claim.ID).Str("repo", r.name).Msg("repository worker crashed")
		w.lose(c, r.name, "The worker of this repository has crashed")
	case r.hung:
		w.lose(c, r.name, "The worker of this repository did not come back: it was given up")
	default:
		w.lose(c, r.name, "The worker of this repository was ended: "+m.Reason.Error())
	}
	w.fill(c)
}

// lose records the failure of a repository whose RepoWorker could not record it.
func (w *worker) lose(c *otp.Ctx, repo, why string) {
	w.losing[repo] = true
	d, claim := w.d, w.processes.claim
	c.Async(func(ctx context.Context) any {
		err := d.retryWrite(ctx, func() error { return d.db.Lose(ctx, claim, repo, why) }, func(err error) bool { return !isOver(err) })
		return lost{repo, err}
	})
}

func (w *worker) lost(c *otp.Ctx, m lost) {
	if m.err == nil {
		w.d.gauges.ended(store.RepoFailed)
	}
	delete(w.losing, m.repo)
	otp.Cast(w.state(), noted{})
	w.reportDrained(c)
}

// killHanging kills RepoWorkers that are silent for too long.
func (w *worker) killHanging(c *otp.Ctx) {
	now := time.Now()
	for p, r := range w.running {
		if now.After(r.due()) && !r.hung {
			r.hung = true
			logger := c.Logger()
			logger.Error().Str("deployment", w.processes.claim.ID).Str("repo", r.name).Msg("repository worker hangs; killing it")
			p.Kill()
		}
	}
}

// reportDrained reports that no repositories are left, and repeats that until the deployment
// ends.
func (w *worker) reportDrained(c *otp.Ctx) {
	if w.job == nil || w.loads.Running() || len(w.queue)+len(w.running)+len(w.losing) > 0 {
		return
	}
	otp.Cast(w.state(), drained{})
	w.fillIn(c, w.d.cfg.Retry)
}
