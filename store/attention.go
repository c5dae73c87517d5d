package store

import "time"

// The kinds of problems that concern single workers are the states [WorkerCritical], [WorkerSuspect],
// [WorkerQuarantined], [Offline], [WorkerSilent] and [WorkerLeaving]. An acknowledgement of one names the
// worker.

// MaxAcknowledged is the most acknowledgements that there may be, MaxAcknowledgement the longest.
const (
	MaxAcknowledged    = 1000
	MaxAcknowledgement = 30 * 24 * time.Hour
)

// Acknowledgement says that operators know of a problem. Until it ends the problem needs no
// attention, and notices leave it out.
type Acknowledgement struct {
	Kind string
	// Subject is what has the problem, such as a worker's id; "" if the kind has only one.
	Subject   string
	By        string
	Reason    string
	At, Until time.Time
	// State and Name are those of the worker that Subject names, if it names one.
	State, Name string
}

// Troubles are what needs attention beside the fleet and the queue.
type Troubles struct {
	Notices []FailingNotices
	Keys    []ExpiringKey
	// Controllers are the versions of the controllers on this database; "" is one that does not
	// tell. Workers counts the workers that are online by the version that they report.
	Controllers []string
	Workers     map[string]int
}

// FailingNotices are the notices that a subscription did not get.
type FailingNotices struct {
	ID, URL string
	// Disabled is why takt itself sends it no more; "" if it does.
	Disabled string
	// Failing counts those that failed and are tried again, Dead those that were given up.
	Failing, Dead int
	Since         time.Time // when the first of them was made
	Error         string    // of the last attempt
}

// ExpiringKey is a key in use that expires within a week, or did.
type ExpiringKey struct {
	Name    string
	Expires time.Time
}
