package store

import "time"

// PollRequest is a worker's request for a build.
type PollRequest struct {
	// Token is what the presented token says; zero if the worker gave only its
	// WorkerID. Presented is that token as it was sent.
	Token     WorkerToken
	Presented string
	WorkerID  string
	// Active lists the builds that the worker says it has; valid if Reconcile.
	Active    []string
	Reconcile bool
}

// PollReply answers a poll.
type PollReply struct {
	// Job is nil if there is nothing to do.
	Job *Job
	// Redelivered is true if Job had been handed out before (same attempt).
	Redelivered bool
	// Token is for the worker's next poll: a new one, or the presented one if the
	// poll was superseded by a newer one ("" if it presented none).
	Token string
	// QueueSize is about how many pending builds the worker could take.
	QueueSize int
}

// Job is a build as it is handed to a worker.
type Job struct {
	BuildID     string
	Platform    Platform
	Attempt     int
	HasCerts    bool
	SubmittedAt time.Time
}

// WorkerSession is what a controller remembers of a worker between its polls: its
// row, as it was at the last look.
type WorkerSession struct {
	Number uint32
	ID     string
	// Platforms as in Worker.
	Platforms []Platform
	Slots     int
	Held      int
	// Drained workers get no new builds: they are draining, or critical where
	// those are spared.
	Drained bool
	// Used is the highest counter with which the worker polled, Handed that of its
	// last hand-out.
	Used, Handed uint64
	Address      RowAddress
}

// Free reports whether the worker may get a new build.
func (s *WorkerSession) Free() bool { return !s.Drained && s.Held < s.Slots }

// RowAddress is where a row was last seen; zero if nobody knows. It is a hint.
// While some transaction holds an old snapshot no dead version of a row goes away,
// and whoever comes through an index steps over all of them; who comes by the
// address, over none.
type RowAddress struct {
	Block  uint32
	Offset uint16
}

// Poll is one worker's request for a build, as the queue hands it to the store.
type Poll struct {
	// Worker is the worker's number, 0 if only its WorkerID is known.
	Worker   uint32
	WorkerID string
	// Shown is the counter of the presented token, 0 if there was none. A build
	// whose hand-out has a higher one is handed out again.
	Shown uint64
	// Used is the highest counter that this controller knows of, at least Shown.
	Used uint64
	// Parked polls were parked, and count only if the worker's Handed is still as
	// it was then.
	Parked bool
	Handed uint64
	// Active lists the builds that the worker says it has; valid if Reconcile.
	Active    []string
	Reconcile bool
	Address   RowAddress
}

// PollOutcome is how the store took a poll.
type PollOutcome uint8

const (
	// PollServed means: Session is the worker's row; Job may be nil.
	PollServed PollOutcome = iota
	// PollSuperseded means: the worker has polled since this poll was parked.
	PollSuperseded
	// PollInvalidToken means: the token was superseded, or its worker is gone (401).
	PollInvalidToken
	// PollUnknownWorker means: no worker has this id (404).
	PollUnknownWorker
	// PollFailed means: this poll alone could not be served, Err says why (500).
	// The others of its batch were.
	PollFailed
)

// PollResult is the answer to one Poll, at the same index.
type PollResult struct {
	Outcome PollOutcome
	// Session is the row as it is after Job was handed out.
	Session WorkerSession
	Job     *Job
	// Handed is the counter of Job's hand-out.
	Handed uint64
	// Redelivered is true when Job had been handed out before (same attempt).
	Redelivered bool
	// Err is the cause of PollFailed, nil otherwise.
	Err error
}

// Presence is a sign of life of a worker that polled and got nothing, for its row.
type Presence struct {
	Number uint32
	// Used is as in WorkerSession. It is written only if the row has no higher one.
	Used uint64
	// Age is for how long the worker has been silent.
	Age     time.Duration
	Address RowAddress
}

// Recount is what the database says at one moment.
type Recount struct {
	// Pending counts the builds that wait.
	Pending map[Platform]int
	// Installation and Now are for WorkerTokens.
	Installation string
	Now          time.Time
	// Changed are the rows that are not as they were; Gone are workers without one.
	Changed []WorkerSession
	Gone    []uint32
}
