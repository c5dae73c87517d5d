package storage

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errStalled is why a transfer with S3 was given up.
var errStalled = errors.New("the transfer stands still")

// watchdog cancels a transfer that stands still.
type watchdog struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards what follows: minio reads in goroutines of its own
	moved func(now time.Time)
}

// watch returns a context that ends when nothing has moved for limit.
// moved is called as bytes go, by one at a time and never after stop.
func watch(ctx context.Context, limit time.Duration, moved func(now time.Time)) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{limit: limit, cancel: cancel, moved: moved}
	w.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	return ctx, w
}

// Read is how minio tells of progress: len(p) bytes have gone.
func (w *watchdog) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Reset(w.limit)
	if w.moved != nil {
		w.moved(time.Now())
	}
	return len(p), nil
}

// rest stops the clock, as long as nobody waits for bytes.
func (w *watchdog) rest() { w.timer.Stop() }

// wake starts it anew.
func (w *watchdog) wake() { w.timer.Reset(w.limit) }

func (w *watchdog) stop() {
	w.mu.Lock()
	w.moved = nil
	w.mu.Unlock()
	w.timer.Stop()
	w.cancel(nil)
}
