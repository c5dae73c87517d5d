package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/mask"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/tracing"
)

// lostError is why a build is no longer ours: it is stopped, and nothing is
// reported.
type lostError struct{ why error }

func (e lostError) Error() string { return "build given up: " + e.why.Error() }
func (e lostError) Unwrap() error { return e.why }

var errCancelled = errors.New("cancelled by the controller")

// verdict returns a lostError if err is one, or is a reply which means that the
// build is not ours, else nil. A refused API key does not concern the build: keys
// are changed while builds run, and changed back.
func verdict(err error) error {
	if lost, ok := errors.AsType[lostError](err); ok {
		return lost
	}
	switch client.StatusOf(err) {
	case http.StatusForbidden, http.StatusNotFound, http.StatusConflict:
		if store.CodeOf(err) != store.InvalidAPIKey {
			return lostError{err}
		}
	}
	return nil
}

// build runs one attempt of a build from job to report. hard ends when the
// worker must stop at once.
func (w *Worker) build(hard context.Context, a *assignment) {
	log := w.log.With().Str("build", a.job.ID).Int("attempt", a.job.Attempt).Logger()
	if a.after != nil {
		<-a.after
	}
	// Steps and calls are all directly below the attempt, which the controller records, so
	// that they have their parent even if this worker is killed.
	ctx := tracing.Below(a.ctx, a.job.Traceparent)
	// Reports outlive the build's own end, and the worker's by a little.
	report, stop := w.outliving(tracing.Below(hard, a.job.Traceparent))
	defer stop()

	lines := newLogStream(w.cfg.Logs, w.retry, func(ctx context.Context, batch []api.LogMessage) error {
		reply, err := w.api.PostLogs(ctx, a.held, batch)
		if err == nil && reply.Cancelled {
			a.ask()
		}
		return err
	})
	var beside sync.WaitGroup
	beside.Go(func() {
		if err := lines.run(report); err != nil {
			log.Warn().Err(err).Msg("log refused by the controller")
			a.cancel(verdict(err))
		}
	})
	heartbeats, endHeartbeats := context.WithCancelCause(report)
	beside.Go(func() { w.heartbeat(heartbeats, a, log) })

	log.Info().Str("platform", a.job.Platform).Msg("build started")
	began := time.Now()
	ws, err := w.state.workspace(a.job.ID, a.job.Platform, a.job.Attempt)
	ws.Image, ws.owner = a.job.BaseImageID, a.owner
	if err == nil {
		err = w.work(ctx, a, &ws, lines) //nolint:contextcheck // the attempt has a life of its own, below hard
	} else {
		err = faultError{store.FaultDisk, err}
	}
	a.phase.Store(phaseUpload)
	w.conclude(hard, report, a, ws, err, lines, log)
	log.Info().Stringer("took", time.Since(began).Round(time.Millisecond)).Msg("build ended")

	endHeartbeats(context.Canceled)
	if lost := lines.close(report, linger); lost > 0 {
		log.Warn().Int("lines", lost).Msg("end of the log not delivered")
	}
	beside.Wait()
	w.clean(ws, log)
}

// outliving returns a context that outlives hard by StopGrace, beyond the time
// that killing takes.
func (w *Worker) outliving(hard context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(hard))
	grace := w.cfg.KillGrace + w.cfg.StopGrace
	unhook := context.AfterFunc(hard, func() {
		timer := time.AfterFunc(grace, func() { cancel(errStopped) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
	return ctx, func() {
		unhook()
		cancel(context.Canceled)
	}
}

// step begins the span of a step of a build.
func (w *Worker) step(ctx context.Context, of client.Held, name string) trace.Span {
	_, span := tracing.Start(ctx, trace.SpanKindInternal, name)
	if span.IsRecording() {
		span.SetAttributes(semconv.CICDPipelineRunID(of.BuildID), semconv.CICDPipelineTaskName(name),
			semconv.CICDPipelineTaskRunID(strconv.Itoa(of.Attempt)), semconv.CICDWorkerID(of.WorkerID), semconv.CICDWorkerName(w.cfg.Name))
	}
	return span
}

// work fetches, unpacks and runs the build. Its errors are shown to the submitter.
func (w *Worker) work(ctx context.Context, a *assignment, ws *workspace, lines *logStream) error {
	lines.say("attempt %d begins on %s", a.job.Attempt, w.cfg.Name)
	if w.unlimited != nil {
		lines.say("not all limits hold here: %s", w.unlimited)
	}
	step := w.step(ctx, a.held, "download")
	in, err := w.inputs(ctx, a, ws, lines)
	if err == nil {
		err = w.fetch(ctx, a, ws, lines)
	}
	tracing.End(step, err)
	err = diskFault(err)
	// A source that takes more than the build's own share of the disk is the build's fault.
	if limit := w.cfg.Resources.Disk; limit > 0 && (err == nil || faultOf(err) == store.FaultDisk) && usage(ctx, ws.root) > limit {
		return w.cfg.Resources.diskLimit()
	}
	if err != nil {
		return err
	}
	stdout, stderr := lines.writer("info"), newTail(lines.writer("warn"))
	a.phase.Store(phaseBuild)
	plan := w.cfg.Command.Plan(ws.Workspace)
	plan.certs, plan.secrets = ws.Certs, ws.Secrets
	plan.prepare = func() error { return w.prepare(in, ws, plan.envFile) }
	if err := w.endProcesses(ctx, plan.owner); err != nil {
		return notStarted(err)
	}
	if err := w.state.open(plan.owner, ws); err != nil {
		return faultError{store.FaultDisk, err}
	}
	limited, stop := w.limit(ctx, in.timeout, ws.root, plan)
	step = w.step(ctx, a.held, "build")
	err = run(limited, plan, stdout, stderr, w.cfg.KillGrace)
	tracing.End(step, err)
	stop()
	stdout.close()
	stderr.close()
	_ = w.endProcesses(ctx, plan.owner) // the slot takes no build while it fails
	if removed := ws.removeSecrets(); removed != nil {
		w.log.Error().Err(removed).Str("build", a.job.ID).Msg("removing certificates and secrets failed")
	}
	_, exceeded := errors.AsType[limitError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case exceeded || err != nil && faultOf(err) != store.FaultBuild:
		return fmt.Errorf("%w%s", err, stderr.quote())
	case err != nil:
		return fmt.Errorf("build command failed: %w%s", err, stderr.quote())
	}
	if plan.owner != nil {
		if err := plan.owner.take(filepath.Dir(ws.Output)); err != nil {
			return err
		}
	}
	ws.Output = produced(ws.Output)
	info, err := os.Lstat(ws.Output)
	switch {
	case err != nil:
		return errors.New("build command produced no file at $TAKT_OUTPUT")
	case !info.Mode().IsRegular() || plan.owner != nil && info.Sys().(*syscall.Stat_t).Nlink > 1:
		return errors.New("what the build command left at $TAKT_OUTPUT is not a regular file")
	}
	return nil
}

// produced returns the file that a command made: output itself, or else the only file there
// with that name and an extension.
func produced(output string) string {
	if _, err := os.Lstat(output); err == nil {
		return output
	}
	found, _ := os.ReadDir(filepath.Dir(output))
	found = slices.DeleteFunc(found, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), filepath.Base(output)+".") })
	if len(found) != 1 {
		return output
	}
	return filepath.Join(filepath.Dir(output), found[0].Name())
}

// fetch downloads and unpacks source and certificates.
func (w *Worker) fetch(ctx context.Context, a *assignment, ws *workspace, lines *logStream) error {
	limits := w.cfg.Limits
	limits.Links = true
	got, err := w.fetchArchive(ctx, a, ws.zip, ws.Source, limits, w.api.Source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	lines.say("source unpacked: %d files, %d bytes", got.Files, got.Bytes)
	if a.job.CertsURL == nil {
		return nil
	}
	ws.Certs = ws.certs()
	if err := os.Mkdir(ws.Certs, 0o700); err != nil {
		return err
	}
	if _, err := w.fetchArchive(ctx, a, ws.zip, ws.Certs, w.cfg.Limits, w.api.Certs); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	return nil
}

type fetchFunc func(context.Context, client.Held, client.Target, client.FetchOptions) (client.Fetched, error)

// fetchArchive downloads to zip, unpacks to dir, and removes zip.
func (w *Worker) fetchArchive(
	ctx context.Context, a *assignment, zip, dir string, limits UnzipLimits, get fetchFunc,
) (Unzipped, error) {
	f, err := os.OpenFile(zip, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return Unzipped{}, err
	}
	defer os.Remove(zip) // the whole directory goes later
	defer f.Close()
	retry := w.retry
	retry.OnWait = w.waiting("download")
	got, err := get(ctx, a.held, f, client.FetchOptions{Retry: retry})
	if err != nil {
		if lost := verdict(err); lost != nil {
			a.cancel(lost)
		}
		return Unzipped{}, err
	}
	return Unzip(ctx, f, got.Size, dir, limits)
}

// clean removes the build's directory, and its certificates and secrets in any case.
func (w *Worker) clean(ws workspace, log zerolog.Logger) {
	err := ws.removeSecrets()
	if w.cfg.Keep {
		log.Info().Str("directory", ws.root).Msg("build directory kept")
	} else if removed := removeAll(ws.root); err == nil {
		err = removed
	}
	if err != nil {
		log.Error().Err(err).Msg("removing the build's directory failed")
	}
}

// errSuperseded ends an attempt of a build when a newer one arrives.
var errSuperseded = errors.New("a newer attempt of this build was handed out")

// assignment is one attempt of a build that this worker holds.
type assignment struct {
	job  api.Job
	held client.Held
	// ctx ends with the reason why the build must stop; cancel ends it.
	ctx    context.Context // the attempt's life, which others end
	cancel context.CancelCauseFunc
	asked  chan struct{} // has an element if a heartbeat is to be sent at once
	phase  atomic.Value  // a string, for telemetry
	owner  *Owner        // the user that its command runs as; nil for the worker's
	// secrets are masked in all that is said of the build. Only its own goroutine uses them.
	secrets *mask.Set
	// after is closed when an older attempt of the same build has ended; nil if there
	// is none. done is closed when this one has.
	after <-chan struct{}
	done  chan struct{}
	// next is the build that came with the reply to this one's end; nil if none did.
	next *assignment
}

// accept returns a job's assignment, nil if this attempt already runs. It ends an older
// attempt of the same build.
func (w *Worker) accept(ctx context.Context, job api.Job) *assignment {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.active[job.ID]
	if old != nil && old.job.Attempt >= job.Attempt {
		return nil
	}
	a := &assignment{
		job: job, done: make(chan struct{}), asked: make(chan struct{}, 1),
		held: client.Held{BuildID: job.ID, WorkerID: w.id, Attempt: job.Attempt, Instance: w.state.instance},
	}
	a.phase.Store(phaseDownload)
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	if old != nil {
		a.after = old.done
		old.cancel(lostError{errSuperseded})
	}
	w.active[job.ID] = a
	return a
}

// lost returns why the build is no longer ours, nil if it is.
func (a *assignment) lost() (lostError, bool) {
	return errors.AsType[lostError](context.Cause(a.ctx))
}

// ask makes the next heartbeat come at once: its reply decides whether the build is still ours, and
// tells the controller's metrics when we knew.
func (a *assignment) ask() {
	select {
	case a.asked <- struct{}{}:
	default:
	}
}

// release forgets an assignment.
func (w *Worker) release(a *assignment) {
	a.cancel(context.Canceled)
	close(a.done)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active[a.job.ID] == a {
		delete(w.active, a.job.ID)
	}
}

// running lists the builds that the worker has; never nil.
func (w *Worker) running() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.AppendSeq([]string{}, maps.Keys(w.active))
}

// waiting returns a hook that logs why a call is retried.
func (w *Worker) waiting(what string) func(error, time.Duration) {
	return func(err error, wait time.Duration) {
		if store.CodeOf(err) == store.DuplicateWorker {
			w.log.Error().Str("worker", w.id).Str("id_file", w.state.idFile).Stringer("again_in", wait).
				Msg("another process uses this worker id; waiting until it has stopped. If the state directory is a copy, remove the id file from it")
			return
		}
		w.log.Warn().Str(zerolog.ErrorFieldName, cli.Message(err)).Stringer("again_in", wait.Round(100*time.Millisecond)).Msg(what + " failed")
	}
}
