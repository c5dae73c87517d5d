package throttle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"takt/store"
	"takt/store/backoff"
	"takt/store/hubspot"
)

const (
	// fullBatch is the number of new actions from which on a batch does not wait for more.
	fullBatch = 100
	// recheck is how soon after a call its queues are claimed from again.
	recheck = time.Second
	// maxQueues is the most queues of one claim.
	maxQueues = 100
)

// queue is a PortalQueue's view of a queue.
type queue struct {
	id string
	// due is when to claim next; zero: not before something changes.
	due time.Time
	// blocked is true if the budget is spent, so that nothing can be claimed before due.
	blocked bool
	// fresh is how many actions have arrived since the last claim began.
	fresh   int
	running int           // running calls with its actions
	period  time.Duration // of its rate
}

// queues are a portal's queues: plain data that its PortalQueue owns.
type queues struct {
	byID   map[string]*queue
	linger time.Duration // the longest wait of a batch for more actions
	ahead  time.Duration // how early budget is claimed
}

func newQueues(linger, ahead time.Duration) *queues {
	return &queues{byID: map[string]*queue{}, linger: linger, ahead: ahead}
}

func (l *queues) get(id string) *queue {
	q := l.byID[id]
	if q == nil {
		q = &queue{id: id}
		l.byID[id] = q
	}
	return q
}

// lingerFor returns how long a batch of q waits for more actions.
func (l *queues) lingerFor(q *queue) time.Duration { return min(q.period/100, l.linger) }

// arrive records n new actions and makes their queue due, unless it is blocked.
func (l *queues) arrive(id string, n int, now time.Time) {
	q := l.get(id)
	q.fresh += n
	if q.blocked {
		return
	}
	at := now
	if n > 0 && q.fresh < fullBatch {
		at = now.Add(l.lingerFor(q))
	}
	q.sooner(at)
}

// sooner makes q due at t, unless q is due earlier.
func (q *queue) sooner(t time.Time) {
	if q.due.IsZero() || t.Before(q.due) {
		q.due = t
	}
}

// lookAgain makes all queues due, because their recorded state may be outdated.
func (l *queues) lookAgain(now time.Time) {
	for _, q := range l.byID {
		q.due, q.blocked = now, false
	}
}

// next returns when the first queue is due, and whether any is.
func (l *queues) next() (at time.Time, any bool) {
	for _, q := range l.byID {
		if !q.due.IsZero() && (!any || q.due.Before(at)) {
			at, any = q.due, true
		}
	}
	return at, any
}

// take returns the due queues, those that have been due for longest first, and records that a
// claim of them begins.
func (l *queues) take(now time.Time) []string {
	var due []*queue
	for _, q := range l.byID {
		if !q.due.IsZero() && !q.due.After(now) {
			due = append(due, q)
		}
	}
	slices.SortFunc(due, func(a, b *queue) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id)) })
	due = due[:min(len(due), maxQueues)]
	ids := make([]string, len(due))
	for i, q := range due {
		ids[i] = q.id
		q.due, q.fresh = time.Time{}, 0
	}
	return ids
}

// retry makes the queues of a failed claim due at t.
func (l *queues) retry(ids []string, t time.Time) {
	for _, id := range ids {
		if q := l.byID[id]; q != nil {
			q.sooner(t)
		}
	}
}

// claimed records the result of a claim of ids.
func (l *queues) claimed(ids []string, c store.Claims, now time.Time) {
	for _, d := range c.Queues {
		q := l.get(d.Queue)
		q.period, q.blocked = d.Period, d.Blocked
		if d.Waiting {
			q.sooner(d.At)
		}
	}
	for _, call := range c.Claims {
		for _, id := range counted(call) {
			l.get(id).running++
		}
	}
	for _, id := range ids {
		q := l.byID[id]
		switch {
		case q == nil:
		case q.fresh > 0 && !q.blocked:
			q.sooner(now.Add(l.lingerFor(q)))
		case q.due.IsZero() && q.running == 0 && q.fresh == 0:
			delete(l.byID, id) // no action waits and no call runs
		}
	}
}

// counted returns the queues that a claim took from.
func counted(c store.Claim) (ids []string) {
	for _, a := range c.Actions {
		if !slices.Contains(ids, a.Queue) {
			ids = append(ids, a.Queue)
		}
	}
	return ids
}

// ended records that a claim's calls have ended. refunded is true if its budget was not used,
// retry after what time actions that were not completed are due again, 0 if there are none.
func (l *queues) ended(c store.Claim, refunded bool, retry time.Duration, now time.Time) {
	for _, id := range counted(c) {
		q := l.get(id)
		q.running--
		switch {
		case refunded:
			q.blocked = false
			q.sooner(now.Add(retry))
		case q.blocked:
			q.sooner(now.Add(q.period - l.ahead))
		case retry > 0:
			q.sooner(now.Add(retry))
		default:
			q.sooner(now.Add(recheck))
		}
	}
}

// ids returns all queues, sorted.
func (l *queues) ids() []string { return slices.Sorted(maps.Keys(l.byID)) }

// slowStart limits the calls for a portal whose calls fail: one at a time, with a pause before
// each that doubles up to a minute, until one succeeds. Each success then allows one more at a
// time, also at the start. So a portal that is down takes little from the others, and few of
// its own actions fail.
type slowStart struct {
	failures int // in a row
	trust    int // successes since the last failure
}

// calls returns how many calls may run at once, at most most.
func (s *slowStart) calls(most int) int { return min(most, 1+s.trust) }

// after records how a call ended and returns how long to wait before the next one.
func (s *slowStart) after(k hubspot.Kind) time.Duration {
	switch k {
	case hubspot.Broken, hubspot.Silent, hubspot.Blocked, hubspot.BadToken:
		s.failures++
		s.trust = 0
		return backoff.Backoff{Max: time.Minute}.Wait(s.failures - 1)
	case hubspot.Wait:
		s.trust = 0
		return 0 // HubSpot's reply has the pause, and it is not a failure
	default:
		s.failures = 0
		s.trust++
		return 0
	}
}
