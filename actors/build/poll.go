package build

import (
	"time"

	"takt/store"
)

// state is where a poll stands. Only the actor reads and writes it.
type state uint8

const (
	lined   state = iota // waits in the line for the next batch
	blocked              // off the line: an older poll of the same worker flies
	flying               // is in a batch
	parked               // waits for a build
	ended                // has its last answer, or nobody waits for one
)

// answer is what a poll's caller receives: once parked, then once a reply or an
// error; or only the latter.
type answer struct {
	Reply
	err    error
	parked bool
}

// poll is one request of a worker on its way. The caller fills the first group
// and sends the poll to the actor; a batch reads it while it flies; everything
// else is the actor's.
type poll struct {
	req       store.Poll
	presented string        // the token as it was sent, "" if none was
	next      string        // the token behind req.Next
	arrived   time.Time     // on this controller's clock
	wait      time.Duration // 0: never parks
	out       chan answer   // room for both answers, so sending never blocks

	no    uint64    // order of arrival, from 1
	until time.Time // when it stops being parked
	desk  *desk
	// worker, takes and free are what the store said when it last looked.
	worker string
	takes  platforms
	free   bool // has a slot left
	gone   bool // its caller left while it flew
	state  state
	lane   int    // the lane whose build it was woken for, or noLane
	seat   [2]int // positions in the room's heaps, -1 when outside
}

// newPoll returns a poll that is ready to be sent to the actor.
func newPoll(req PollRequest, wait time.Duration, now time.Time) *poll {
	next := store.NextWorkerToken(req.Token)
	p := &poll{
		req: store.Poll{
			Next:      store.HashToken(next),
			Active:    req.Active,
			Reconcile: req.Reconcile,
		},
		presented: req.Token,
		next:      next,
		arrived:   now,
		out:       make(chan answer, 2),
		lane:      noLane,
		seat:      [2]int{-1, -1},
	}
	if req.Token != "" {
		p.req.Token = store.HashToken(req.Token) // says who it is; the id is hearsay then
	} else {
		p.req.WorkerID, p.worker = req.WorkerID, req.WorkerID
	}
	if wait > 0 {
		p.wait, p.req.Mode = wait, store.Park
	}
	return p
}

// reply gives a to the caller. It never blocks: there is room for every answer
// that a poll gets, and one too many is dropped.
func (p *poll) reply(a answer) {
	select {
	case p.out <- a:
	default:
	}
}

// replyEmpty answers "no job" and hands the presented token back: nothing was
// written for this poll.
func (p *poll) replyEmpty(queueSize int) {
	p.reply(answer{Reply: Reply{WorkerID: p.worker, Token: p.presented, QueueSize: queueSize}})
}

// replyError answers with err.
func (p *poll) replyError(err error) { p.reply(answer{err: err}) }
