package postgres

import (
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// turn is a poll while Assign serves it. Its Session is replaced whenever the worker's row
// is read.
type turn struct {
	store.Poll
	result *store.PollResult
	done   bool // result is set
	missed bool // the last pass could not lock the worker's row
	// refused is the build that the database refused to assign when this poll was served
	// alone.
	refused *lockedBuild
	// takes are the classes that the worker can take according to its Session.
	takes classSet
}

func (t *turn) answer(r store.PollResult) { *t.result, t.done = r, true }

// mayRepeat reports whether the assigned builds of worker s must be read because the worker
// may not have received one: its token is older than the last hand-out, it presented none,
// it lists what it runs, or it polls although its only slot is taken.
func (t *turn) mayRepeat(s *store.WorkerSession) bool {
	return s.Held > 0 && (t.Shown == 0 || s.Handed > t.Shown || t.Reconcile || s.Slots == 1)
}

// row is a row of workers.
type row struct {
	store.WorkerSession
	instance string // of the process that holds the worker; "" if it gave no id
	offline  bool
	trial    bool       // the worker is quarantined or suspect, so it gets one build at most
	version  pgtype.TID // where the row is while it is locked
}

// lockedBuild is a locked row of builds.
type lockedBuild struct {
	store.Job
	seq, position int64
	version       pgtype.TID // where the row is while it is locked
	since         time.Time  // it waits since then, or was changed last; 0.1.0 sets that only
	// worker is the holder of an assigned build; for a pending build, the last holder of it
	// or of the build that it retries. handed is the counter of the hand-out to the holder.
	worker string
	handed uint64
	// restart is true if another hand-out to the holder restarts the build timeout: no heartbeat
	// has come since the hand-out, or that was less than two minutes ago.
	restart bool
}

// held is what a transaction has locked and decides by.
type held struct {
	workers map[uint32]*row
	// repeats are assigned builds of the workers in asked, in the order of hand-outs.
	repeats []lockedBuild
	asked   map[string]bool
	claims  []*claim
	classes []store.Class // from which the claims were planned
}

// claimOf returns the claim for workers that can take these classes; nil if there is none.
func (h *held) claimOf(takes classSet) *claim {
	for _, c := range h.claims {
		if c.key == takes.key {
			return c
		}
	}
	return nil
}

// handOut is a build that is assigned to a worker.
type handOut struct {
	*lockedBuild
	to     *row
	number uint64            // the worker's counter for it
	answer *store.PollResult // of the worker's poll
	nr     int               // the index in answer.Jobs
	from   *claim            // that locked the build
}

// decision is what a transaction does.
type decision struct {
	// results has the indexes of the polls. A poll without a result is to be served again:
	// its worker's row is not locked, or too few builds were locked to decide.
	results  []*store.PollResult
	handOuts []handOut
	repeated []int64  // builds handed out again whose build timeout restarts
	written  []*row   // workers whose rows change
	unused   []string // the events of builds that were locked but not handed out
	stored   bool     // the hand-outs are written
}

// decide gives builds to polls of different workers. A poll is served only if no other
// process holds the worker and no later poll has superseded it. It gets the builds again that
// the worker may not have received; or else, if a slot is free, the first pending build of
// the classes that the worker can take. When each poll has got its build, those that may get
// more get another one each, and so on.
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
			if d.repeat(i, t, w, h.repeats) {
				continue
			}
		}
		if t.takes.key == "" || !slices.Equal(w.Platforms, t.Session.Platforms) || !maps.Equal(w.Labels, t.Session.Labels) {
			t.takes = setOf(h.classes, &w.WorkerSession)
		}
		switch c := h.claimOf(t.takes); {
		case !w.Free() || len(t.takes.ids) == 0 || c != nil && len(c.builds) == 0 && c.whole:
			d.serve(i, w, &store.PollResult{})
		case c != nil && len(c.builds) > 0:
			d.serve(i, w, &store.PollResult{})
			d.handOut(i, w, c)
		}
	}
	d.handOutMore(turns, h)
	d.exchange()
	for i, t := range turns {
		if r := d.results[i]; r != nil && r.Outcome == store.PollServed {
			r.Session = h.workers[t.Worker].WorkerSession
		}
	}
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

// judge returns PollServed if a poll may be served, or else why not.
func judge(t *turn, w *row) store.PollOutcome {
	old := t.Shown > 0 && t.Shown < w.Used
	switch {
	case t.WorkerID != "" && t.WorkerID != w.ID: // the token is another worker's
		return store.PollInvalidToken
	case w.instance != "" && t.Instance != "" && t.Instance != w.instance:
		return store.PollDuplicateWorker
	case t.Parked && (old || t.Handed != w.Handed):
		return store.PollSuperseded
	case old:
		return store.PollInvalidToken
	}
	return store.PollServed
}

// repeat gives worker w the builds again that it may not have received, in the order of their
// hand-outs, as many as it asks for. It returns false if there is none. The token of the answer
// carries the number of the last one, so the next poll gets the others.
func (d *decision) repeat(i int, t *turn, w *row, builds []lockedBuild) bool {
	r := &store.PollResult{Redelivered: true}
	for k := range builds {
		b := &builds[k]
		switch {
		case len(r.Jobs) == max(t.Max, 1):
		case b.worker != w.ID, t.Reconcile && slices.Contains(t.Active, b.BuildID):
		case t.Shown == 0 || b.handed > t.Shown || t.Reconcile || w.Slots == 1:
			if b.restart {
				d.repeated = append(d.repeated, b.seq)
			}
			r.Jobs, r.Handed = append(r.Jobs, &b.Job), b.handed
		}
	}
	if len(r.Jobs) == 0 {
		return false
	}
	d.serve(i, w, r)
	return true
}

// handOutStep is by how much a hand-out raises the worker's counter. It exceeds what polls
// that another controller answers from memory can add before that controller is notified of
// the hand-out.
const handOutStep = 1024

// handOut gives the first build of c to worker w, which sent the poll at index i.
func (d *decision) handOut(i int, w *row, c *claim) {
	b, r := &c.builds[0], d.results[i]
	c.builds = c.builds[1:]
	b.PendingSince = b.SubmittedAt
	if b.Attempt > 0 {
		b.PendingSince = b.since
	}
	b.Attempt++
	b.Priority = priorityAt(b.position)
	w.Held++
	w.Handed = max(w.Handed, w.Used) + handOutStep
	if len(r.Jobs) == 0 && !w.offline { // serve has written an offline one
		d.written = append(d.written, w)
	}
	r.Jobs, r.Handed = append(r.Jobs, &b.Job), w.Handed
	d.handOuts = append(d.handOuts, handOut{b, w, w.Handed, r, len(r.Jobs) - 1, c})
}

// handOutMore gives second and further builds to the polls that may have them, in turns. None
// of a class is given while a poll of this batch that could take it is not decided yet.
func (d *decision) handOutMore(turns []*turn, h *held) {
	if !slices.ContainsFunc(turns, func(t *turn) bool { return t.New > 1 }) {
		return
	}
	var undecided []int32
	for i, t := range turns {
		if d.results[i] != nil {
			continue
		}
		if t.takes.key == "" { // its session says that it has no free slot, or it may get one again
			t.takes = setOf(h.classes, &t.Session)
		}
		undecided = append(undecided, t.takes.ids...)
	}
	for more := true; more; {
		more = false
		for i, t := range turns {
			w, r := h.workers[t.Worker], d.results[i]
			if r == nil || r.Redelivered || len(r.Jobs) == 0 || len(r.Jobs) >= t.New || w.trial || !w.Free() {
				continue
			}
			if c := h.claimOf(t.takes); len(c.builds) > 0 && slices.Contains(t.Spare, c.builds[0].ClassID) && !slices.Contains(undecided, c.builds[0].ClassID) {
				d.handOut(i, w, c)
				more = true
			}
		}
	}
}

// exchange swaps the builds of two workers that can take the same classes if one of them got
// a build that was lost or failed on it before. The builds that are handed out stay the same.
func (d *decision) exchange() {
	for i := range d.handOuts {
		a := &d.handOuts[i]
		if a.worker != a.to.ID {
			continue
		}
		for j := range d.handOuts {
			if b := &d.handOuts[j]; b.from == a.from && b.worker != a.to.ID && a.worker != b.to.ID {
				a.lockedBuild, b.lockedBuild = b.lockedBuild, a.lockedBuild
				a.answer.Jobs[a.nr], b.answer.Jobs[b.nr] = &a.Job, &b.Job
				break
			}
		}
	}
}

// serve sets the result of the poll at index i of worker w. An offline worker is written, so that
// it no longer is.
func (d *decision) serve(i int, w *row, r *store.PollResult) {
	d.results[i] = r
	if w.offline {
		d.written = append(d.written, w)
	}
}
