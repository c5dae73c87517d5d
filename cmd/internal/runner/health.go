package runner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// ErrUnfit is wrapped by the error of a worker that could not run builds when it ended.
var ErrUnfit = errors.New("this worker can't run builds")

// health is whether a worker can run builds.
type health struct {
	// unfit is why no build can be run, nil if one can. Guarded by the worker's mu.
	unfit error
}

// faultError is a failure of the worker's own: another worker may well run the build.
type faultError struct {
	fault store.Fault
	error
}

func (e faultError) Unwrap() error { return e.error }

// faultOf returns the fault that ended an attempt.
func faultOf(err error) store.Fault {
	if own, ok := errors.AsType[faultError](err); ok {
		return own.fault
	}
	return store.FaultBuild
}

// diskFault returns err as the worker's own fault if the disk is full or broken.
func diskFault(err error) error {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, errno) {
			return faultError{store.FaultDisk, err}
		}
	}
	return err
}

// awaitRepair is called with a job that can't be run because of unfit: it gives the job back
// and returns when builds can be run again, or ctx has ended.
func (w *Worker) awaitRepair(ctx context.Context, unfit error) {
	w.unable(unfit)
	w.log.Error().Err(unfit).Msg("paused: no builds until this is fixed")
	// Registering lists the builds that run here. The others are pending again, and use
	// up no attempt as long as nothing was fetched.
	_ = w.forever("register").Do(ctx, w.register)
	w.Report()
	told := time.Now()
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
			told = time.Time{}
		}
		if time.Since(told) >= w.cfg.ReportAgain {
			told = time.Now()
			w.Report()
		}
		_, refused := errors.AsType[imageError](err)
		if refused {
			failures = max(failures, 4) // only people can fix this
		}
		_ = backoff.Pause(ctx, w.cfg.Backoff.Wait(failures))
		if refused { // the controller may name another by now
			_ = w.register(ctx)
		}
	}
}

func (w *Worker) unable(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.unfit = why
}

// forever retries as long as that may help.
func (w *Worker) forever(what string) client.Retry {
	return client.Retry{Backoff: w.cfg.Backoff, OnWait: w.waiting(what), Temporary: func(err error) bool {
		code := store.CodeOf(err)
		return client.Temporary(err) || code == store.DuplicateWorker || code == store.LateRegistration
	}}
}
