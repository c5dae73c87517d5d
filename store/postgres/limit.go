package postgres

import (
	"sync"
	"time"
)

const (
	// limitMargin is how near to the queue limit submissions start to count.
	limitMargin = 64
	// hintAge is how long a count may be used by submissions that do not count.
	hintAge = 2 * time.Second
)

// pendingHint is an upper bound of the number of pending builds as far as this
// controller knows: a count of the table plus its own submissions since. Claims
// don't lower it, so it errs on the side of counting again. Safe for concurrent
// use; the zero value knows nothing.
type pendingHint struct {
	// adding is shared by submissions that don't count and held alone by one that
	// does, which therefore sees all that were reserved.
	adding sync.RWMutex

	mu    sync.Mutex // guards what follows
	n     int
	at    time.Time // of the count; zero if unknown
	clock func() time.Time
}

// reserve makes room for one build if the hint is fresh and says that limit is far
// away. Then release has to follow.
func (h *pendingHint) reserve(limit int) bool {
	h.adding.RLock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() || h.now().Sub(h.at) > hintAge || h.n+limitMargin > limit {
		h.adding.RUnlock()
		return false
	}
	h.n++
	return true
}

// release ends what reserve began; used is false if the build was not inserted.
func (h *pendingHint) release(used bool) {
	h.mu.Lock()
	if !used {
		h.n--
	}
	h.mu.Unlock()
	h.adding.RUnlock()
}

// counted says that n builds are pending now.
func (h *pendingHint) counted(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n, h.at = n, h.now()
}

// forget makes the next submission count, as builds came back to the queue.
func (h *pendingHint) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = time.Time{}
}

func (h *pendingHint) now() time.Time {
	if h.clock != nil {
		return h.clock()
	}
	return time.Now()
}
