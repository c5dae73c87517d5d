package deployment

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/actors/deployment/forge"
	"takt/actors/otp"
	"takt/store"
	"takt/store/backoff"
	"takt/store/tracing"
)

// repoWorker is the RepoWorker process, which copies one repository. It records each step before
// the next one begins. It records an outcome once and then ends normally. If it panics, hangs
// or is killed, the DeploymentWorker, which monitors it, records the outcome.
type repoWorker struct {
	d         *Deployments
	processes *processes
	job       *job
	name      string
	state     otp.Ref
	// worker is cancelled when the DeploymentWorker ends, for any reason.
	worker context.Context // of the process that started it
	// silent is the time set by silentUntil, in Unix nanoseconds.
	silent atomic.Int64

	// Only the DeploymentWorker uses the following fields.
	sup  *otp.Proc // the supervisor that it runs under
	hung bool
}

// key is the worker's name under its supervisor.
func (r *repoWorker) key() string { return r.processes.claim.ID + ":" + r.name }

// silentUntil sets until when the worker may be silent.
func (r *repoWorker) silentUntil(until time.Time) { r.silent.Store(until.UnixNano()) }

// due is when the worker counts as hanging.
func (r *repoWorker) due() time.Time { return time.Unix(0, r.silent.Load()).Add(r.d.cfg.Patience) }

// run is the process. It returns nil when the outcome is written, or when another process
// writes it.
func (r *repoWorker) run(ctx context.Context) error {
	r.d.gauges.copying.Add(1)
	defer r.d.gauges.copying.Add(-1)
	ctx, cancel := context.WithCancelCause(forge.WithNotice(ctx, r.silentUntil))
	defer cancel(nil)
	stop := context.AfterFunc(r.worker, func() { cancel(otp.Shutdown("the deployment's worker has ended")) }) //nolint:contextcheck // whichever ends first
	defer stop()
	ctx, span := tracing.Start(ctx, trace.SpanKindInternal, "copy repository", trace.WithAttributes(semconv.VCSRepositoryName(r.name)))
	var err error
	defer func() { tracing.End(span, err) }()

	var row store.DeploymentRepo
	err = r.retryWrite(ctx, func() (err error) {
		row, err = r.d.db.Begin(ctx, r.processes.claim, r.name)
		return err
	})
	if err == nil {
		otp.Cast(r.state, noted{})
		err = r.copy(ctx, row)
	}
	if isOver(err) {
		return nil // the row has the reason
	}
	return err
}

// retryWrite repeats a write during an outage of the database.
func (r *repoWorker) retryWrite(ctx context.Context, write func() error) error {
	return r.d.retryWrite(ctx, func() error {
		r.silentUntil(time.Now())
		return write()
	}, store.IsUnavailable)
}

// retryWrite repeats a write while passes returns true for its error.
func (d *Deployments) retryWrite(ctx context.Context, write func() error, passes func(error) bool) error {
	for {
		err := write()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || !passes(err):
			return err
		}
		if err := backoff.Pause(ctx, d.cfg.Retry); err != nil {
			return err
		}
	}
}

// write records a step.
func (r *repoWorker) write(ctx context.Context, row *store.DeploymentRepo, change store.RepoChange) error {
	err := r.retryWrite(ctx, func() error { return r.d.db.Step(ctx, r.processes.claim, r.name, row.Run, change) })
	if err != nil {
		return err
	}
	row.Step = change.Step
	r.d.gauges.ended(change.Step)
	if change.TargetID != 0 {
		row.TargetID, row.TargetURL = change.TargetID, change.TargetURL
	}
	otp.Cast(r.state, noted{})
	return nil
}

// copy continues at the recorded step, and turns failures into outcomes.
func (r *repoWorker) copy(ctx context.Context, row store.DeploymentRepo) error {
	err := r.steps(ctx, &row)
	failure, ok := errors.AsType[*forge.Error](err)
	if !ok || ctx.Err() != nil {
		return err // nil, or a defect, which the monitoring DeploymentWorker records
	}
	return r.write(ctx, &row, store.RepoChange{Step: store.RepoFailed, Error: failure.Message})
}

func (r *repoWorker) steps(ctx context.Context, row *store.DeploymentRepo) error {
	if row.Source.Refused != "" {
		return &forge.Error{Message: row.Source.Refused}
	}
	if row.Step == store.RepoPlanned || row.Step == store.RepoCreating {
		if err := r.create(ctx, row); err != nil || row.Step.Final() {
			return err
		}
	}
	var pushed *forge.Copied // nil if an earlier run pushed, because its refs are not known here
	if row.Step == store.RepoPushing {
		var err error
		if pushed, err = r.push(ctx, row); err != nil {
			return err
		}
	}
	return r.verify(ctx, row, pushed)
}

// create makes the target, or finds that a foreign repository has the name.
func (r *repoWorker) create(ctx context.Context, row *store.DeploymentRepo) error {
	wish := forge.CreateRequest{
		Org: r.job.request.TargetOrg, Name: row.Target, Description: row.Source.Description, Visibility: row.Source.Visibility,
		Marker: r.processes.claim.ID + "/" + strconv.FormatInt(row.Source.ID, 10),
		// An earlier run may have created it and ended before it recorded that.
		Look: row.Source.Taken || row.Step == store.RepoCreating || row.Attempts > 1,
	}
	if r.job.request.DryRun {
		target, found, err := r.job.account.Find(ctx, wish)
		if err != nil {
			return err
		}
		if !found {
			return &forge.Error{Message: "The target had a repository called " + row.Target + ", and has it no more"}
		}
		return r.clash(ctx, row, target)
	}
	if row.Step == store.RepoPlanned {
		if err := r.write(ctx, row, store.RepoChange{Step: store.RepoCreating}); err != nil {
			return err
		}
	}
	target, err := r.job.account.Create(ctx, wish)
	if err != nil {
		return err
	}
	if !target.Owned {
		return r.clash(ctx, row, target)
	}
	return r.write(ctx, row, store.RepoChange{Step: store.RepoPushing, TargetID: target.ID, TargetURL: target.URL, Made: target.Made})
}

// clash handles another repository of that name at the target. If it has the same refs, the
// repository is skipped; otherwise it fails. The other repository is not changed.
func (r *repoWorker) clash(ctx context.Context, row *store.DeploymentRepo, target forge.Target) error {
	here, err := r.job.account.Refs(ctx, row.Source.URL)
	if err != nil {
		return err
	}
	there, err := r.job.account.Refs(ctx, target.URL)
	if err != nil {
		return err
	}
	if here.Diff(there) != "" {
		return &forge.Error{Message: "The target has another repository called " + row.Target + " already"}
	}
	return r.write(ctx, row, store.RepoChange{
		Step: store.RepoSkipped, Refs: len(there), Error: "The target has it already, with the same branches and tags",
	})
}

func (r *repoWorker) push(ctx context.Context, row *store.DeploymentRepo) (*forge.Copied, error) {
	copied, err := r.job.account.Copy(ctx, row.Source.URL, row.TargetURL)
	if err != nil {
		return nil, err
	}
	return &copied, r.write(ctx, row, store.RepoChange{Step: store.RepoVerifying, Warning: copied.Warning})
}

// verify compares the copy's refs with the pushed ones, and gives the copy its final
// settings. If an earlier run pushed, it compares with the source; if the source has
// changed since, the repository is pushed again.
func (r *repoWorker) verify(ctx context.Context, row *store.DeploymentRepo, pushed *forge.Copied) error {
	there, err := r.job.account.Refs(ctx, row.TargetURL)
	if err != nil {
		return err
	}
	if pushed == nil {
		here, err := r.job.account.Refs(ctx, row.Source.URL)
		if err != nil {
			return err
		}
		if here.Diff(there) != "" {
			if pushed, err = r.push(ctx, row); err != nil {
				return err
			}
			return r.verify(ctx, row, pushed)
		}
		pushed = &forge.Copied{Refs: here}
	}
	if diff := pushed.Refs.Diff(there); diff != "" {
		return &forge.Error{Message: "The copy differs from what was pushed: " + diff}
	}
	err = r.job.account.Configure(ctx, r.job.request.TargetOrg, row.Target, forge.Settings{
		Description: row.Source.Description, DefaultBranch: there.Default(row.Source.DefaultBranch),
	})
	if err != nil {
		return err
	}
	return r.write(ctx, row, store.RepoChange{Step: store.RepoDone, Refs: len(there)})
}
