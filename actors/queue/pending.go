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
	// echoes are the notifications that are still to come of what this controller made pending, by
	// the PostgreSQL process that sends them. They are ignored, so that no build is counted twice.
	// Those that came first are negative. Those of builds that are pending again have no process;
	// the next notification is taken for theirs.
	echoes map[uint32]int
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

// enqueued records builds that this controller made pending, of which sender notifies.
func (h *pending) enqueued(c *class, n int, sender uint32) {
	before := c.echo(sender, n)
	if sender == 0 { // which is not known
		before = 0
	}
	h.appeared(c, max(before+n, 0)-max(before, 0))
}

// echo adds n to a sender's echoes, and returns how many they were.
func (c *class) echo(sender uint32, n int) (before int) {
	if c.echoes == nil {
		c.echoes = map[uint32]int{}
	}
	before = c.echoes[sender]
	if c.echoes[sender] += n; c.echoes[sender] == 0 {
		delete(c.echoes, sender)
	}
	return before
}

// notified records a notification of a pending build, which another controller or an own
// submission sent. argument names the class; without it all classes may be concerned.
func (h *pending) notified(argument string, sender uint32) {
	id := store.ClassOfEvent(argument).ID
	if argument != "" && h.known(id) == nil {
		h.noteUndefined(id)
		return
	}
	for _, c := range h.classes {
		switch {
		case argument != "" && c.ID != id:
		case c.echoes[sender] <= 0 && c.echoes[0] > 0: // of a sender that was not known
			c.echo(0, -1)
		case c.echo(sender, -1) <= 0:
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

// recount stores a count of the database that began at seen and that stopped above the queue limit
// for each class. It forgets classes without builds.
func (h *pending) recount(r store.Recount, seen seen, limit int, now time.Time) {
	h.counted, h.undefined = now, nil
	found := &store.QueueCount{At: now, Classes: len(r.Pending), Pending: map[store.Platform]int{store.IOS: 0, store.Android: 0}, Room: r.Room(limit)}
	counts := make(map[int32]int, len(r.Pending))
	for _, c := range r.Pending {
		counts[c.ID] = c.N
		h.add(c.Class)
	}
	for p, n := range r.Delayed { // which wait for their retry, and nobody can take yet
		found.Pending[p] += n
	}
	known := len(h.classes)
	h.classes = slices.DeleteFunc(slices.Clone(h.classes), func(c *class) bool {
		c.echoes, c.doubt = nil, false
		n := counts[c.ID]
		if n > limit {
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

const (
	// warmFor is how long a worker is preferred for its cache.
	warmFor = 24 * time.Hour
	// maxWarm is how many workers are remembered; one more replaces an arbitrary one.
	maxWarm = 20_000
	// maxAsked is how many warm workers are checked for one build.
	maxAsked = 64
)

// caches remembers the cache label of the last build that each worker finished. It is only
// a hint: no build waits for a worker because of it.
type caches struct {
	workers map[string]warm                // by worker id
	labels  map[string]map[string]struct{} // worker ids by label
}

type warm struct {
	label string
	at    time.Time
}

func newCaches() caches {
	return caches{workers: map[string]warm{}, labels: map[string]map[string]struct{}{}}
}

// finished records that worker has a warm cache for label.
func (c *caches) finished(worker, label string, now time.Time) {
	c.forget(worker)
	if len(c.workers) >= maxWarm {
		for someone := range c.workers {
			c.forget(someone)
			break
		}
	}
	c.workers[worker] = warm{label: label, at: now}
	if c.labels[label] == nil {
		c.labels[label] = map[string]struct{}{}
	}
	c.labels[label][worker] = struct{}{}
}

func (c *caches) forget(worker string) {
	known, ok := c.workers[worker]
	if !ok {
		return
	}
	delete(c.workers, worker)
	delete(c.labels[known.label], worker)
	if len(c.labels[known.label]) == 0 {
		delete(c.labels, known.label)
	}
}

// has reports whether worker has a warm cache for label. It removes an entry that is too
// old.
func (c *caches) has(worker, label string, now time.Time) bool {
	known, ok := c.workers[worker]
	if ok && now.Sub(known.at) > warmFor {
		c.forget(worker)
		return false
	}
	return ok && known.label == label
}

// warm returns the oldest parked poll of a worker that has a warm cache for label, can take
// a build of c and is not the worker not; nil if there is none.
func (m *memory) warm(c *class, label, not string, now time.Time) (found *poll) {
	asked := 0
	for worker := range m.caches.labels[label] {
		if asked++; asked > maxAsked {
			break
		}
		s := m.byID[worker]
		if worker == not || s == nil || s.next == nil || s.next.state != parked || !s.next.takes.takes(c) {
			continue
		}
		if m.caches.has(worker, label, now) && (found == nil || s.next.no < found.no) {
			found = s.next
		}
	}
	return found
}
