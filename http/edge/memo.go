package edge

import (
	"context"
	"sync"
	"time"

	"takt/store/backoff"
)

// memoTimeout is how long the reading of a value may take.
const memoTimeout = 30 * time.Second

// Memo caches a value for a short time. Safe for concurrent use: one caller at a time reads the
// value, while those that need it wait. A reading goes on if that caller's context ends, because
// it is for all of them.
type Memo[T any] struct {
	life time.Duration
	turn *Limiter // of one unit, which the caller that reads holds

	mu    sync.Mutex // guards what follows
	v     T
	at    time.Time // when v was read
	as    time.Time // when that began
	begun time.Time // when the last reading began
}

// NewMemo returns a Memo that keeps a value for life.
func NewMemo[T any](life time.Duration) *Memo[T] {
	return &Memo[T]{life: life, turn: NewLimiter(Limit{Most: 1, Wait: Forever})}
}

// Get returns the value, which it gets from read if it is too old. Errors are not cached.
func (m *Memo[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (v T, err error) {
	return m.get(ctx, read, 0, func() bool { return time.Since(m.at) < m.life })
}

// Since is like Get for a value whose reading began after asked. Unless that is there already,
// it is read when gap has passed since the last reading began.
func (m *Memo[T]) Since(ctx context.Context, asked time.Time, gap time.Duration, read func(context.Context) (T, error)) (v T, err error) {
	return m.get(ctx, read, gap, func() bool { return m.as.After(asked) })
}

func (m *Memo[T]) get(ctx context.Context, read func(context.Context) (T, error), gap time.Duration, good func() bool) (v T, err error) {
	if v, ok := m.known(good); ok {
		return v, nil
	}
	err = m.turn.Do(ctx, Share{}, func() (err error) {
		var ok bool
		if v, ok = m.known(good); ok { // another caller has read it meanwhile
			return nil
		}
		if err = backoff.Pause(ctx, gap-time.Since(m.begun)); err != nil {
			return err
		}
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), memoTimeout)
		defer cancel()
		v, err = read(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.begun = begun; err == nil {
			m.v, m.at, m.as = v, time.Now(), begun
		}
		return err
	})
	return v, err
}

func (m *Memo[T]) known(good func() bool) (v T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.at.IsZero() && good() {
		return m.v, true
	}
	return v, false
}
