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

// begin counts a call, if one may begin now. If not, u is nil, and next is when it
// is worth asking again; zero if only an answer can help.
func (w *window) begin(now time.Time) (u *use, next time.Time) {
	free, longest := true, time.Duration(0)
	for _, l := range w.limits {
		longest = max(longest, l.Per)
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
		if counted >= l.N {
			free = false
			if first.After(next) {
				next = first
			}
		}
	}
	// What no limit counts any more is forgotten.
	w.uses = slices.DeleteFunc(w.uses, func(u *use) bool { return !u.answered.IsZero() && !u.answered.Add(longest).After(now) })
	if !free {
		return nil, next
	}
	u = &use{}
	w.uses = append(w.uses, u)
	return u, time.Time{}
}
