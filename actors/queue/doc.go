// Package queue hands builds to workers and takes them back from silent ones.
//
// QueueManager (handle: [Queue]) answers every poll of every worker of this controller.
// It answers or parks a poll from memory if it remembers the worker, the worker holds
// nothing, and no build is pending for it. All other polls share transactions. While
// two of these run, new polls collect, and the next batch takes all of them (group
// commit). Each build that becomes pending wakes the poll that has been parked longest
// of those that can take it.
//
//	poll ──▶ arrive ──▶ judge ──▶ answered or parked, from memory
//	                      │             │ wake
//	                      ▼             ▼
//	                   waiting ──▶ batch ──▶ answered; what found nothing parks
//
// HeartbeatMonitor (handle: [Monitor]) takes builds from workers that have stopped
// sending beats. It does so only after this controller could have received their beats
// for one whole build timeout.
//
// # State
//
// QueueManager: worker sessions; polls that wait, are in batches or parked; and counts
// of pending builds. All of it may be lost at any moment. The callers of lost polls
// then get an error at once and their workers poll again. A build that was assigned
// meanwhile is handed out again, because the worker's token shows that the worker did
// not receive it. HeartbeatMonitor: since when it listens, and a copy of the timeouts.
// Everything else is in PostgreSQL, and a transaction decides by the rows that it
// finds, even where memory differs.
//
// # Failure
//
// While the database is unavailable, polls that need it fail at once with
// store.Unavailable, parked polls stay parked, and timers skip their turn. The
// goroutine that committed an assignment also answers it, even if the actor has failed.
// Notifications may be lost, so the actor reads the database every 2 s.
//
// # Concurrency
//
// Handles may be used by any goroutine. Each actor owns its state and uses it only in
// its callbacks. Messages pass a batch to a goroutine and back. The decisions are in
// types without clock, goroutines or database (memory, pending, caches, listening); the
// actors only call them.
package queue
