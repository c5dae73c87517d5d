// Package queue hands builds to workers and takes them back from silent ones.
//
// QueueManager (handle: [Queue]) answers every poll of every worker of this
// controller. A poll of a worker that it remembers, that holds nothing and for which
// nothing is pending is answered, or parked, from memory. All others share
// transactions: while two of these run polls collect, and the next batch takes all
// that have come (group commit). Each build that becomes pending wakes the poll
// that has been parked longest of those that can take it.
//
//	poll ──▶ arrive ──▶ judge ──▶ answered or parked, from memory
//	                      │             │ wake
//	                      ▼             ▼
//	                   waiting ──▶ batch ──▶ answered; what found nothing parks
//
// HeartbeatMonitor (handle: [Monitor]) takes builds from workers that have gone
// silent, but only after this controller could have heard them for one whole build
// timeout.
//
// # State
//
// QueueManager: worker sessions, polls that wait, are in batches or parked, and
// counts of pending builds. All of it may be lost at any moment: the callers of lost
// polls learn of it at once and their workers poll again; a build that was assigned
// meanwhile is handed out again, because the worker's token shows that it has not
// heard of it. HeartbeatMonitor: since when it listens, and a copy of the timeouts.
// PostgreSQL has everything else, and what a transaction finds there decides,
// whatever memory thought.
//
// # Failure
//
// While the database is away polls that need it fail at once with
// store.Unavailable, parked ones stay, timers skip their turn. A committed
// assignment is answered by the goroutine that committed it, whatever happens to
// the actor. Notifications may be lost: a look at the database every 2 s finds what
// they did not tell.
//
// # Concurrency
//
// Handles may be used by any goroutine. Each actor owns its state and touches it in
// its callbacks only; what a batch shares with it is handed over and back by
// messages. The decisions are in types without clock, goroutines or database
// (memory, pending, caches, listening), which the actors are thin shells of.
package queue
