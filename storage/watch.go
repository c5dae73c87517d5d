package storage

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errStalled says that a transfer with S3 made no progress.
var errStalled = errors.New("the transfer stands still")

// leastStep is how many bytes have to move within the limit of a watchdog, so that a
// transfer of a byte now and then does not hold others up for hours.
const leastStep = 64 << 10

// watchdog cancels a transfer that makes no progress.
type watchdog struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards the fields below, because minio reads in its own goroutines
	moved func(now time.Time)
	bytes int // since the timer was set
}

// watch returns a context that ends when fewer than leastStep bytes have moved for limit. moved is called
// as bytes move, by one goroutine at a time and never after stop.
func watch(ctx context.Context, limit time.Duration, moved func(now time.Time)) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{limit: limit, cancel: cancel, moved: moved}
	w.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	return ctx, w
}

// Read is called by minio to report progress: len(p) bytes have moved.
func (w *watchdog) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes += len(p); w.bytes >= leastStep {
		w.bytes = 0
		w.timer.Reset(w.limit)
	}
	if w.moved != nil {
		w.moved(time.Now())
	}
	return len(p), nil
}

// rest stops the timer while no caller waits for bytes.
func (w *watchdog) rest() { w.timer.Stop() }

// wake starts the timer again.
func (w *watchdog) wake() { w.timer.Reset(w.limit) }

func (w *watchdog) stop() {
	w.mu.Lock()
	w.moved = nil
	w.mu.Unlock()
	w.timer.Stop()
	w.cancel(nil)
}
