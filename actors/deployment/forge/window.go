package forge

import (
	"slices"
	"time"
)

// Limit allows at most N calls in any window of length Per.
type Limit struct {
	N   int
	Per time.Duration
}

// use is one counted call.
type use struct {
	// answered is when the answer arrived. The forge has counted the call before that.
	// Zero until the answer arrives.
	answered time.Time
}

// window says when a call may begin so that the forge sees no limit exceeded, whatever
// the network's delays. A call counts from its beginning until one period after its
// answer. window is a plain value.
type window struct {
	limits []Limit
	uses   []*use
}

// begin counts a call if it may begin now. If not, u is nil and next is when to ask
// again. next is zero if only an answer can help.
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
	// Calls that no limit counts any more are removed.
	w.uses = slices.DeleteFunc(w.uses, func(u *use) bool { return !u.answered.IsZero() && !u.answered.Add(longest).After(now) })
	if !free {
		return nil, next
	}
	u = &use{}
	w.uses = append(w.uses, u)
	return u, time.Time{}
}
