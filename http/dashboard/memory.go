package dashboard

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// lastKnown keeps the last data of views for a database outage.
type lastKnown struct {
	mu    sync.Mutex
	views map[string]knownView
}

type knownView struct {
	data any
	at   time.Time
}

// maxKnown is how many views are kept. The oldest one is dropped first.
const maxKnown = 64

func newLastKnown() *lastKnown { return &lastKnown{views: map[string]knownView{}} }

// keep keeps data, whose reading began at, unless newer data is kept already.
func (l *lastKnown) keep(key string, data any, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known := l.views[key]
	if was.at.After(at) {
		return
	}
	if !known && len(l.views) >= maxKnown {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(l.views)), func(a, b string) int { return l.views[a].at.Compare(l.views[b].at) })
		delete(l.views, oldest)
	}
	l.views[key] = knownView{data, at}
}

func (l *lastKnown) of(key string) (any, time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.views[key]
	return v.data, v.at, ok
}
