package store

import (
	"context"
	"time"
)

// PollRequest is a worker's request for a build.
type PollRequest struct {
	// Token is the content of the presented token; zero if the worker gave only its
	// WorkerID. Presented is that token as it was sent. With a token, WorkerID is whose it has
	// to be, "" for anybody's.
	Token     WorkerToken
	Presented string
	WorkerID  string
	// Instance is the id of the worker's process, "" if the request named none.
	Instance string
	// Active lists the builds that the worker reports as running; valid if Reconcile.
	Active    []string
	Reconcile bool
	// Max is how many builds the worker asks for; less than 2 means one.
	Max int
}

// Jobs are the builds of one answer, in the order of their hand-outs.
type Jobs []*Job

// First returns the first of j; nil if there is none.
func (j Jobs) First() *Job {
	if len(j) == 0 {
		return nil
	}
	return j[0]
}

// PollReply answers a poll.
type PollReply struct {
	// Jobs is empty if there is nothing to do.
	Jobs Jobs
	// Redelivered is true if Jobs were handed out before (same attempts).
	Redelivered bool
	// Token is for the worker's next poll. It is a new token, or the presented one if a
	// newer poll superseded this one ("" if none was presented).
	Token string
	// QueueSize is about how many pending builds the worker could build.
	QueueSize int
}

// AwaitReply waits for a poll's reply. It ends with ctx, whose cause it returns, and when
// closing is closed.
type AwaitReply func(ctx context.Context, closing <-chan struct{}) (PollReply, error)

// Job is a build as it is handed to a worker.
type Job struct {
	BuildID     string
	Platform    Platform
	ClassID     int32
	Attempt     int
	HasCerts    bool
	HasInputs   bool // or labels
	SubmittedAt time.Time
	// Priority is not known of a build that is handed out again. PendingSince is when it became
	// pending for this attempt; zero if that is not known or it is handed out again.
	Priority     int
	PendingSince time.Time
}

// WorkerSession is a controller's record of a worker between its polls: the
// worker's row when it was last read.
type WorkerSession struct {
	Number uint32
	ID     string
	// Platforms and Labels are as in Worker.
	Platforms []Platform
	Labels    Labels
	Slots     int
	Held      int
	// Drained workers get no new builds: they are draining, rest after a fault of their
	// own, are quarantined, or are critical where critical workers get none.
	Drained bool
	// Used is the highest counter with which the worker polled. Handed is the counter of
	// its last hand-out.
	Used, Handed uint64
}

// Takes reports whether the worker can take builds of c.
func (s *WorkerSession) Takes(c *Class) bool { return c.TakenBy(s.Platforms, s.Labels) }

// Free reports whether the worker may get a new build.
func (s *WorkerSession) Free() bool { return !s.Drained && s.Held < s.Slots }

// Poll is one worker's request for a build, as the queue hands it to the store.
type Poll struct {
	// Worker is the worker's number, 0 if only its WorkerID is known. If both are, they must be
	// one worker's.
	Worker   uint32
	WorkerID string
	Instance string // as in PollRequest
	// Shown is the counter of the presented token, 0 if there was none. A build that was
	// handed out with a higher counter is handed out again.
	Shown uint64
	// Used is the highest counter that this controller has seen; it is at least Shown.
	Used uint64
	// Parked is true if the poll was parked. Such a poll counts only if the worker's
	// Handed has not changed since then.
	Parked bool
	Handed uint64
	// Active lists the builds that the worker reports as running; valid if Reconcile.
	Active    []string
	Reconcile bool
	// Max is as in PollRequest. New is how many of the builds may be new, less than 2 means one;
	// second and further ones are of the classes in Spare, for whose builds no other poll is
	// known to wait.
	Max, New int
	Spare    []int32
	// Session is the controller's record of the worker; valid if Known. By it the
	// store chooses how many builds it locks. The worker's row decides.
	Session WorkerSession
	Known   bool
}

// PollOutcome is how the store answered a poll.
type PollOutcome uint8

const (
	// PollServed means that Session is the worker's row. Jobs may be empty.
	PollServed PollOutcome = iota
	// PollSuperseded means that the worker has polled since this poll was parked.
	PollSuperseded
	// PollInvalidToken means that the token was superseded or its worker was deleted
	// (401).
	PollInvalidToken
	// PollDuplicateWorker means that another process holds the worker's id (409).
	PollDuplicateWorker
	// PollUnknownWorker means that no worker has this id (404).
	PollUnknownWorker
	// PollFailed means that this poll could not be served; Err says why (500). The other
	// polls of its batch were served.
	PollFailed
	// PollLocked means that another transaction has locked the worker's row, or keeps
	// changing it. Nothing was done; the poll can be tried again a little later.
	PollLocked
)

// PollResult is the answer to one Poll, at the same index.
type PollResult struct {
	Outcome PollOutcome
	// Session is the row after Jobs were handed out.
	Session WorkerSession
	// Jobs are either new, each with a counter of its own, or those that the worker may not
	// have received. Their counters grow.
	Jobs Jobs
	// Handed is the counter of the last hand-out of Jobs.
	Handed uint64
	// Redelivered is true if Jobs were handed out before (same attempts).
	Redelivered bool
	// Err is the cause of PollFailed, nil otherwise.
	Err error
}

// Presence is the heartbeat of a worker that polled and got nothing, to be written to its
// row.
type Presence struct {
	Number uint32
	// Used is as in WorkerSession. It is written only if the row has no higher value.
	Used uint64
	// Age is the time since the worker's last poll, or since its parked poll ended.
	Age time.Duration
	// Wait is how long its last poll might wait.
	Wait time.Duration
	// Closed is true if the connection of its parked poll closed before the answer, or its poll
	// was answered while it had room for more builds, and it has not polled since.
	Closed bool
	// Every is the time between its last two polls, at most MaxPollEvery.
	Every time.Duration
}

// MaxPollEvery is the longest time between two polls that a worker can be expected to keep.
const MaxPollEvery = 40 * time.Second

// QueueCount is how many builds were pending, over all controllers, at the time At.
type QueueCount struct {
	At time.Time
	// Pending counts the builds of each platform that has any, and of ios and android.
	Pending map[Platform]int
	// Classes is how many classes they are of.
	Classes int
	// Room is what that leaves for more. Beyond its limit it counts each class up to the limit.
	Room QueueRoom
	// Changes grows whenever this controller learns that a build became pending, or may
	// have missed it. While it stays, nothing is pending and nothing runs, there is no work
	// at any controller.
	Changes uint64
}

// ClassCount is how many builds of a class are pending.
type ClassCount struct {
	Class
	N int
}

// Recount is a controller's snapshot of the database.
type Recount struct {
	// Pending counts the builds that wait, of each class that has any, and Delayed those that wait
	// for their retry and are of no class meanwhile.
	Pending []ClassCount
	Delayed map[Platform]int
	// Unmatched are as in QueueRoom, as of at most two seconds ago.
	Unmatched int
	// Installation and Now are the arguments of WorkerTokens.Learn.
	Installation string
	Now          time.Time
	// Changed are the rows that have changed. Gone are the workers whose row no longer
	// exists.
	Changed []WorkerSession
	Gone    []uint32
}

// Room returns what a count leaves for more builds.
func (r *Recount) Room(limit int) QueueRoom {
	room := QueueRoom{Limit: limit, Unmatched: r.Unmatched}
	for _, c := range r.Pending {
		room.Pending += c.N
	}
	for _, delayed := range r.Delayed {
		room.Pending += delayed
	}
	return room
}
