package main

import (
	"context"
	"sync"
)

// newBackground returns a function that runs others beside everything else, and
// one that cancels them and waits for their end. After stop nothing may be run.
func newBackground(ctx context.Context) (run func(func(ctx context.Context)), stop func(cause error)) {
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	run = func(f func(ctx context.Context)) { running.Go(func() { f(ctx) }) }
	stop = func(cause error) {
		cancel(cause)
		running.Wait()
	}
	return run, stop
}
