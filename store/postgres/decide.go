package postgres

import (
	"maps"
	"slices"
	"time"

	"takt/store"
)

// turn is a poll that is served. Its Session is replaced by the worker's row whenever
// that is read.
type turn struct {
	store.Poll
	result *store.PollResult
	done   bool // result is the answer
	missed bool // the worker's row could not be locked
	// refused is the build that the database did not let this poll alone have.
	refused *lockedBuild
	// takes are the classes that the worker can take, by its Session.
	takes classSet
}

func (t *turn) answer(r store.PollResult) { *t.result, t.done = r, true }

// mayRepeat reports whether builds have to be read that the worker s may not have heard
// of: its token is older than its last hand-out, it shows none, it lists what it runs, or
// it has one slot only.
func (t *turn) mayRepeat(s *store.WorkerSession) bool {
	return s.Held > 0 && (t.Shown == 0 || s.Handed > t.Shown || t.Reconcile || s.Slots == 1)
}

// row is a worker's row.
type row struct {
	store.WorkerSession
	instance string // "" if the process that holds it gave no name
	offline  bool
}

// lockedBuild is a row of builds that is locked.
type lockedBuild struct {
	store.Job
	seq, position int64
	updated       time.Time
	// worker is the holder of an assigned build, or whoever had a pending build or the one that
	// it retries last. handed is the counter of the hand-out to the holder.
	worker string
	handed uint64
	// unheard is true if the holder sent nothing since the hand-out, or if the hand-out was just now.
	unheard bool
}

// held are the rows that a transaction has locked, by which polls are decided.
type held struct {
	workers map[uint32]*row
	// repeats are assigned builds of the workers in asked, in the order of hand-outs.
	repeats []lockedBuild
	asked   map[string]bool
	claims  []*claim
	classes []store.Class // by which the claims were planned
}

// claimOf returns the claim for a worker; nil if there is none.
func (h *held) claimOf(takes classSet) *claim {
	for _, c := range h.claims {
		if c.key == takes.key {
			return c
		}
	}
	return nil
}

// handOut is a build that a worker gets. answer is that of the worker's poll, from is where
// the build comes from.
type handOut struct {
	*lockedBuild
	to     *row
	answer *store.PollResult
	from   *claim
}

// decision is the outcome of polls.
type decision struct {
	// results are the answers by the index of the polls. A poll without one has to be
	// served again: its worker's row is not locked, or less was locked than it may get.
	results  []*store.PollResult
	handOuts []handOut
	repeated []int64  // builds that are handed out a second time
	written  []*row   // workers whose rows change
	unused   []string // the events of builds that were locked and not handed out
	stored   bool     // the hand-outs are written
}

// decide gives builds to polls of different workers. A poll counts only if no other
// process holds the worker and nothing has superseded it. It first gets a build again that
// the worker may not have heard of; otherwise, if a slot is free, the first pending build
// of all classes that it can take.
func decide(turns []*turn, h *held) decision {
	d := decision{results: make([]*store.PollResult, len(turns))}
	for i, t := range turns {
		w := h.workers[t.Worker]
		if w == nil {
			continue
		}
		if outcome := judge(t, w); outcome != store.PollServed {
			d.results[i] = &store.PollResult{Outcome: outcome, Session: w.WorkerSession}
			continue
		}
		w.Used = max(w.Used, t.Used)
		if t.mayRepeat(&w.WorkerSession) {
			if !h.asked[w.ID] {
				continue
			}
			if b := t.repeated(w, h.repeats); b != nil {
				if b.unheard {
					d.repeated = append(d.repeated, b.seq)
				}
				d.serve(i, w, &store.PollResult{Job: &b.Job, Handed: b.handed, Redelivered: true})
				continue
			}
		}
		takes := t.takes
		if takes.key == "" || !slices.Equal(w.Platforms, t.Session.Platforms) || !maps.Equal(w.Labels, t.Session.Labels) {
			takes = setOf(h.classes, &w.WorkerSession)
		}
		switch c := h.claimOf(takes); {
		case !w.Free() || len(takes.ids) == 0 || c != nil && len(c.builds) == 0 && c.whole:
			d.serve(i, w, &store.PollResult{})
		case c != nil && len(c.builds) > 0:
			d.handOut(i, w, c)
		}
	}
	d.exchange()
	for _, c := range h.claims {
		for i := range c.builds {
			class := store.Class{ID: c.builds[i].ClassID, Platform: c.builds[i].Platform}
			if event := class.Event(); !slices.Contains(d.unused, event) {
				d.unused = append(d.unused, event)
			}
		}
	}
	return d
}

// judge returns whether a poll counts.
func judge(t *turn, w *row) store.PollOutcome {
	old := t.Shown > 0 && t.Shown < w.Used
	switch {
	case w.instance != "" && t.Instance != "" && t.Instance != w.instance:
		return store.PollDuplicateWorker
	case t.Parked && (old || t.Handed != w.Handed):
		return store.PollSuperseded
	case old:
		return store.PollInvalidToken
	}
	return store.PollServed
}

// repeated returns the build that worker w gets again: the earliest hand-out of which it
// may not have heard; nil if there is none.
func (t *turn) repeated(w *row, builds []lockedBuild) *lockedBuild {
	for i := range builds {
		b := &builds[i]
		switch {
		case b.worker != w.ID, t.Reconcile && slices.Contains(t.Active, b.BuildID):
		case t.Shown == 0 || b.handed > t.Shown || t.Reconcile || w.Slots == 1:
			return b
		}
	}
	return nil
}

// handOutStep is what a hand-out adds to the worker's counter. It is more than idle polls
// at another controller add before that controller is notified of the hand-out.
const handOutStep = 1024

// handOut gives the first build of c to worker w, which sent the poll at index i.
func (d *decision) handOut(i int, w *row, c *claim) {
	b := &c.builds[0]
	c.builds = c.builds[1:]
	since := b.SubmittedAt
	if b.Attempt > 0 {
		since = b.updated
	}
	b.Attempt++
	b.Priority = priorityAt(b.position)
	w.Held++
	w.Handed = max(w.Handed, w.Used) + handOutStep
	d.serve(i, w, &store.PollResult{Job: &b.Job, Handed: w.Handed, PendingSince: since})
	d.handOuts = append(d.handOuts, handOut{b, w, d.results[i], c})
}

// exchange lets workers that take the same classes exchange their builds if one of them got a
// build that was lost or failed on it before. Which builds are handed out stays as it is.
func (d *decision) exchange() {
	for i := range d.handOuts {
		a := &d.handOuts[i]
		if a.worker != a.to.ID {
			continue
		}
		for j := range d.handOuts {
			if b := &d.handOuts[j]; b.from == a.from && b.worker != a.to.ID && a.worker != b.to.ID {
				a.lockedBuild, b.lockedBuild = b.lockedBuild, a.lockedBuild
				a.answer.Job, b.answer.Job = b.answer.Job, a.answer.Job
				a.answer.PendingSince, b.answer.PendingSince = b.answer.PendingSince, a.answer.PendingSince
				break
			}
		}
	}
}

// serve answers the poll at index i by worker w's row, which is written if it has got a
// build or was offline.
func (d *decision) serve(i int, w *row, r *store.PollResult) {
	r.Session = w.WorkerSession
	d.results[i] = r
	if w.offline || r.Job != nil && !r.Redelivered {
		d.written = append(d.written, w)
	}
}
