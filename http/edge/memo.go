package edge

import (
	"context"
	"sync"
	"time"
)

// Memo caches a value for a short time, shared by all callers.
type Memo[T any] struct {
	Life time.Duration

	mu sync.Mutex
	at time.Time
	v  T
}

// Get returns the value, which read reads if it is older than Life.
func (m *Memo[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) < m.Life {
		return m.v, nil
	}
	v, err := read(ctx)
	if err == nil {
		m.v, m.at = v, time.Now()
	}
	return v, err
}
