package runner

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"takt/http/client"
	"takt/store"
	"takt/store/tracing"
)

// maxErrorMessage is the longest error message that is reported, in bytes.
const maxErrorMessage = 4096

// maxRefusals is how often a result is sent that the controller rejects as damaged, because
// the damage may have happened on the way.
const maxRefusals = 3

// conclude reports how the build ended, unless it is no longer ours.
func (w *Worker) conclude(
	hard, report context.Context, a *assignment, ws workspace, err error, lines *logStream, log zerolog.Logger,
) {
	if lost, ok := a.lost(); ok {
		log.Warn().Err(lost.why).Msg("build given up")
		lines.discard()
		return
	}
	if err != nil && hard.Err() != nil {
		err = errStopped
	}
	// The log should be whole before the build is final.
	lines.flush(report, linger)
	if err == nil {
		err = w.deliver(hard, report, a, ws.Output, log)
	}
	if err != nil && verdict(err) == nil {
		err = a.masked(err)
		log.Warn().Err(err).Str("fault", string(faultOf(err))).Msg("build failed")
		failure := client.Upload{Held: a.held, ErrorMessage: store.Clip(err.Error(), maxErrorMessage), Fault: faultOf(err), Ended: endOf(err)}
		if err := w.upload(hard, report, a, failure); err != nil {
			log.Error().Err(err).Msg("failure not reported")
		}
	}
}

// deliver uploads the result. The error is one to report, or a reply which
// means that the build is not ours.
func (w *Worker) deliver(hard, ctx context.Context, a *assignment, path string, log zerolog.Logger) error {
	result, err := client.File(path)
	if err != nil {
		return err
	}
	name := "result" + store.Platform(a.job.Platform).ResultExt(a.secrets.String(path))
	err = w.upload(hard, ctx, a, client.Upload{Held: a.held, Success: true, Result: &result, ResultName: name})
	switch {
	case err == nil:
		log.Info().Int64("bytes", result.Size).Msg("result delivered")
	case verdict(err) != nil:
		log.Warn().Err(err).Msg("result refused by the controller")
	case client.StatusOf(err) != 0:
		refused, _ := errors.AsType[*store.Error](err)
		return errors.New("result refused: " + refused.Message)
	}
	return err
}

// upload repeats until the reply is final, which is safe because the controller
// accepts an identical repeat. Each try asks for the next build if it may, see askNext.
func (w *Worker) upload(hard, ctx context.Context, a *assignment, u client.Upload) (err error) {
	step := w.step(ctx, u.Held, "upload")
	defer func() { tracing.End(step, err) }()
	retry := w.retry
	retry.OnWait = w.waiting("upload")
	refusals := 0
	retry.Temporary = func(err error) bool {
		if client.StatusOf(err) == http.StatusBadRequest && u.Result != nil {
			refusals++
			return refusals < maxRefusals
		}
		return tryAgain(err)
	}
	return retry.Do(ctx, func(ctx context.Context) error {
		asked := w.askNext(hard, a, &u)
		if asked {
			defer func() { <-w.asking }()
		}
		reply, err := w.api.Upload(ctx, u)
		if err == nil && asked {
			w.takeNext(hard, a, reply)
		}
		return err
	})
}

// heartbeat sends heartbeats of the build until ctx ends. It runs in a goroutine of its
// own, so that a command that hogs the machine does not stop it. When a reply means
// that the build is no longer ours, the assignment is cancelled and heartbeat ends; any
// other failure is left to the next heartbeat.
func (w *Worker) heartbeat(ctx context.Context, a *assignment, log zerolog.Logger) {
	ticker := time.NewTicker(w.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-a.asked:
		case <-ctx.Done():
			return
		}
		err := w.heartbeatOnce(ctx, a.held)
		if lost := verdict(err); lost != nil {
			a.cancel(lost)
			return
		}
		if err != nil && ctx.Err() == nil {
			log.Warn().Err(err).Msg("heartbeat failed")
		}
	}
}

// heartbeatOnce is bounded, so that a lost packet costs one heartbeat and not the build.
func (w *Worker) heartbeatOnce(ctx context.Context, held client.Held) error {
	ctx, cancel := context.WithTimeout(ctx, max(w.cfg.Heartbeat, 5*time.Second))
	defer cancel()
	held.Token = w.shown()
	reply, err := w.api.Heartbeat(ctx, held, nil)
	switch {
	case err != nil:
		return err
	case reply.Cancelled:
		return lostError{errCancelled}
	}
	w.renew(held.Token, reply.AccessToken)
	return nil
}
