package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/store"
)

const (
	liveTick = time.Second
	// liveShare sets the pause between two updates of a view: this many times the
	// duration of an update, times the number of open views, but at most maxLivePause.
	// All views together then use about a twentieth of a core.
	liveShare    = 20
	maxLivePause = 10 * time.Second
	// ageEvery is how often a stream without news sends the age of its data, so that
	// a browser notices a controller that hangs.
	ageEvery = 3 * time.Second
	// maxViews is how many views may be open. Each keeps its parts in memory, for any
	// number of viewers.
	maxViews = 256
)

// live holds the views that are open in a browser. One stream of a view makes its
// parts, for all of its viewers.
type live struct {
	mu    sync.Mutex
	views map[string]*liveView
}

func newLive() *live { return &live{views: map[string]*liveView{}} }

// liveView is one open view.
type liveView struct {
	*view
	viewers int // guarded by live.mu

	making sync.Mutex    // held while the parts are made
	begun  time.Time     // when the last update began; guarded by making
	cost   time.Duration // of the last update; guarded by making

	mu      sync.Mutex // written with making held, too
	checked time.Time  // the last update that ended began then
	asof    time.Time  // when reading what the parts show began; zero if nothing was read yet
	version int        // of the last change
	parts   map[string]part
	log     logTail
	added   logEvent // the last one made from log
}

// part is one part of a view: the content of the element with its name.
type part struct {
	sum     [sha256.Size]byte // of the content
	event   []byte            // brings all of the content
	version int
}

// join adds a viewer. It returns nil if too many views are open.
func (l *live) join(v *view) (lv *liveView, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := v.key()
	lv = l.views[key]
	if lv == nil {
		if len(l.views) >= maxViews {
			return nil, nil
		}
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
// because older parts would take its page back. It adds the lines of a log that the browser
// does not have.
func (d *Dashboard) follow(c echo.Context, v *view) error {
	until := time.Unix(sessionOf(c).Expires, 0)
	joined := time.Now()
	read, err := shownLine(c)
	if err != nil {
		return err
	}
	v.tail = &logTail{base: read}
	lv, leave := d.live.join(v)
	if lv == nil {
		return edge.ErrTooManyStreams()
	}
	defer leave()
	return d.server.Stream(c, func(ctx context.Context, st *edge.Stream) error {
		if err := st.Write([]byte("retry: 2000\n\n")); err != nil {
			return err
		}
		tick := time.NewTicker(liveTick)
		defer tick.Stop()
		seen, told, look := 0, time.Time{}, current().version
		for time.Now().Before(until) {
			if changed(look) {
				return st.Write([]byte("event: look\ndata:\n\n"))
			}
			if err := d.refresh(ctx, lv); err != nil {
				return err
			}
			var events [][]byte
			var asof time.Time
			events, asof, seen = lv.news(seen, joined)
			if read, err = lv.addLines(st, read, joined); err != nil {
				return err
			}
			if len(events) > 0 || time.Since(told) >= ageEvery {
				age := int64(-1) // unknown
				if !asof.IsZero() {
					age = time.Since(asof).Milliseconds()
				}
				events, told = append(events, fmt.Appendf(nil, "event: age\ndata: %d\n\n", age)), time.Now()
			}
			for _, e := range events { // shared, because a copy for each viewer costs too much
				if err := st.Write(e); err != nil {
					return err
				}
			}
			if _, ok := st.Wait(nil, tick.C); !ok {
				return nil
			}
		}
		return nil
	})
}

// news returns the parts that changed after version seen, when reading them began, and the
// current version. It returns none before an update that began after joined.
func (lv *liveView) news(seen int, joined time.Time) (events [][]byte, asof time.Time, now int) {
	lv.mu.Lock()
	defer lv.mu.Unlock()
	if lv.checked.Before(joined) {
		return nil, asof, seen
	}
	for _, p := range lv.parts {
		if p.version > seen {
			events = append(events, p.event)
		}
	}
	return events, lv.asof, lv.version
}

// refresh makes a view's parts again, unless another stream does so or has just done
// so.
func (d *Dashboard) refresh(ctx context.Context, lv *liveView) error {
	if !lv.making.TryLock() {
		return nil
	}
	defer lv.making.Unlock()
	begun := time.Now()
	if begun.Sub(lv.begun) < max(liveTick*9/10, min(liveShare*lv.cost*time.Duration(d.live.open()), maxLivePause)) {
		return nil
	}
	unit, err := d.server.Limit(edge.RuleLivePages).Take(ctx, store.Share{}, nil)
	if err != nil {
		return nil // at the next tick
	}
	defer unit.Release()
	s, err := d.screen(ctx, lv.view)
	asof := lv.asof
	switch {
	case err == nil:
		asof = s.Asof
	case ctx.Err() != nil:
		return err
	default:
		s = &screen{View: lv.view, Section: lv.page.section(), Stale: awayText, Asof: asof}
		d.frame(ctx, s, lv.open)
		if !isAway(err) {
			s.Stale = edge.FailureOf(err).Message + "."
		}
	}
	if err := d.makeParts(lv, s); err != nil {
		return err
	}
	lv.begun, lv.cost = begun, time.Since(begun)
	lv.mu.Lock()
	lv.checked, lv.asof, lv.log = begun, asof, *lv.tail
	lv.mu.Unlock()
	return nil
}

// makeParts executes the templates. Without data it executes only the frame's. The caller holds
// making.
func (d *Dashboard) makeParts(lv *liveView, s *screen) error {
	for _, t := range current().pages[lv.page.name].Templates() {
		name := t.Name()
		if !strings.HasPrefix(name, "live-") || s.Page == nil && name != "live-stale" && name != "live-nav" {
			continue
		}
		var b bytes.Buffer
		if err := t.Execute(&b, s); err != nil {
			return err
		}
		was, p := lv.parts[name], part{sum: sha256.Sum256(b.Bytes())}
		if was.version > 0 && was.sum == p.sum {
			continue
		}
		var err error
		if p.event, err = edge.AppendEvent(nil, "", "part", map[string]string{"id": name, "html": b.String()}); err != nil {
			return err
		}
		lv.mu.Lock()
		lv.version++
		p.version = lv.version
		lv.parts[name] = p
		lv.mu.Unlock()
	}
	return nil
}
