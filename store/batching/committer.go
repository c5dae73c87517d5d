package batching

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

var (
	// ErrFull says that too many items wait. The item was not taken.
	ErrFull = errors.New("too many items wait to be committed")
	// ErrClosed says that the Committer was closed before the item was in a batch.
	ErrClosed = errors.New("closed before the item was committed")
	// ErrUnknown says that the caller's context ended while its item was being committed, or
	// that Commit crashed. The item may be durable or not, and may still be read.
	ErrUnknown = errors.New("it is unknown whether the item was committed")
)

// Config describes a Committer. Commit is required.
type Config[T any] struct {
	// Commit makes items durable, all or none of them. It runs in its own goroutine and
	// limits its own time, because its callers share it.
	Commit func(items []T) error
	// Refused reports whether an error of Commit means that it did nothing and that one of
	// the items may be the reason; see Isolate. nil means that no error does.
	Refused func(error) bool
	// Full is how many items may wait, besides those in batches. Defaults to any number.
	Full int
	Pace Pace
}

// Committer lets callers share commits (group commit). Make it with New.
type Committer[T any] struct {
	cfg Config[T]

	mu      sync.Mutex // guards what follows
	pace    Pace
	waiting []*entry[T]
	late    bool        // the oldest waiting item has waited long enough
	timer   *time.Timer // sets late
	due     time.Time   // when it does
	closed  bool
	running sync.WaitGroup
}

// entry is an item whose caller waits.
type entry[T any] struct {
	item T
	err  error
	done chan struct{} // closed when err is set
}

// New returns a Committer. It owns no goroutine while nothing is committed.
func New[T any](cfg Config[T]) *Committer[T] { return &Committer[T]{cfg: cfg, pace: cfg.Pace} }

// Do returns nil when item is durable. Errors: those of Commit; ErrFull; ErrClosed; the
// cause of ctx if it ended before item was in a batch; ErrUnknown, wrapping the cause, if
// it ended later. After ErrFull, ErrClosed and the cause alone, item is never committed.
func (c *Committer[T]) Do(ctx context.Context, item T) error { return c.do(ctx, item, false) }

// Stay is Do for a caller that can't leave a batch: once item is in one, it waits for its end.
func (c *Committer[T]) Stay(ctx context.Context, item T) error { return c.do(ctx, item, true) }

func (c *Committer[T]) do(ctx context.Context, item T, stay bool) error {
	e := &entry[T]{item: item, done: make(chan struct{})}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.add(e); err != nil {
		return err
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
	}
	if c.remove(e) {
		return context.Cause(ctx)
	}
	if stay {
		<-e.done
	}
	select {
	case <-e.done:
		return e.err
	default:
		return fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// Wait is Do for a caller that can't leave.
func (c *Committer[T]) Wait(item T) error {
	e := &entry[T]{item: item, done: make(chan struct{})}
	if err := c.add(e); err != nil {
		return err
	}
	<-e.done
	return e.err
}

// Waiting returns how many items are in no batch yet.
func (c *Committer[T]) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting)
}

// Close refuses new items and those that wait, and returns when all batches have ended.
func (c *Committer[T]) Close() {
	c.mu.Lock()
	c.closed = true
	c.settle(c.waiting, ErrClosed)
	c.waiting = nil
	c.mu.Unlock()
	c.running.Wait()
}

func (c *Committer[T]) add(e *entry[T]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.cfg.Full > 0 && len(c.waiting) >= c.cfg.Full:
		return ErrFull
	}
	c.waiting = append(c.waiting, e)
	c.step()
	return nil
}

// remove reports whether e was still waiting.
func (c *Committer[T]) remove(e *entry[T]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, e)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// step starts batches. The lock is held.
func (c *Committer[T]) step() {
	for {
		n, wait := c.pace.Next(len(c.waiting), c.late)
		if n == 0 {
			if due := time.Now().Add(wait); wait > 0 && (c.timer == nil || due.Before(c.due)) {
				if c.timer != nil {
					c.timer.Stop()
				}
				c.timer, c.due = time.AfterFunc(wait, c.overdue), due
			}
			return
		}
		if c.late = false; c.timer != nil { // it was for the items of this batch
			c.timer.Stop()
			c.timer = nil
		}
		some := c.waiting[:n:n]
		if c.waiting = c.waiting[n:]; len(c.waiting) == 0 {
			c.waiting = nil // releases the array
		}
		c.running.Go(func() { c.run(some) })
	}
}

// overdue is called by the timer.
func (c *Committer[T]) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer, c.late = nil, len(c.waiting) > 0
	c.step()
}

// join adds what other goroutines that are ready to run bring now to a batch.
func (c *Committer[T]) join(some []*entry[T]) []*entry[T] {
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.pace.Join(len(c.waiting), len(some))
	some, c.waiting = append(some, c.waiting[:n]...), c.waiting[n:]
	return some
}

// run commits a batch.
func (c *Committer[T]) run(some []*entry[T]) {
	some = c.join(some)
	open, err := some, ErrUnknown // open are not settled yet; Isolate keeps the order
	defer func() {
		c.settle(open, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pace.Ended(len(some))
		c.step()
	}()
	refused := c.cfg.Refused
	if refused == nil {
		refused = func(error) bool { return false }
	}
	err = Isolate(some, refused, func(part []*entry[T]) error {
		err := c.commit(part)
		if err == nil {
			c.settle(part, nil)
			open = open[len(part):]
		}
		return err
	}, func(e *entry[T], cause error) error {
		c.settle([]*entry[T]{e}, cause)
		open = open[1:]
		return nil
	})
}

// settle answers the callers of some.
func (c *Committer[T]) settle(some []*entry[T], err error) {
	for _, e := range some {
		e.err = err
		close(e.done)
	}
}

// commit calls Commit, and turns its panic into an error.
func (c *Committer[T]) commit(part []*entry[T]) (err error) {
	items := make([]T, len(part))
	for i, e := range part {
		items[i] = e.item
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: panic with %d items: %v\n%s", ErrUnknown, len(items), v, debug.Stack())
		}
	}()
	return c.cfg.Commit(items)
}

// Isolate calls do with all items. If do refuses them, Isolate calls it with each half, in
// order, and so on down to single items, so that a faulty item is refused alone and the
// others are done. For each item refused alone it calls alone, whose error counts as do's.
//
// refused reports whether an error of do means that nothing of the part was done and that
// one of its items may be the reason. Isolate stops at any other error and returns it;
// parts before it are done, those after it were not tried. Of n items, one faulty item
// costs at most 1 + 2 log2(n) calls, rounded up.
func Isolate[T any](items []T, refused func(error) bool, do func(part []T) error, alone func(item T, cause error) error) error {
	err := do(items)
	switch {
	case err == nil || !refused(err):
		return err
	case len(items) == 1:
		return alone(items[0], err)
	}
	half := len(items) / 2
	if err := Isolate(items[:half], refused, do, alone); err != nil {
		return err
	}
	return Isolate(items[half:], refused, do, alone)
}
