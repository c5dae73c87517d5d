package queue

import (
	"container/list"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"takt/store"
)

// pending is an estimate of how many builds of each class are pending. It may be wrong at
// any moment; batches that find no build and the regular count correct it. Actor only, except
// for the atomic fields, which any goroutine may read.
type pending struct {
	// classes are the plain classes of ios and android, and those with pending builds now or
	// since the last count. The slice is replaced when it changes, because readers of shown
	// may have it.
	classes []*class
	// undefined has the numbers of classes of which only the number is known. The next count
	// finds the rest.
	undefined map[int32]bool
	// counted is when the last count was taken; zero if there is none.
	counted time.Time
	shown   *atomic.Pointer[[]*class] // classes, for other goroutines
	// found is the last count itself. Unlike shown, which is rather too high than too low, it
	// was exact when it was taken.
	found *atomic.Pointer[store.QueueCount]
	// changes is QueueCount.Changes.
	changes *atomic.Uint64
}

// class is a class of work. Actor only, except for store.Class and shown.
type class struct {
	store.Class              // immutable
	n           int          // the estimate
	shown       atomic.Int64 // n, for other goroutines; batches lower it first
	// news counts the builds that became pending as far as this controller learned. Those
	// counted after a read of the database began may be missing from its result.
	news uint64
	// echoes is how many notifications of this controller's own submissions are still to
	// come. They are ignored, so that no build is counted twice.
	echoes int
	// doubt is true if the class should be counted again soon.
	doubt bool
	// woken is how many polls were woken for a build of the class and still fetch it.
	woken int
}

// seen is class.news of each class at one moment.
type seen map[*class]uint64

// maxAge is the greatest age of a count that may decide a poll.
const maxAge = 5 * time.Second

// begin takes over the classes and numbers that the actor showed before its restart.
func (h *pending) begin() {
	var before []*class
	if shown := h.shown.Load(); shown != nil {
		before = *shown
	}
	for _, c := range before {
		h.add(c.Class).set(int(c.shown.Load()))
	}
	h.add(store.Class{ID: store.IOSClass, Platform: store.IOS})
	h.add(store.Class{ID: store.AndroidClass, Platform: store.Android})
}

// known returns the class with this number; nil if it is not known.
func (h *pending) known(id int32) *class {
	for _, c := range h.classes {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// add returns a class, which it adds if it is not known.
func (h *pending) add(is store.Class) *class {
	c := h.known(is.ID)
	if c == nil {
		c = &class{Class: is}
		h.classes = append(slices.Clip(h.classes), c)
		h.show()
	}
	return c
}

func (h *pending) show() {
	classes := h.classes
	h.shown.Store(&classes)
}

// ids returns the numbers of the classes to be counted.
func (h *pending) ids() []int32 {
	ids := slices.Collect(maps.Keys(h.undefined))
	for _, c := range h.classes {
		ids = append(ids, c.ID)
	}
	return ids
}

func (h *pending) seen() seen {
	s := make(seen, len(h.classes))
	for _, c := range h.classes {
		s[c] = c.news
	}
	return s
}

// unknown reports whether the last count is too old to conclude that nothing is pending.
func (h *pending) unknown(now time.Time) bool { return now.Sub(h.counted) > maxAge }

// of estimates how many pending builds workers of p can take.
func (h *pending) of(p *profile) (n int) {
	for _, c := range h.classes {
		if c.n > 0 && p.takes(c) {
			n += c.n
		}
	}
	return n
}

// total estimates how many builds are pending.
func (h *pending) total() (n int) {
	for _, c := range h.classes {
		n += c.n
	}
	return n
}

func (c *class) set(n int) {
	c.n = max(n, 0)
	c.shown.Store(int64(c.n))
}

// enqueued records builds that this controller made pending.
func (h *pending) enqueued(c *class, n int) {
	c.echoes += n
	h.appeared(c, n)
}

// notified records another controller's notification of a pending build. argument names the
// class; without it all classes may be concerned.
func (h *pending) notified(argument string) {
	id := store.ClassOfEvent(argument).ID
	if argument != "" && h.known(id) == nil {
		h.noteUndefined(id)
		return
	}
	for _, c := range h.classes {
		switch {
		case argument != "" && c.ID != id:
		case c.echoes > 0:
			c.echoes--
		default:
			h.appeared(c, 1)
		}
	}
}

// noteUndefined records that builds of a class are pending of which only the number is known.
func (h *pending) noteUndefined(id int32) {
	if h.undefined == nil {
		h.undefined = map[int32]bool{}
	}
	h.undefined[id] = true
	h.changes.Add(1)
}

func (h *pending) appeared(c *class, n int) {
	c.news += uint64(n)
	h.changes.Add(1)
	c.set(c.n + n)
}

// claimed records that a build was handed out. If none was believed to be pending, there may
// be more, so the count is in doubt.
func (h *pending) claimed(id int32) {
	switch c := h.known(id); {
	case c == nil:
		h.noteUndefined(id)
	case c.n == 0:
		c.doubt = true
	default:
		c.set(c.n - 1)
	}
}

// foundNone records that a batch found no build of c for a worker with a free slot. seen is
// c.news when the batch was made. The count is in doubt if builds were believed to be pending,
// or if another batch was running, because that may have locked builds without taking them.
func (c *class) foundNone(seen uint64, crowded bool) {
	left := int(c.news - seen)
	c.doubt = crowded || c.n > left
	c.set(left)
}

// recount stores a count of the database that began at seen and that stopped at limit for
// each class. It forgets classes without builds.
func (h *pending) recount(count []store.ClassCount, seen seen, limit int, now time.Time) {
	h.counted, h.undefined = now, nil
	found := &store.QueueCount{At: now, Classes: len(count), Pending: map[store.Platform]int{store.IOS: 0, store.Android: 0}}
	counts := make(map[int32]int, len(count))
	for _, c := range count {
		counts[c.ID] = c.N
		h.add(c.Class)
	}
	known := len(h.classes)
	h.classes = slices.DeleteFunc(slices.Clone(h.classes), func(c *class) bool {
		c.echoes, c.doubt = 0, false
		n := counts[c.ID]
		if n >= limit {
			n = max(n, c.n)
		}
		found.Pending[c.Platform] += n
		c.set(n + int(c.news-seen[c]))
		return c.n == 0 && c.woken == 0 && store.PlainClass(c.Platform) != c.ID
	})
	if len(h.classes) != known {
		h.show()
	}
	h.found.Store(found)
}

// profile is shared by the sessions of workers that can take the same builds. Actor only.
type profile struct {
	platforms []store.Platform
	labels    store.Labels
	can       map[int32]bool // caches the results of takes, by the number of the class
	parked    list.List      // parked polls of workers with a free slot, the oldest first
}

// takes reports whether workers of p can take builds of c. Those of a nil profile can't.
func (p *profile) takes(c *class) bool {
	if p == nil {
		return false
	}
	can, known := p.can[c.ID]
	if !known {
		if len(p.can) > 2*store.MaxClasses {
			clear(p.can)
		}
		can = c.TakenBy(p.platforms, p.labels)
		p.can[c.ID] = can
	}
	return can
}

// profileOf returns the profile for the current platforms and labels of s.
func (m *memory) profileOf(s *session) *profile {
	if p := s.profile; p != nil && slices.Equal(p.platforms, s.Platforms) && maps.Equal(p.labels, s.Labels) {
		return p
	}
	for p := range m.profiles {
		if slices.Equal(p.platforms, s.Platforms) && maps.Equal(p.labels, s.Labels) {
			return p
		}
	}
	p := &profile{platforms: s.Platforms, labels: s.Labels, can: map[int32]bool{}}
	m.profiles[p] = struct{}{}
	return p
}

// dropProfiles forgets profiles that no session has.
func (m *memory) dropProfiles() {
	used := make(map[*profile]bool, len(m.profiles))
	for _, s := range m.byNumber {
		used[s.profile] = true
	}
	maps.DeleteFunc(m.profiles, func(p *profile, _ struct{}) bool { return !used[p] && p.parked.Len() == 0 })
}
