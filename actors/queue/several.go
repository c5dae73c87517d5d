package queue

import (
	"slices"
	"time"

	"takt/store"
)

const (
	// elsewhereEvery is how often polls at other controllers are read, while workers here ask for
	// several builds: their rows are not much newer.
	elsewhereEvery = 10 * time.Second
	// severalFor is for how long after such a poll they are read.
	severalFor = 2 * time.Minute
	// maxElsewhere is how many different workers with polls elsewhere are remembered.
	maxElsewhere = 64
)

// several decides which polls may get more than one build: none of a class is given as a second
// one while another poll waits for the class. Actor only.
type several struct {
	// last is when a worker asked for several builds.
	last time.Time
	// unsure is true if the polls elsewhere are not known and should be read soon.
	unsure bool
	// elsewhere is what workers can take whose polls are parked at other controllers. It is valid
	// if known; read is when the reading of it began.
	elsewhere []store.WorkerSession
	known     bool
	read      time.Time
}

// asked records that p arrived.
func (v *several) asked(p *poll, now time.Time) {
	if p.req.Max > 1 {
		v.last, v.unsure = now, !v.known && now.Sub(v.read) >= elsewhereEvery
	}
}

// here returns the workers that poll here, if the polls at other controllers should be read now;
// nil if not.
func (m *memory) here(now time.Time) []uint32 {
	switch v := &m.several; {
	case now.Sub(v.last) > severalFor:
		v.known = false
		return nil
	case now.Sub(v.read) < elsewhereEvery:
		return nil
	}
	here := make([]uint32, 0, len(m.byNumber))
	for number, s := range m.byNumber {
		if !s.elsewhere {
			here = append(here, number)
		}
	}
	return here
}

// learnElsewhere stores what was read of the polls at other controllers.
func (m *memory) learnElsewhere(r recounted) {
	if r.here != nil {
		m.several.unsure, m.several.read, m.several.elsewhere = false, r.at, r.elsewhere
		m.several.known = r.elsewhereErr == nil && len(r.elsewhere) <= maxElsewhere
	}
}

// allowMore says how many new builds each poll of a new batch may get, and of which classes. The
// polls wait in no list any more.
func (m *memory) allowMore(b *batch) {
	var spare []int32
	for i, p := range b.polls {
		if p.req.Max < 2 || !m.several.known || m.waiting.Len() > 0 {
			continue
		}
		if spare == nil {
			spare = m.spare()
		}
		w, n := &b.work[i], 0
		for _, c := range m.pending.classes {
			switch {
			case c.n == 0 || !p.session.profile.takes(c):
			case slices.Contains(spare, c.ID):
				n += c.n
			default: // the next builds may be those for which another poll waits
				n = -store.DefaultQueueLimit
			}
		}
		if w.New = min(n, p.req.Max); w.New > 1 {
			w.Spare = spare
		}
	}
}

// spare returns the classes for which no poll waits or is parked.
func (m *memory) spare() []int32 {
	ids := make([]int32, 0, len(m.pending.classes))
	for _, c := range m.pending.classes {
		if !m.awaited(c) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// awaited reports whether a poll waits for a build of c: in a batch, for its worker's row, parked,
// or at another controller.
func (m *memory) awaited(c *class) bool {
	for p := range m.profiles {
		if p.parked.Len() > 0 && p.takes(c) {
			return true
		}
	}
	could := func(p *poll) bool { return p.session.profile == nil || p.session.profile.takes(c) }
	for e := m.locked.Front(); e != nil; e = e.Next() {
		if could(e.Value.(*poll)) { // polls only
			return true
		}
	}
	return slices.ContainsFunc(m.batches, func(b *batch) bool { return slices.ContainsFunc(b.polls, could) }) ||
		slices.ContainsFunc(m.several.elsewhere, func(s store.WorkerSession) bool { return s.Takes(&c.Class) })
}
