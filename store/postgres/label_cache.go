package postgres

import (
	"encoding/json"
	"sync"

	"takt/store"
)

// maxLabels is how many sets of labels are remembered.
const maxLabels = 256

// labelCache remembers the labels of workers by their JSON, because each assignment reads them,
// and workers of one fleet have few different ones. Safe for concurrent use; the zero value is
// ready.
type labelCache struct {
	mu    sync.Mutex // guards what follows
	known map[string]store.Labels
}

// decode returns the labels that text says, which nobody may change.
func (c *labelCache) decode(text []byte) (l store.Labels, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.known[string(text)]
	if ok {
		return l, nil
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, err
	}
	if c.known == nil || len(c.known) >= maxLabels {
		c.known = map[string]store.Labels{}
	}
	c.known[string(text)] = l
	return l, nil
}

// cachedLabels scans labels from a column.
type cachedLabels struct {
	to    *store.Labels
	cache *labelCache
}

// ScanBytes implements pgtype.BytesScanner.
func (c cachedLabels) ScanBytes(text []byte) (err error) {
	*c.to, err = c.cache.decode(text)
	return err
}
