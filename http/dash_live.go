package http

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

const (
	liveTick = time.Second
	// liveShare sets the pause between two updates of a view: this many times the
	// duration of an update, times the number of open views, but at most maxLivePause.
	// All views together then use about a twentieth of a core.
	liveShare    = 20
	maxLivePause = 10 * time.Second
	// livePlaces is how many views are read at once, because they share the database
	// with the work.
	livePlaces = 4
)

// live holds the views that are open in a browser. One stream of a view makes its
// parts, for all of its viewers.
type live struct {
	mu     sync.Mutex
	views  map[string]*liveView
	places chan struct{}
}

func newLive() *live {
	return &live{views: map[string]*liveView{}, places: make(chan struct{}, livePlaces)}
}

// liveView is one open view.
type liveView struct {
	*view
	viewers int // guarded by live.mu

	making sync.Mutex    // held while the parts are made
	begun  time.Time     // when the last update began; guarded by making
	cost   time.Duration // of the last update; guarded by making
	asof   time.Time     // when reading what the parts show began; guarded by making

	mu      sync.Mutex
	checked time.Time // the last update that ended began then
	version int       // of the last change
	parts   map[string]part
}

// part is one part of a view: the content of the element with its name.
type part struct {
	html    []byte
	event   []byte
	version int
}

// join adds a viewer.
func (l *live) join(v *view) (lv *liveView, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := v.key()
	lv = l.views[key]
	if lv == nil {
		lv = &liveView{view: v, parts: map[string]part{}}
		l.views[key] = lv
	}
	lv.viewers++
	return lv, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if lv.viewers--; lv.viewers == 0 {
			delete(l.views, key)
		}
	}
}

func (l *live) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.views)
}

// follow streams the changed parts of a view: the templates whose names begin with
// "live-". It begins with all of them, so that a browser that reconnects, also to another
// controller, misses nothing; and with an update that began after the browser asked,
// because older parts would take its page back.
func (d *dashboard) follow(c echo.Context, v *view) error {
	until := time.Unix(sessionOf(c).Expires, 0)
	joined := time.Now()
	lv, leave := d.live.join(v)
	defer leave()
	return d.stream(c, func(ctx context.Context, st *stream) error {
		if err := st.write([]byte("retry: 2000\n\n")); err != nil {
			return err
		}
		tick := time.NewTicker(liveTick)
		defer tick.Stop()
		seen := 0
		for time.Now().Before(until) {
			if err := d.refresh(ctx, lv); err != nil {
				return err
			}
			var events [][]byte
			events, seen = lv.news(seen, joined)
			for _, e := range events { // shared, because a copy for each viewer costs too much
				if err := st.write(e); err != nil {
					return err
				}
			}
			if _, ok := st.wait(nil, tick.C); !ok {
				return nil
			}
		}
		return nil
	})
}

// news returns the parts that changed after version seen, and the current version. It
// returns none before an update that began after joined.
func (lv *liveView) news(seen int, joined time.Time) (events [][]byte, now int) {
	lv.mu.Lock()
	defer lv.mu.Unlock()
	if lv.checked.Before(joined) {
		return nil, seen
	}
	for _, p := range lv.parts {
		if p.version > seen {
			events = append(events, p.event)
		}
	}
	return events, lv.version
}

// refresh makes a view's parts again, unless another stream does so or has just done
// so.
func (d *dashboard) refresh(ctx context.Context, lv *liveView) error {
	if !lv.making.TryLock() {
		return nil
	}
	defer lv.making.Unlock()
	begun := time.Now()
	if begun.Sub(lv.begun) < max(liveTick*9/10, min(liveShare*lv.cost*time.Duration(d.live.open()), maxLivePause)) {
		return nil
	}
	select {
	case d.live.places <- struct{}{}:
		defer func() { <-d.live.places }()
	default:
		return nil // at the next tick
	}
	s, err := d.screen(ctx, lv.view)
	switch {
	case err == nil:
		lv.asof = s.Asof
	case ctx.Err() != nil:
		return err
	case isAway(err):
		s = &screen{View: lv.view, Stale: awayText, Asof: lv.asof}
	default:
		s = &screen{View: lv.view, Stale: failureOf(err).Message + ".", Asof: lv.asof}
	}
	if err := d.makeParts(lv, s, err == nil); err != nil {
		return err
	}
	lv.begun, lv.cost = begun, time.Since(begun)
	lv.mu.Lock()
	lv.checked = begun
	lv.mu.Unlock()
	return nil
}

// makeParts executes the templates. Without data it executes only the frame's.
func (d *dashboard) makeParts(lv *liveView, s *screen, data bool) error {
	for _, t := range d.templates[lv.page.name].Templates() {
		name := t.Name()
		if !strings.HasPrefix(name, "live-") || !data && name != "live-stale" {
			continue
		}
		var b bytes.Buffer
		if err := t.Execute(&b, s); err != nil {
			return err
		}
		lv.mu.Lock()
		was := lv.parts[name]
		lv.mu.Unlock()
		if was.version > 0 && bytes.Equal(was.html, b.Bytes()) {
			continue
		}
		event, err := appendEvent(nil, "", "part", map[string]string{"id": name, "html": b.String()})
		if err != nil {
			return err
		}
		lv.mu.Lock()
		lv.version++
		lv.parts[name] = part{b.Bytes(), event, lv.version}
		lv.mu.Unlock()
	}
	return nil
}
