package build

import (
	"context"
	"errors"
	"fmt"

	"takt/store"
)

// flight is one batch on its way to the database and back. The actor makes it
// and takes it back; in between it belongs to the goroutine that flies it.
type flight struct {
	polls    []*poll
	landings []landing // by the index of polls
	// seen is hints.news at the start.
	seen [laneCount]uint64
	// crowded is the actor's: another flight was in the air at the same time.
	crowded bool
	// landed is closed once every poll that this flight can answer is answered.
	landed chan struct{}
	// tries is how many more transactions this flight may use.
	tries int
}

// landing is what became of one poll of a flight.
type landing struct {
	store.PollResult
	err error
}

// parks reports whether the poll has had no final answer.
func (l *landing) parks() bool { return l.err == nil && l.Outcome == store.PollParked }

// maxTries is enough to single out three bad polls of 256.
const maxTries = 48

func newFlight(size int, seen [laneCount]uint64) *flight {
	return &flight{polls: make([]*poll, 0, size), seen: seen, landed: make(chan struct{}), tries: maxTries}
}

// fly serves the flight's polls and answers them, as soon as their transaction
// has committed and whatever becomes of the actor meanwhile.
func (f *flight) fly(ctx context.Context, db QueueStore, shown *depth) {
	defer close(f.landed)
	f.landings = make([]landing, len(f.polls))
	reqs := make([]store.Poll, len(f.polls))
	for i, p := range f.polls {
		reqs[i] = p.req
	}
	f.serve(ctx, db, reqs, 0, shown)
}

// serve serves reqs, which are the polls from index first on. If they fail
// together it halves them, so that one bad poll can't block the others.
func (f *flight) serve(ctx context.Context, db QueueStore, reqs []store.Poll, first int, shown *depth) {
	results, err := db.Serve(ctx, reqs)
	f.tries--
	if err == nil && len(results) != len(reqs) {
		err = fmt.Errorf("serving %d polls: %d results", len(reqs), len(results))
	}
	if err != nil && len(reqs) > 1 && f.tries > 1 && !isWeather(err) {
		half := len(reqs) / 2
		f.serve(ctx, db, reqs[:half], first, shown)
		f.serve(ctx, db, reqs[half:], first+half, shown)
		return
	}
	landings := f.landings[first : first+len(reqs)]
	for i := range landings {
		l := &landings[i]
		if err != nil {
			l.err = err
		} else if l.PollResult = results[i]; l.Outcome == store.PollFailed {
			l.err = l.Err
		}
	}
	left := shown.without(landings)
	for i := range landings {
		f.polls[first+i].land(&landings[i], left)
	}
}

// without is d less what these landings have taken: the actor hears of that
// only after their replies are out.
func (d *depth) without(landings []landing) *depth {
	left := &depth{}
	for lane := range d {
		left[lane].Store(d[lane].Load())
	}
	for i := range landings {
		if l := &landings[i]; l.err == nil && l.Job != nil && !l.Redelivered {
			if lane := laneOf(l.Job.Platform); lane != noLane && left[lane].Load() > 0 {
				left[lane].Add(-1)
			}
		}
	}
	return left
}

// queueSize is what the worker of a landing could take now. One that had a free
// slot and got nothing could take nothing.
func (l *landing) queueSize(left *depth) int {
	if l.Job == nil && l.Free {
		return 0
	}
	return left.of(setOf(l.Platforms))
}

// land answers p with what its transaction found.
func (p *poll) land(l *landing, left *depth) {
	switch {
	case l.err != nil:
		p.replyError(refusal(l.err))
	case l.Outcome == store.PollAnswered:
		p.reply(answer{Reply: Reply{
			WorkerID: l.WorkerID, Job: l.Job, Redelivered: l.Redelivered, Token: p.next, QueueSize: l.queueSize(left),
		}})
	case l.Outcome == store.PollParked && p.req.Mode == store.Park:
		p.reply(answer{parked: true})
	case l.Outcome == store.PollParked && p.req.Mode == store.Resume:
	case l.Outcome == store.PollUnknownToken:
		p.replyError(store.NewError(store.InvalidToken, "Invalid or expired worker token"))
	case l.Outcome == store.PollUnknownWorker:
		p.replyError(store.NewError(store.NotFound, "Worker not found"))
	default:
		// Superseded; or parked although it did not ask to: as if it were.
		l.Outcome = store.PollSuperseded
		p.replyEmpty(l.queueSize(left))
	}
}

// failures returns one error of each kind that polls of f met, nil if none did.
func (f *flight) failures() (weather, defect error) {
	for i := range f.landings {
		switch err := f.landings[i].err; {
		case err == nil:
		case isWeather(err):
			weather = err
		default:
			defect = err
		}
	}
	return weather, defect
}

// isWeather reports whether err comes from a database that is away or too slow,
// and not from what it was asked.
func isWeather(err error) bool {
	return store.CodeOf(err) == store.Unavailable ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// refusal is what a caller sees of err.
func refusal(err error) error {
	if isWeather(err) && store.CodeOf(err) != store.Unavailable {
		return unavailable("Database is too slow, try again", err)
	}
	return err
}

// unavailable returns a 503 that asks the caller to come back in a moment.
func unavailable(message string, cause error) error {
	e := store.Wrap(store.Unavailable, message, cause)
	e.RetryAfter = retryAfter
	return e
}
