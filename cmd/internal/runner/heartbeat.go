package runner

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"takt/http/client"
)

// beat tells the controller that the build is alive until ctx ends. It runs
// apart from the build, so that a command that hogs the machine does not keep
// it quiet. When the controller says that the build is not ours any more, the
// assignment is cancelled and beat ends; any other failure is left to the next
// beat.
func (w *Worker) beat(ctx context.Context, a *assignment, log zerolog.Logger) {
	ticker := time.NewTicker(w.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := w.beatOnce(ctx, a.held); err != nil {
			if lost := verdict(err); lost != nil {
				a.cancel(lost)
				return
			}
			if lost, ok := err.(lostError); ok { //nolint:errorlint // made by beatOnce
				a.cancel(lost)
				return
			}
			if ctx.Err() == nil {
				log.Warn().Err(err).Msg("heartbeat failed")
			}
		}
	}
}

// beatOnce is bounded, so that a lost packet costs one beat and not the build.
func (w *Worker) beatOnce(ctx context.Context, held client.Held) error {
	ctx, cancel := context.WithTimeout(ctx, max(w.cfg.Heartbeat, 5*time.Second))
	defer cancel()
	reply, err := w.api.Heartbeat(ctx, held, nil)
	if err == nil && reply.Cancelled {
		return lostError{errCancelled}
	}
	return err
}
