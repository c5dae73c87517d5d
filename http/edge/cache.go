package edge

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"takt/store/backoff"
)

const (
	// cacheTimeout is how long the reading of a value may take.
	cacheTimeout = 30 * time.Second
	// cacheSlow is from when on a reading takes so long that nobody should wait for it.
	cacheSlow = 50 * time.Millisecond
	// cacheRest is how many times as long as the last reading took Since waits before the next,
	// but at most cacheMaxRest.
	cacheRest    = 10
	cacheMaxRest = 3 * time.Second
)

// Cache keeps a value for a short time. Safe for concurrent use: the value is read once at a
// time, for all who need it. A reading does not end with the context of the caller for whom it
// began.
type Cache[T any] struct {
	life time.Duration

	mu      sync.Mutex // guards what follows
	v       T
	at      time.Time     // when v was read
	as      time.Time     // when that began
	begun   time.Time     // when the last reading began
	took    time.Duration // how long the last reading took
	reading chan struct{} // closed when the reading that is under way ends; nil if there is none
	err     error         // of the last reading
}

// NewCache returns a Cache that keeps a value for life.
func NewCache[T any](life time.Duration) *Cache[T] { return &Cache[T]{life: life} }

// Get returns the value, which it gets from read if it is too old. If reading it takes long, the
// one before is returned meanwhile, up to the age of twice its life. Errors are not cached.
func (m *Cache[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (v T, err error) {
	return m.get(ctx, read, 0, func() (good, usable bool) {
		age := time.Since(m.at)
		return age < m.life, m.took > cacheSlow && age < 2*m.life
	})
}

// Since is like Get for a value whose reading began after asked. Unless that is there already,
// it is read when gap has passed since the last reading began, and longer if that took long.
func (m *Cache[T]) Since(ctx context.Context, asked time.Time, gap time.Duration, read func(context.Context) (T, error)) (v T, err error) {
	return m.get(ctx, read, gap, func() (good, usable bool) { return m.as.After(asked), false })
}

func (m *Cache[T]) get(ctx context.Context, read func(context.Context) (T, error), gap time.Duration, judge func() (good, usable bool)) (none T, err error) {
	for {
		m.mu.Lock()
		good, usable := judge()
		if m.at.IsZero() {
			good, usable = false, false
		}
		if !good && m.reading == nil {
			m.reading = make(chan struct{})
			if gap > 0 {
				gap = max(gap, min(cacheRest*m.took, cacheMaxRest))
			}
			pause := gap - time.Since(m.begun)
			detach(ctx, func() { m.read(ctx, read, pause) })
		}
		v, reading := m.v, m.reading
		m.mu.Unlock()
		if good || usable {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return none, context.Cause(ctx)
		case <-reading:
		}
		m.mu.Lock()
		err := m.err
		m.mu.Unlock()
		if err != nil {
			return none, err
		}
	}
}

// read reads the value after a pause.
func (m *Cache[T]) read(ctx context.Context, read func(context.Context) (T, error), pause time.Duration) {
	ctx = context.WithoutCancel(ctx)
	_ = backoff.Pause(Stopping(ctx), pause) // no longer when the server ends
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	v, err := recovered(ctx, read)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun, m.err, m.took = begun, err, time.Since(begun)
	if err == nil {
		m.v, m.at, m.as = v, time.Now(), begun
	}
	close(m.reading)
	m.reading = nil
}

// detachedKey is the context key of the [detached] of a request's server.
type detachedKey struct{}

// detached is what runs on after the request that began it. Safe for concurrent use.
type detached struct {
	mu   sync.Mutex // guards what follows
	n    int
	idle chan struct{} // closed when nothing runs any more; nil while nobody waits
}

// detach runs f in a goroutine, for which the server of the request that ctx belongs to waits
// before it ends.
func detach(ctx context.Context, f func()) {
	d, _ := ctx.Value(detachedKey{}).(*detached)
	if d == nil { // no request
		d = &detached{}
	}
	d.mu.Lock()
	d.n++
	d.mu.Unlock()
	go func() {
		defer d.ended()
		f()
	}()
}

func (d *detached) ended() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n--; d.n == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// wait returns when nothing runs.
func (d *detached) wait() {
	d.mu.Lock()
	if d.n == 0 {
		d.mu.Unlock()
		return
	}
	if d.idle == nil {
		d.idle = make(chan struct{})
	}
	idle := d.idle
	d.mu.Unlock()
	<-idle
}

// recovered returns a panic of read as an error, because it would end the process here.
func recovered[T any](ctx context.Context, read func(context.Context) (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return read(ctx)
}
