package queue

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"takt/actors/otp"
	"takt/store"
)

// poll is one request of a worker. Its caller fills the first group and sends the poll to
// the actor; from then on that group is immutable. All other fields are actor only.
type poll struct {
	req     store.PollRequest
	arrived time.Time     // on this controller's clock
	wait    time.Duration // how long it may be parked; 0: not at all
	out     chan answer   // has room for one answer, so sending never blocks
	span    trace.Span    // of the request; nil unless it is recorded

	no      uint64 // order of arrival, from 1
	session *session
	state   state
	// in is the list of waiting or parked polls that has it, at is its element there.
	at *list.Element
	in *list.List
	// wasParked is true once it was parked. handed is the session's Handed at that time.
	wasParked bool
	handed    uint64
	takes     *profile // its worker's when it parked; nil if that had no free slot
	wokenFor  *class   // nil if it was not woken
	gone      bool     // its caller left while it was in a batch
	counted   bool     // memory.admitted includes it
	// lockedAt is when its worker's row was first found locked by another transaction; zero
	// if it is not locked. locked is how often it was found locked since then.
	lockedAt time.Time
	locked   int
}

// state is the state of a poll.
type state uint8

const (
	blocked   state = iota // an older poll of the same worker is in a batch
	waiting                // waits for the next batch
	batched                // is in a batch
	parked                 // waits for a build
	postponed              // its worker's row is locked; waits for a timer
	ended                  // is answered, or its caller has left
)

// answer is what a poll's caller receives.
type answer struct {
	store.PollReply
	next store.WorkerToken // the reply's token, not yet signed; zero: the one presented
	err  error
}

// answer sends a to the caller, unless it was answered before.
func (p *poll) answer(a answer) {
	select {
	case p.out <- a:
	default:
	}
}

// idle answers that there is no build, with the next token of p's session.
func (p *poll) idle(queueSize int) {
	s := p.session
	p.answer(answer{
		PollReply: store.PollReply{QueueSize: queueSize},
		next:      store.WorkerToken{Worker: s.Number, Counter: max(s.Used, p.req.Token.Counter) + 1},
	})
}

// put puts p into a list, in the order of arrival. It searches from both ends, because a poll
// that is put back usually arrived before most others, and one that a batch has just served
// after most others.
func (p *poll) put(l *list.List, s state) {
	p.in, p.state = l, s
	numberOf := func(e *list.Element) uint64 { return e.Value.(*poll).no } // polls only
	front, back := l.Front(), l.Back()
	for back != nil && numberOf(front) < p.no && numberOf(back) > p.no {
		front, back = front.Next(), back.Prev()
	}
	switch {
	case back == nil:
		p.at = l.PushBack(p)
	case numberOf(back) < p.no:
		p.at = l.InsertAfter(p, back)
	default:
		p.at = l.InsertBefore(p, front)
	}
}

// unlist takes p out of the list that it is in.
func (p *poll) unlist() {
	if p.at != nil {
		p.in.Remove(p.at)
		p.in, p.at = nil, nil
	}
}

var (
	errTooSlow = errors.New("no batch took the poll in time")
	errClosing = errors.New("server closed")
)

// receive waits for p's answer, or for the end of ctx, the server (closing) or the actor. When
// p's wait is over it sends expired to the actor, and fails if there is no answer within
// patience after that. An answer that has arrived is returned in any case.
func (p *poll) receive(ctx context.Context, closing <-chan struct{}, proc *otp.Proc, patience time.Duration) (answer, error) {
	timer := time.NewTimer(cmp.Or(p.wait, patience))
	defer timer.Stop()
	var err error
	for expires := p.wait > 0; err == nil; {
		select {
		case a := <-p.out:
			return a, a.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-closing:
			err = restarting(errClosing)
		case <-timer.C:
			if expires {
				expires = false
				otp.Cast(proc, expired{p})
				timer.Reset(patience)
				continue
			}
			err = store.NewUnavailable("Queue is too slow, try again", errTooSlow)
		case <-proc.Done():
			err = restarting(&otp.DownError{Name: proc.Name(), Reason: proc.Reason()})
		}
	}
	otp.Cast(proc, leave{poll: p, closed: errors.Is(err, context.Canceled)})
	select {
	case a := <-p.out:
		return a, a.err
	default:
		return answer{}, err
	}
}
