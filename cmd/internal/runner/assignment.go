package runner

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// errSuperseded ends an attempt of a build when a newer one arrives.
var errSuperseded = errors.New("a newer attempt of this build was handed out")

// assignment is one attempt of a build that this worker holds.
type assignment struct {
	job  api.Job
	held client.Held
	// ctx ends with the reason why the build must stop; cancel ends it.
	ctx    context.Context // the attempt's life, which others end
	cancel context.CancelCauseFunc
	phase  atomic.Value // a string, for telemetry
	owner  *Owner       // the user that its command runs as; nil for the worker's
	// after is closed when an older attempt of the same build has ended; nil if there
	// is none. done is closed when this one has.
	after <-chan struct{}
	done  chan struct{}
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
		job: job, done: make(chan struct{}),
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
		w.log.Warn().Err(err).Stringer("again_in", wait).Msg(what + " failed")
	}
}
