package forge

import (
	"context"
	"sync"
	"time"
)

// budget is what one credential may do. Accounts share it.
type budget struct {
	mu      sync.Mutex // guards what follows
	creates window
	line    []chan struct{} // those who wait to create, first come, first served
	// closed is until when the forge wants no call at all; strikes counts the
	// limits in a row that did not say how long.
	closed  time.Time
	strikes int
}

// open waits for the forge to want calls. It tells notice before it waits.
func (b *budget) open(ctx context.Context, notice func(until time.Time)) error {
	for {
		b.mu.Lock()
		until := b.closed
		b.mu.Unlock()
		left := time.Until(until)
		if left <= 0 {
			return context.Cause(ctx)
		}
		notice(until)
		if err := sleep(ctx, left); err != nil {
			return err
		}
	}
}

// enter waits for its turn to create something. done is called with the answer.
func (b *budget) enter(ctx context.Context, notice func(until time.Time)) (done func(), err error) {
	woken := make(chan struct{}, 1)
	b.mu.Lock()
	b.line = append(b.line, woken)
	b.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		u, next := b.try(woken)
		if u != nil {
			return func() { b.answered(u) }, nil
		}
		if next.IsZero() {
			next = time.Now().Add(lineWait) // somebody's answer wakes us earlier
		}
		notice(next)
		timer.Reset(time.Until(next))
		select {
		case <-woken:
		case <-timer.C:
		case <-ctx.Done():
			b.leave(woken)
			return nil, context.Cause(ctx)
		}
	}
}

// lineWait is how long one waits in line before looking again.
const lineWait = 10 * time.Second

// try begins a call if it is our turn and the limits allow it.
func (b *budget) try(woken chan struct{}) (u *use, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line[0] != woken {
		return nil, time.Time{}
	}
	ok, next := b.creates.free(time.Now())
	if !ok {
		return nil, next
	}
	b.line = b.line[1:]
	u = b.creates.begin()
	b.wakeLocked()
	return u, time.Time{}
}

// answered says that a call was answered, or given up.
func (b *budget) answered(u *use) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u.answered = time.Now()
	b.wakeLocked()
}

// leave gives up a place in line.
func (b *budget) leave(woken chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.line {
		if other == woken {
			b.line = append(b.line[:i:i], b.line[i+1:]...)
			break
		}
	}
	b.wakeLocked()
}

// wakeLocked lets the first in line look again.
func (b *budget) wakeLocked() {
	if len(b.line) == 0 {
		return
	}
	select {
	case b.line[0] <- struct{}{}:
	default: // it is to look already
	}
}

// strike closes the forge until a time, or for longer and longer if the forge
// did not say.
func (b *budget) strike(until time.Time, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until.IsZero() {
		until = time.Now().Add(wait << min(b.strikes, 4))
		b.strikes++
	}
	if until.After(b.closed) {
		b.closed = until
	}
}

// calm says that the forge answers again.
func (b *budget) calm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strikes = 0
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
