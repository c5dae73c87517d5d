package postgres

import (
	"sync"
	"time"
)

const (
	// limitMargin is the distance to the queue limit below which submissions count.
	limitMargin = 64
	// hintAge is how long submissions may use a count of an earlier one.
	hintAge = 2 * time.Second
)

// pendingHint is an upper bound of the number of pending builds as far as this
// controller knows: a count of the table plus its own submissions since. Claims don't
// lower it, so it causes too many counts rather than too few. Safe for concurrent use;
// the zero value knows nothing.
type pendingHint struct {
	// adding is held shared by submissions that don't count and exclusively by one that
	// counts, which therefore sees every reserved build.
	adding sync.RWMutex

	mu sync.Mutex // guards what follows
	n  int
	at time.Time // of the count; zero if unknown
}

// reserve reserves room for n builds if the hint is fresh and the limit is far away. If
// it returns true, release must follow.
func (h *pendingHint) reserve(n, limit int) bool {
	h.adding.RLock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() || time.Since(h.at) > hintAge || h.n+n+limitMargin > limit {
		h.adding.RUnlock()
		return false
	}
	h.n += n
	return true
}

// release ends what reserve began; used is false if the builds were not inserted.
func (h *pendingHint) release(n int, used bool) {
	h.mu.Lock()
	if !used {
		h.n -= n
	}
	h.mu.Unlock()
	h.adding.RUnlock()
}

// counted records that n builds are pending now.
func (h *pendingHint) counted(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n, h.at = n, time.Now()
}

// forget makes the next submission count, because builds are pending again.
func (h *pendingHint) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = time.Time{}
}
