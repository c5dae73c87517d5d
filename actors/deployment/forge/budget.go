package forge

import (
	"context"
	"sync"
	"time"

	"takt/store/backoff"
)

// budget is what one credential may do. Its accounts share it.
type budget struct {
	// turn holds one token. The goroutine that has taken it may create next. A channel
	// serves its receivers in order.
	turn chan struct{}
	// freed signals the goroutine with the token that a creation was answered.
	freed chan struct{}

	mu      sync.Mutex // guards what follows
	creates window
	// closed is until when the forge allows no calls. strikes counts the limits in a row
	// without a time.
	closed  time.Time
	strikes int
}

func newBudget(limits []Limit) *budget {
	b := &budget{turn: make(chan struct{}, 1), freed: make(chan struct{}, 1), creates: window{limits: limits}}
	b.turn <- struct{}{}
	return b
}

// open waits until the forge allows calls.
func (b *budget) open(ctx context.Context) error {
	for {
		b.mu.Lock()
		until := b.closed
		b.mu.Unlock()
		if !until.After(time.Now()) {
			return context.Cause(ctx)
		}
		if err := wait(ctx, nil, until); err != nil {
			return err
		}
	}
}

// enter waits until this goroutine may create something. The caller calls done after the
// answer.
func (b *budget) enter(ctx context.Context) (done func(), err error) {
	notice(ctx, time.Now().Add(longestPause))
	select {
	case <-b.turn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { b.turn <- struct{}{} }()
	for {
		b.mu.Lock()
		u, next := b.creates.begin(time.Now())
		b.mu.Unlock()
		if u != nil {
			return func() { b.answered(u) }, nil
		}
		if next.IsZero() {
			next = time.Now().Add(longestPause)
		}
		if err := wait(ctx, b.freed, next); err != nil {
			return nil, err
		}
	}
}

// answered records that a call was answered or abandoned.
func (b *budget) answered(u *use) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u.answered = time.Now()
	select {
	case b.freed <- struct{}{}:
	default: // a notice is already waiting
	}
}

// strike closes the forge until a time. If the forge gave no time, each further strike
// closes it for longer.
func (b *budget) strike(until time.Time, pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until.IsZero() {
		until = time.Now().Add(pause << min(b.strikes, 4))
		b.strikes++
	}
	if until.After(b.closed) {
		b.closed = until
	}
}

// calm records that the forge answers again.
func (b *budget) calm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strikes = 0
}

// wait waits until a time or until early gets a value. Before that it calls the context's
// notice. It returns an error if ctx ends.
func wait(ctx context.Context, early <-chan struct{}, until time.Time) error {
	notice(ctx, until)
	return backoff.PauseUntil(ctx, time.Until(until), early)
}

type noticeKey struct{}

// WithNotice sets a function that is called before every step that may take long. until
// is how long the goroutine with this context may be silent. f must be quick.
func WithNotice(ctx context.Context, f func(until time.Time)) context.Context {
	return context.WithValue(ctx, noticeKey{}, f)
}

func notice(ctx context.Context, until time.Time) {
	if f, ok := ctx.Value(noticeKey{}).(func(time.Time)); ok {
		f(until)
	}
}
