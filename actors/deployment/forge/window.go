package forge

import (
	"slices"
	"time"
)

// Limit is at most N in any window of Per.
type Limit struct {
	N   int
	Per time.Duration
}

// use is one call that counts.
type use struct {
	// answered is when its answer came: the forge has counted it before. Zero
	// while it is under way.
	answered time.Time
}

// window says when a call may be made so that all limits hold at the forge,
// whatever the network does meanwhile: a call counts from its beginning until one
// period after its answer. It is a plain value.
type window struct {
	limits []Limit
	uses   []*use
}

// free reports whether a call may begin now. If not, next is when it is worth
// asking again; zero if only an answer can help.
func (w *window) free(now time.Time) (ok bool, next time.Time) {
	w.forget(now)
	ok = true
	for _, l := range w.limits {
		counted, first := 0, time.Time{}
		for _, u := range w.uses {
			switch end := u.answered.Add(l.Per); {
			case u.answered.IsZero():
				counted++
			case end.After(now):
				counted++
				if first.IsZero() || end.Before(first) {
					first = end
				}
			}
		}
		if counted < l.N {
			continue
		}
		ok = false
		if next.IsZero() || first.After(next) {
			next = first
		}
	}
	return ok, next
}

// begin counts a call.
func (w *window) begin() *use {
	u := &use{}
	w.uses = append(w.uses, u)
	return u
}

// forget drops what no limit counts any more.
func (w *window) forget(now time.Time) {
	longest := time.Duration(0)
	for _, l := range w.limits {
		longest = max(longest, l.Per)
	}
	w.uses = slices.DeleteFunc(w.uses, func(u *use) bool { return !u.answered.IsZero() && !u.answered.Add(longest).After(now) })
}

// seed adds calls of the past, if there are none yet.
func (w *window) seed(times []time.Time) {
	if len(w.uses) > 0 {
		return
	}
	for _, at := range times {
		w.uses = append(w.uses, &use{answered: at})
	}
}
