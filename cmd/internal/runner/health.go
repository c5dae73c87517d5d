package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"takt/http/client"
)

// ErrUnfit is in the error of a worker that could not run builds when it ended.
var ErrUnfit = errors.New("this worker can't run builds")

const (
	// quick is how soon a build fails that may not have been the build's fault.
	quick = 10 * time.Second
	// maxQuick is how many different builds may fail so, one after the other.
	maxQuick = 3
)

// health is what a worker knows of its own ability to run builds.
type health struct {
	// failed are the builds that failed quickly, since one did not. Guarded by the
	// worker's mu.
	failed []string
	// unfit is why no build can be run, nil if one can. Guarded by the worker's mu.
	unfit error
}

// judge notes how a build has ended.
func (w *Worker) judge(build string, failed bool, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !failed || took >= quick:
		w.health.failed = nil
	case !slices.Contains(w.health.failed, build):
		w.health.failed = append(w.health.failed, build)
	}
}

// mend is called with a job that can't be run because of unfit: it gives the job back
// and returns when builds can be run again, or ctx has ended.
func (w *Worker) mend(ctx context.Context, unfit error) {
	w.unable(unfit)
	w.log.Error().Err(unfit).Msg("paused: no builds until this is repaired")
	// Registering says what runs here: what does not is pending again, and has used
	// up no attempt as long as nothing was fetched.
	_ = w.forever("register").Do(ctx, w.register)
	w.Report()
	for failures := 0; ctx.Err() == nil; failures++ {
		err := w.cfg.Command.Prepare(ctx, w.image)
		if err == nil {
			err = w.cfg.Command.Check(ctx, w.image)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.unable(nil)
			w.log.Info().Msg("repaired: taking builds again")
			w.Report()
			return
		case err.Error() != unfit.Error():
			unfit = err
			w.unable(unfit)
			w.log.Error().Err(unfit).Msg("still paused")
			w.Report()
		}
		pause(ctx, w.cfg.Backoff.Wait(failures))
		if _, other := errors.AsType[imageError](err); other { // the controller may name another by now
			_ = w.register(ctx)
		}
	}
}

func (w *Worker) unable(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.unfit = why
}

// quarantine makes the controller give this worker no builds, until an operator
// resumes it, if too many have failed quickly.
func (w *Worker) quarantine(ctx context.Context) {
	w.mu.Lock()
	failed := w.health.failed
	if len(failed) < maxQuick {
		w.mu.Unlock()
		return
	}
	w.health.failed = nil
	w.mu.Unlock()
	why := fmt.Errorf("quarantined: builds %s failed within %s of starting", strings.Join(failed, ", "), quick)
	w.unable(why)
	w.log.Error().Err(why).Msg("no builds until takt workers resume " + w.id)
	_ = w.forever("drain").Do(ctx, func(ctx context.Context) error {
		_, err := w.api.Drain(ctx, w.id)
		return err
	})
	w.Report()
}

// forever retries as long as that may help.
func (w *Worker) forever(what string) client.Retry {
	return client.Retry{Backoff: w.cfg.Backoff, OnWait: w.waiting(what)}
}
