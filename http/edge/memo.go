package edge

import (
	"context"
	"time"
)

// Memo caches a value for a short time. Safe for concurrent use: one caller reads the value,
// while the others wait for it.
type Memo[T any] struct {
	life time.Duration
	turn *Limiter // of one unit, which guards what follows
	at   time.Time
	v    T
}

// NewMemo returns a Memo that keeps a value for life.
func NewMemo[T any](life time.Duration) *Memo[T] {
	return &Memo[T]{life: life, turn: NewLimiter(Limit{Most: 1, Wait: Forever})}
}

// Get returns the value, which it gets from read if it is too old. Errors are not cached.
func (m *Memo[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (v T, err error) {
	err = m.turn.Do(ctx, Share{}, func() (err error) {
		if time.Since(m.at) < m.life {
			v = m.v
			return nil
		}
		if v, err = read(ctx); err == nil {
			m.v, m.at = v, time.Now()
		}
		return err
	})
	return v, err
}
