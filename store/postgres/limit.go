package postgres

import (
	"sync"
	"time"
)

const (
	// limitMargin is how many builds below the queue limit submissions begin to count the
	// pending builds in the table.
	limitMargin = 64
	// hintAge is how old a count may be for a submission to rely on it.
	hintAge = 2 * time.Second
)

// pendingHint is an upper bound of the number of pending builds, but for what other
// controllers submit: the last count of the table plus this controller's submissions since.
// Assigned builds don't lower it, so it causes too many counts rather than too few. Safe for
// concurrent use; the zero value has no count.
type pendingHint struct {
	// adding is held shared by submissions that don't count, and exclusively by one that
	// counts, so that its count includes every reserved build.
	adding sync.RWMutex

	mu sync.Mutex // guards what follows
	n  int
	at time.Time // of the count; zero if unknown
}

// reserve reserves room for n builds if the hint is recent and the limit far away. If it
// returns true, the caller must call release.
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

// forget makes the next submission count the table.
func (h *pendingHint) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = time.Time{}
}
